"""Games played side by side: their endings, their winners and their PGN."""

import io
from collections.abc import Sequence
from pathlib import Path

import chess
import chess.pgn
import pytest

from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.evaluation.games import End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from rookworld_rlvr.evaluation.players import RandomPlayer

FOOLS_MATE = "f2f3 e7e5 g2g4 d8h4"
STALEMATE = "e2e3 a7a5 d1h5 a8a6 h5a5 h7h5 h2h4 a6h6 a5c7 f7f6 c7d7 e8f7 d7b7 d8d3 b7b8 d3h7 b8c8 f7g6 c8e6"
SHUFFLE = "g1f3 g8f6 f3g1 f6g8 " * 4


class Reader:
    """A player that reads its moves from a list by the number of plies, and records the games of each call."""

    def __init__(self, moves: str) -> None:
        self._moves = moves.split()
        self.asked: list[list[int]] = []

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        self.asked.append(list(numbers))
        return [self._moves[len(board.move_stack)] for board in boards]


def of(moves: str, limit: int = 500, start: chess.Board | None = None) -> PlayedGame:
    [game] = play([Pairing(0, start or chess.Board(), reader := Reader(moves), reader)], limit)
    return game


@pytest.mark.parametrize(
    ("moves", "plies", "end", "winner"),
    [
        (FOOLS_MATE, 4, End.checkmate, chess.BLACK),
        (STALEMATE, 19, End.stalemate, None),
        (SHUFFLE, 16, End.fivefold_repetition, None),
        ("e2e4 e7e5 e4e5", 2, End.illegal_move, chess.BLACK),
        ("e2e4 nonsense", 1, End.illegal_move, chess.WHITE),
    ],
)
def test_a_game_ends_by_rule_or_by_an_illegal_move(
    moves: str, plies: int, end: End, winner: chess.Color | None
) -> None:
    game = of(moves)
    assert (game.plies, game.end, game.winner) == (plies, end, winner)
    assert game.illegal == (moves.split()[-1] if end is End.illegal_move else None)


def test_a_game_stops_at_the_ply_limit_without_a_winner() -> None:
    game = of(SHUFFLE, limit=5)
    assert (game.plies, game.end, game.winner, game.score(chess.WHITE)) == (5, End.ply_limit, None, 0.5)
    assert (of(FOOLS_MATE).score(chess.WHITE), of(FOOLS_MATE).score(chess.BLACK)) == (0.0, 1.0)


def test_finished_start_is_not_played_and_opening_moves_are_not_counted() -> None:
    mated = of(FOOLS_MATE).board
    game = of("", start=mated)
    assert (game.plies, game.end, game.winner) == (0, End.checkmate, chess.BLACK)
    opened = chess.Board()
    opened.push_uci("f2f3")
    assert of(FOOLS_MATE, start=opened).plies == 3 and len(opened.move_stack) == 1


def test_player_to_move_in_most_games_chooses_for_all_of_them() -> None:
    white, black = Reader(FOOLS_MATE), Reader(FOOLS_MATE)
    opened = chess.Board()
    opened.push_uci("f2f3")
    games = play([Pairing(7, chess.Board(), white, black), Pairing(8, opened, white, black)], 9)
    assert [game.end for game in games] == [End.checkmate] * 2
    # Once White has moved in the first game, the players take turns.
    assert white.asked == [[7], [7, 8]] and black.asked == [[7, 8], [7, 8]]


def test_games_played_side_by_side_equal_games_played_alone() -> None:
    player = RandomPlayer(1)
    pairings = [Pairing(number, chess.Board(), player, player) for number in range(3)]
    together = [game.board.fen() for game in play(pairings, 60)]
    assert [play([pairing], 60)[0].board.fen() for pairing in pairings] == together
    assert len(set(together)) == 3


def test_each_opening_line_is_used_once_before_any_is_used_again() -> None:
    lines = {opening_board(opening).fen() for opening in OPENINGS}
    starts = [PlannedGame(number, Start.openings, seed=3).board() for number in range(len(OPENINGS) + 1)]
    # Two random plies follow each line.
    for start in starts:
        start.pop()
        start.pop()
    assert {start.fen() for start in starts[:-1]} == lines and starts[-1].fen() == starts[0].fen()
    assert PlannedGame(5, Start.standard, seed=3).board().fen() == chess.STARTING_FEN


@pytest.mark.parametrize(
    ("moves", "limit", "result", "comment"),
    [
        (FOOLS_MATE, 9, "0-1", ""),
        (SHUFFLE, 99, "1/2-1/2", ""),
        (SHUFFLE, 3, "*", ""),
        ("e2e4 {x}", 9, "1-0", "illegal: '{x)'"),
    ],
)
def test_saved_pgn_reads_back_with_same_moves_and_result(
    moves: str, limit: int, result: str, comment: str, tmp_path: Path
) -> None:
    game, path = of(moves, limit), tmp_path / "games.pgn"
    text = pgn_text(game, {"White": "one", "Black": "two"})
    path.write_text(text + text)
    with path.open() as file:
        first, second = chess.pgn.read_game(file), chess.pgn.read_game(file)
        assert chess.pgn.read_game(file) is None
    assert first is not None and second is not None and not first.errors
    assert first.end().board().fen() == second.end().board().fen() == game.board.fen()
    assert (first.headers["White"], first.headers["Result"], first.end().comment) == ("one", result, comment)
    assert first.headers["Termination"] == game.end
    assert chess.pgn.read_game(io.StringIO(text)) is not None
