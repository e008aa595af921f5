"""Engine matches: scores of pairs, their difference in Elo, openings, and results of known players."""

import io
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import chess
import chess.pgn
import pytest

from rookworld_rlvr.evaluation.elo import elo, elo_measures
from rookworld_rlvr.evaluation.engine_player import OpponentConfig, engine_player
from rookworld_rlvr.evaluation.intervals import Z_95, wilson_interval
from rookworld_rlvr.evaluation.match import EngineMatchConfig, engine_match_suite
from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.evaluation.suite import SuiteName
from rookworld_rlvr.evaluation.table import Measure, Row, summarise


class Illegal:
    """A player whose moves are all illegal."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return ["e1e1"] * len(boards)


def match(player: Any, opponent: Any, config: EngineMatchConfig, *, done: int = 0, **settings: Any) -> list[Row]:
    suite = engine_match_suite(player, lambda: nullcontext(opponent), config, **settings)
    return [row for chunk in suite.rows(done) for row in chunk]


def scored(*scores: float) -> list[Row]:
    return [Row(index, index, {"engine_match/score": score}) for index, score in enumerate(scores)]


def table(rows: Sequence[Row]) -> dict[str, Measure]:
    return summarise(rows) | elo_measures(SuiteName.engine_match, rows)


def test_match_of_equal_results_has_intervals_of_nonzero_width() -> None:
    result = table(match(RandomPlayer(), RandomPlayer(1), EngineMatchConfig(pairs=4, max_plies=4)))
    unseen = Z_95**2 / (4 + Z_95**2)
    for name, low, high in (("score", 0.5 - unseen / 2, 0.5 + unseen / 2), ("lost", 0, unseen), ("illegal", 0, unseen)):
        assert (result[f"engine_match/{name}"].low, result[f"engine_match/{name}"].high) == pytest.approx((low, high))
    assert result["engine_match/elo"].low == pytest.approx(elo(0.5 - unseen / 2))


def test_each_opening_is_played_with_both_colours_and_no_opening_twice() -> None:
    rows = match(RandomPlayer(), RandomPlayer(1), EngineMatchConfig(pairs=5, max_plies=4), names=("us", "them"))
    assert [row.index for row in rows] == list(range(5))
    starts = []
    for row in rows:
        record = io.StringIO(row.record)
        as_white, as_black = chess.pgn.read_game(record), chess.pgn.read_game(record)
        assert as_white and as_black and chess.pgn.read_game(record) is None
        assert (as_white.headers["White"], as_black.headers["White"]) == ("us", "them")
        assert [int(game.headers["Round"]) for game in (as_white, as_black)] == [2 * row.index + 1, 2 * row.index + 2]
        opened = [[move.uci() for move in game.mainline_moves()][:-4] for game in (as_white, as_black)]
        assert opened[0] == opened[1] and opened[0]
        starts.append(tuple(opened[0]))
    assert len(set(starts)) == 5
    assert all(row.values["engine_match/score"] == row.values["engine_match/drawn"] / 2 == 0.5 for row in rows)


def test_illegal_move_loses_and_is_counted_only_for_the_player() -> None:
    config = EngineMatchConfig(pairs=3)
    lost = summarise(match(Illegal(), RandomPlayer(), config))
    won = summarise(match(RandomPlayer(), Illegal(), config))
    names = ("score", "score/white", "score/black", "won", "drawn", "lost", "illegal")
    assert [lost[f"engine_match/{name}"].value for name in names] == [0, 0, 0, 0, 0, 1, 1]
    assert [won[f"engine_match/{name}"].value for name in names] == [1, 1, 1, 1, 0, 0, 0]


def test_elo_equals_logistic_formula() -> None:
    # A difference of 100 Elo is a score of 1 / (1 + 10^(-1/4)).
    assert elo(1 / (1 + 10**-0.25)) == pytest.approx(100.0)
    assert elo(0.25) == pytest.approx(-elo(0.75)) and (elo(0.0), elo(1.0)) == (-math.inf, math.inf)


def test_elo_interval_is_score_interval_of_pairs_mapped_to_elo() -> None:
    measures = elo_measures(SuiteName.engine_match, scored(0.5, 0.75, 0.25, 1.0, 0.5))
    # Mean 0.6; squared deviations 0.01 + 0.0225 + 0.1225 + 0.16 + 0.01 = 0.325, variance 0.08125.
    spread = Z_95 * math.sqrt(0.08125 / 5)
    measure = measures["engine_match/elo"]
    assert (measure.value, measure.low, measure.high, measure.n) == pytest.approx(
        (elo(0.6), elo(0.6 - spread), elo(0.6 + spread), 5)
    )
    # Without pairing the interval would be wider, because a drawn pair may be a win and a loss.
    assert table(scored(0.5, 0.75, 0.25, 1.0, 0.5))["engine_match/score"].low == pytest.approx(0.6 - spread)


def test_match_lost_or_won_throughout_has_one_infinite_elo_bound() -> None:
    lost, won = table(scored(*[0.0] * 8)), table(scored(*[1.0] * 8))
    low, high = wilson_interval(0, 8)
    assert (low, pytest.approx(high)) == (lost["engine_match/score"].low, lost["engine_match/score"].high)
    assert (lost["engine_match/elo"].value, lost["engine_match/elo"].low) == (-math.inf, -math.inf)
    assert lost["engine_match/elo"].high == pytest.approx(elo(high)) == pytest.approx(-won["engine_match/elo"].low)
    assert won["engine_match/elo"].high == math.inf
    assert elo_measures(SuiteName.engine_match, []) == {}


def test_openings_depend_on_seed_and_finished_pairs_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.match.ENGINE_PAIRS_SIDE_BY_SIDE", 2)
    config = EngineMatchConfig(pairs=5, max_plies=6)
    whole = match(RandomPlayer(), RandomPlayer(1), config, seed=3)
    assert match(RandomPlayer(), RandomPlayer(1), config, seed=3, done=2) == whole[2:]
    assert [row.item for row in match(RandomPlayer(), RandomPlayer(1), config, seed=4)] != [row.item for row in whole]


def test_stockfish_beats_random_player_and_randomised_stockfish(stockfish: str) -> None:
    config = EngineMatchConfig(pairs=3, max_plies=200)
    with engine_player(OpponentConfig(nodes=200, skill=20)) as strong:
        lost = summarise(match(RandomPlayer(), strong, config))
        with engine_player(OpponentConfig(nodes=1, random_moves=1.0)) as weak:
            won = summarise(match(strong, weak, config))
    assert lost["engine_match/score"].value == 0.0 and won["engine_match/score"].value == 1.0


@pytest.mark.parametrize("changes", [{"pairs": -1}, {"max_plies": 0}])
def test_engine_match_refuses_negative_pairs_and_zero_plies(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="engine_match: expected pairs from 0"):
        EngineMatchConfig(**changes)
