"""Rows and illegal rate of self-play, against hand computation and with a random player."""

import io
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import chess
import chess.pgn
import pytest

from rookworld_rlvr.evaluation.games import Start
from rookworld_rlvr.evaluation.intervals import Z_95, wilson_interval
from rookworld_rlvr.evaluation.players import DecodingConfig, RandomPlayer
from rookworld_rlvr.evaluation.selfplay import SelfplayConfig, selfplay_measures, selfplay_suite
from rookworld_rlvr.evaluation.table import Row, summarise


def rows_of(player: Any, config: SelfplayConfig, *, done: int = 0, **settings: Any) -> list[Row]:
    return [row for chunk in selfplay_suite(player, config, **settings).rows(done) for row in chunk]


def played(row: Row) -> chess.pgn.Game:
    game = chess.pgn.read_game(io.StringIO(row.record))
    assert game is not None
    return game


def row(number: int, legal: float, ending: str) -> Row:
    ends = {f"selfplay/ended/{name}": float(name == ending) for name in ("illegal_move", "checkmate")}
    return Row(number, number, {"selfplay/legal_plies": legal, **ends})


def test_illegal_rate_is_per_ply_and_length_is_per_game() -> None:
    rows = [row(0, 9, "illegal_move"), row(1, 0, "illegal_move"), row(2, 40, "checkmate")]
    rate = selfplay_measures(rows)["selfplay/illegal_rate"]
    # 1, 1 and 0 of 10, 1 and 40 plies were illegal. The deviations 31/51, 49/51 and -80/51 have squares of 9762/2601
    # in total. The variance divides them by 2, and the error is over 3 games of 17 plies on average.
    spread = Z_95 * math.sqrt(9762 / 2601 / 2 / 3) / 17
    assert (rate.value, rate.n, rate.low) == (2 / 51, 51, 0.0)
    assert rate.high == pytest.approx(2 / 51 + spread)
    assert summarise(rows)["selfplay/legal_plies"].value == pytest.approx(49 / 3)
    assert selfplay_measures([]) == selfplay_measures([row(0, 0, "checkmate")]) == {}


@pytest.mark.parametrize(
    ("rows", "illegal", "tried"),
    [
        ([row(0, 9, "checkmate"), row(1, 40, "checkmate")], 0, 49),
        ([row(0, 0, "illegal_move"), row(1, 0, "illegal_move")], 2, 2),
        ([row(0, 9, "illegal_move")], 1, 10),
        ([row(0, 9, "illegal_move"), row(1, 9, "illegal_move")], 2, 20),
    ],
    ids=["none", "all", "a single game", "games all alike"],
)
def test_illegal_rate_without_spread_over_games_has_wilson_interval(rows: list[Row], illegal: int, tried: int) -> None:
    rate = selfplay_measures(rows)["selfplay/illegal_rate"]
    assert (rate.value, rate.low, rate.high) == (illegal / tried, *wilson_interval(illegal, tried))


def test_illegal_rate_interval_covers_truth_for_unequal_games() -> None:
    """In half of the games the player errs in 3 of 10 plies, in the others in 3 of 1000."""
    rng, held, naive, trials, games, most = random.Random(0), 0, 0, 400, 100, 200
    lasts = {hazard: (1 - hazard) ** most for hazard in (0.3, 0.003)}
    truth = sum(1 - share for share in lasts.values()) / sum((1 - share) / hazard for hazard, share in lasts.items())
    for _ in range(trials):
        # The ply of the first error has a geometric distribution.
        errors = [int(math.log(1 - rng.random()) / math.log1p(-rng.choice((0.3, 0.003)))) for _ in range(games)]
        rows = [row(i, min(at, most), "illegal_move" if at < most else "checkmate") for i, at in enumerate(errors)]
        rate = selfplay_measures(rows)["selfplay/illegal_rate"]
        held += rate.low <= truth <= rate.high
        low, high = wilson_interval(round(rate.value * rate.n), rate.n)
        naive += low <= truth <= high
    assert 0.90 <= held / trials <= 0.99
    # An interval that treats plies as independent is too narrow.
    assert naive / trials < 0.90


def test_random_player_plays_legal_games_to_their_end() -> None:
    rows = rows_of(RandomPlayer(), SelfplayConfig(games=6, max_plies=120), name="random")
    games = [played(row) for row in rows]
    assert [int(game.headers["Round"]) - 1 for game in games] == [row.index for row in rows] == list(range(6))
    for game, judged in zip(games, rows, strict=True):
        assert game.headers["White"] == game.headers["Black"] == "random"
        assert judged.values["selfplay/legal_plies"] == len(list(game.mainline_moves())) <= 120
        assert judged.values[f"selfplay/ended/{game.headers['Termination']}"] == 1.0
        assert sum(value for key, value in judged.values.items() if "/ended/" in key and key.count("/") == 2) == 1.0
    assert len({game.end().board().fen() for game in games}) == 6
    assert selfplay_measures(rows)["selfplay/illegal_rate"].value == 0.0


class Reader:
    """A player that reads its moves from a list."""

    def __init__(self, moves: str) -> None:
        self._moves = moves.split()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [self._moves[len(board.move_stack)] for board in boards]


def test_plies_are_counted_by_colour_and_phase_of_their_position() -> None:
    # Three legal plies in the opening, after which Black answers with an illegal move.
    [early] = rows_of(Reader("e2e4 e7e5 g1f3 e8e4"), SelfplayConfig(games=1))
    positive = {key: value for key, value in early.values.items() if value and not key.endswith("illegal_move")}
    half = "selfplay/legal_plies"
    assert positive == {
        half: 3.0,
        f"{half}/white": 2.0,
        f"{half}/black": 1.0,
        f"{half}/opening": 3.0,
        "selfplay/ended/illegal_move/black": 1.0,
        "selfplay/ended/illegal_move/opening": 1.0,
    }
    measures = selfplay_measures([early, row(1, 0, "checkmate")])
    rates = {key.removeprefix("selfplay/illegal_rate"): (measure.value, measure.n) for key, measure in measures.items()}
    assert rates == {"": (1 / 4, 4), "/white": (0.0, 2), "/black": (1 / 2, 2), "/opening": (1 / 4, 4)}


def test_plies_of_a_game_sum_over_colours_and_over_phases() -> None:
    rows = rows_of(RandomPlayer(), SelfplayConfig(games=4, max_plies=300, start=Start.openings))
    for judged in rows:
        values = {key.rpartition("/")[2]: value for key, value in judged.values.items() if "legal_plies" in key}
        phases = values["opening"] + values["middlegame"] + values["endgame"]
        assert values["white"] + values["black"] == phases == values["legal_plies"]
    assert sum(judged.values["selfplay/legal_plies/endgame"] for judged in rows) > 0


def test_resumed_selfplay_skips_finished_games_and_repeats_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.selfplay.SIDE_BY_SIDE", 2)
    config = SelfplayConfig(games=5, max_plies=10, start=Start.openings)
    whole = rows_of(RandomPlayer(), config, seed=1)
    assert rows_of(RandomPlayer(), config, seed=1, done=4) == whole[4:]
    assert rows_of(RandomPlayer(), config, seed=2)[0].item != whole[0].item
    opened = chess.Board(str(whole[0].item).split(" from ")[1])
    assert opened.ply() > 1


def test_sampled_games_repeat_by_seed_and_differ_from_each_other(
    small_player: Callable[..., Any],
) -> None:
    def games(seed: int) -> list[str]:
        sampled = small_player(DecodingConfig(1.0, 20), seed)
        rows = rows_of(sampled, SelfplayConfig(games=6, max_plies=30))
        return [row.record.partition("\n\n")[2] for row in rows]

    first = games(0)
    assert games(0) == first and games(1) != first and len(set(first)) > 1


def test_selfplay_defaults_to_published_sampling() -> None:
    assert SelfplayConfig().decoding == DecodingConfig(temperature=0.6, top_k=5)
    assert SelfplayConfig().start is Start.standard


@pytest.mark.parametrize("changes", [{"games": -1}, {"max_plies": 0}])
def test_self_play_without_games_or_plies_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="selfplay: expected games from 0 and max_plies from 1"):
        SelfplayConfig(**changes)
