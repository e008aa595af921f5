"""Self-play's rows and rate, by hand and of the random mover."""

from collections.abc import Callable
from typing import Any

import chess
import pytest

from rookworld_rlvr.evaluation import Row, summarise
from rookworld_rlvr.evaluation.games import PlayedGame, Start
from rookworld_rlvr.evaluation.intervals import wilson_interval
from rookworld_rlvr.evaluation.players import DecodingConfig, RandomPlayer
from rookworld_rlvr.evaluation.selfplay import SelfplayConfig, selfplay, selfplay_measures


def rows_of(player: Any, config: SelfplayConfig, **settings: Any) -> list[Row]:
    return [row for chunk in selfplay(player, config, **settings) for row in chunk]


def row(number: int, legal: float, ending: str) -> Row:
    ends = {f"selfplay/ended/{name}": float(name == ending) for name in ("illegal_move", "checkmate")}
    return Row(number, number, {"selfplay/legal_halfmoves": legal, **ends})


def test_the_illegal_rate_is_of_half_moves_and_the_length_of_games() -> None:
    rows = [row(0, 9, "illegal_move"), row(1, 0, "illegal_move"), row(2, 40, "checkmate")]
    rate = selfplay_measures(rows)["selfplay/illegal_rate"]
    assert (rate.value, rate.n, (rate.low, rate.high)) == (2 / 51, 51, wilson_interval(2, 51))
    assert summarise(rows)["selfplay/legal_halfmoves"].value == pytest.approx(49 / 3)
    assert selfplay_measures([]) == selfplay_measures([row(0, 0, "checkmate")]) == {}


def test_the_random_mover_plays_legal_games_to_their_end() -> None:
    games: list[PlayedGame] = []
    config = SelfplayConfig(games=6, max_halfmoves=120)
    rows = rows_of(RandomPlayer(), config, on_games=games.extend)
    assert [game.number for game in games] == [row.index for row in rows] == list(range(6))
    for played, judged in zip(games, rows, strict=True):
        assert judged.values["selfplay/legal_halfmoves"] == len(played.board.move_stack) <= 120
        assert judged.values[f"selfplay/ended/{played.end}"] == 1.0
        assert sum(value for key, value in judged.values.items() if "/ended/" in key) == 1.0
    assert len({game.board.fen() for game in games}) == 6
    assert selfplay_measures(rows)["selfplay/illegal_rate"].value == 0.0


def test_games_already_there_are_left_out_and_the_others_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.selfplay.SIDE_BY_SIDE", 2)
    config = SelfplayConfig(games=5, max_halfmoves=10, start=Start.openings)
    whole = rows_of(RandomPlayer(), config, seed=1)
    assert rows_of(RandomPlayer(), config, seed=1, done=4) == whole[4:]
    assert rows_of(RandomPlayer(), config, seed=2)[0].item != whole[0].item
    opened = chess.Board(str(whole[0].item).split(" from ")[1])
    assert opened.ply() > 1


def test_a_sampled_model_s_games_repeat_by_its_seed_and_differ_among_themselves(
    small_player: Callable[..., Any],
) -> None:
    def games(seed: int) -> list[str]:
        found: list[PlayedGame] = []
        sampled = small_player(DecodingConfig(1.0, 20), seed)
        rows_of(sampled, SelfplayConfig(games=6, max_halfmoves=30), on_games=found.extend)
        return [f"{game.board.fen()} {game.illegal}" for game in found]

    first = games(0)
    assert games(0) == first and games(1) != first and len(set(first)) > 1


def test_published_sampling_is_the_default() -> None:
    assert SelfplayConfig().decoding == DecodingConfig(temperature=0.6, top_k=5)
    assert SelfplayConfig().start is Start.standard


@pytest.mark.parametrize("changes", [{"games": -1}, {"max_halfmoves": 0}])
def test_self_play_without_games_or_half_moves_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="selfplay: expected games from 0 and max_halfmoves from 1"):
        SelfplayConfig(**changes)
