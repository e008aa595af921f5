"""Games by the rules of LLM Chess: three illegal attempts lose, 200 plies draw."""

import io
from collections.abc import Sequence

import chess
import chess.pgn
import pytest

from rookworld_rlvr.evaluation.engine_player import OpponentConfig, engine_player
from rookworld_rlvr.evaluation.llm_chess import GAMES, MAX_PLIES, llm_chess_suite
from rookworld_rlvr.evaluation.match import MakePlayer
from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.evaluation.suite import suite_table
from rookworld_rlvr.evaluation.table import Row


def rows_of(player: MakePlayer, done: int = 0, **settings: int) -> list[Row]:
    return [row for chunk in llm_chess_suite(player, **settings).rows(done) for row in chunk]


class Stumbles:
    """A player that plays legally on its attempt `legal_at` of each move, from 0; earlier attempts are illegal."""

    def __init__(self, legal_at: int, seed: int) -> None:
        self._skipped, self._random = legal_at - seed, RandomPlayer(seed)

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        # The first attempt comes from the player of seed 0, and the others from that of seed 1, in one batch.
        seen: dict[int, int] = {}
        texts = self._random.choose(boards, numbers)
        for i, number in enumerate(numbers):
            if seen.get(number, 0) < self._skipped:
                texts[i] = "e2e9"
            seen[number] = seen.get(number, 0) + 1
        return texts


@pytest.mark.parametrize("attempts", [1, 2])
def test_fewer_than_three_illegal_attempts_at_each_move_are_counted_and_forgiven(attempts: int) -> None:
    [row] = rows_of(lambda seed: Stumbles(attempts, seed), games=1)
    assert row.values["llm_chess/ended/illegal_move"] == 0.0 and row.values["llm_chess/plies"] > 20
    # Black moves in every second ply.
    assert row.values["llm_chess/illegal"] == pytest.approx(attempts / 2, abs=0.05)


def test_third_illegal_attempt_loses_and_its_text_is_kept() -> None:
    [row] = rows_of(lambda seed: Stumbles(3, seed), games=1)
    assert row.values["llm_chess/lost"] == row.values["llm_chess/ended/illegal_move"] == 1.0
    # One move of White and three mistakes in the second ply.
    assert (row.values["llm_chess/plies"], row.values["llm_chess/illegal"]) == (1.0, 1.5)
    assert row.values["llm_chess/material"] == 0.0
    assert "illegal: 'e2e9'" in row.record and '[Black "model"]' in row.record


def test_random_player_with_black_neither_wins_nor_loses_most_games() -> None:
    suite = llm_chess_suite(RandomPlayer)
    assert len(suite.items) == GAMES == 30
    rows = [row for chunk in suite.rows(0) for row in chunk]
    table = suite_table(suite, rows)
    assert table["llm_chess/drawn"].value >= 0.6 and table["llm_chess/illegal"].value == 0.0
    assert sum(table[f"llm_chess/{name}"].value for name in ("won", "drawn", "lost")) == pytest.approx(1.0)
    assert max(row.values["llm_chess/plies"] for row in rows) == MAX_PLIES
    games = [chess.pgn.read_game(io.StringIO(row.record)) for row in rows]
    assert len({str(game and game.mainline_moves()) for game in games}) == GAMES
    for row, game in zip(rows, games, strict=True):
        assert game and (row.values["llm_chess/ended/ply_limit"] == 1.0) == (game.end().ply() == MAX_PLIES)


def test_games_do_not_depend_on_each_other_and_repeat_by_seed() -> None:
    whole = rows_of(RandomPlayer)
    assert rows_of(RandomPlayer, 15) == whole[15:] and rows_of(RandomPlayer, games=3) == whole[:3]
    assert rows_of(RandomPlayer, games=3, seed=1) != whole[:3]


def test_stockfish_beats_the_random_player_with_black(stockfish: str) -> None:
    with engine_player(OpponentConfig(nodes=2000, skill=20)) as strong:
        rows = rows_of(lambda seed: strong, games=3)
    assert all(row.values["llm_chess/won"] == row.values["llm_chess/ended/checkmate"] == 1.0 for row in rows)
    assert all(row.values["llm_chess/material"] > 0 for row in rows)
