"""Readers of positions from files: PGN games, lines of FEN, EPD or JSON, and Lichess's puzzles.

The readers raise on the first bad line, because a file of positions can be corrected, unlike a model's text.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import chess

from ..files import file_type, open_text
from .fen import is_valid_fen, parse_fen, read_fen, rule_violations
from .pgn import PgnGame, read_pgn
from .puzzles import read_puzzles

PUZZLE_FILE, GAMES_FILE = ".csv", ".pgn"


def positions_from_file(path: Path | str) -> Iterator[str]:
    """Yield the FENs of a file of lines: FEN in `.fen` and `.txt`, EPD in `.epd`, objects with `fen` in `.jsonl`.

    The suffix may have capitals, and a FEN may lack its counters (see `read_fen`). A `.csv` file has Lichess's puzzles,
    of which the positions in which the solver begins are taken. Each FEN is as python-chess prints it. Blank lines are
    skipped; a file without other lines yields nothing. Raises ValueError for another suffix and, naming file and line,
    for a line without a valid position; OSError if the file cannot be read.
    """
    path = Path(path)
    if file_type(path) == PUZZLE_FILE:
        return (puzzle.fen for puzzle in read_puzzles(path))
    if file_type(path) not in _LINE_READERS:
        raise ValueError(f"expected a file of type {', '.join(POSITION_TYPES)}, got {path}")
    return _positions_by_line(path, _LINE_READERS[file_type(path)])


def _positions_by_line(path: Path, read: Callable[[str], chess.Board]) -> Iterator[str]:
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _read_line(line.strip(), read, f"{path}:{number}").fen()


def _read_line(text: str, read: Callable[[str], chess.Board], where: str) -> chess.Board:
    try:
        board = read(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if fault := rule_violations(board):
        raise ValueError(f"{where}: {fault} in {text!r}")
    return board


def _epd_board(text: str) -> chess.Board:
    try:
        # The operations hmvc and fmvn set its counters.
        return parse_fen(chess.Board.from_epd(text)[0].fen())
    except ValueError as error:
        hint = "a FEN with counters: name the file .fen" if is_valid_fen(text) else str(error)
        raise ValueError(f"expected an EPD record, got {text!r}: {hint}") from error


def _json_board(text: str) -> chess.Board:
    wanted = f"expected a JSON object with a FEN under 'fen', got {text!r}"
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{wanted}: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("fen"), str):
        raise ValueError(wanted)
    return read_fen(row["fen"])


_LINE_READERS: dict[str, Callable[[str], chess.Board]] = {
    ".fen": read_fen,
    ".txt": read_fen,
    ".epd": _epd_board,
    ".jsonl": _json_board,
}


POSITION_TYPES = (*_LINE_READERS, PUZZLE_FILE)


def positions_from_pgn(path: Path | str) -> Iterator[str]:
    """Yield the FEN of every position in the main line of every game, except those in which the game is over.

    A null move passes the turn. A file without a game yields nothing. Raises ValueError, naming game, file and line, as
    `read_pgn` does; OSError if the file cannot be read.
    """
    for game in games_from_pgn(path):
        yield from (board.fen() for board in game.boards() if board.outcome(claim_draw=False) is None)


def games_from_pgn(path: Path | str) -> Iterator[PgnGame]:
    """Yield the games of a file, each of standard chess. Raises as `positions_from_pgn` does."""
    with open_text(Path(path)) as lines:
        yield from read_pgn(lines, str(path))


@dataclass(frozen=True, slots=True)
class PgnCounts:
    """Number of games in a PGN file, and the games that a reader has to know of."""

    games: int
    without_result: tuple[tuple[int, int], ...]
    """Number of the game, from 1, and the line at which it stops. A file that was cut off ends with such a game."""
    with_null_moves: tuple[tuple[int, int], ...] = ()
    """Number of the game and the line of its first null move."""

    def warnings(self) -> list[str]:
        """Return a line about each game that stops without a result, and one about all with null moves."""
        lines = [
            f"Game {number} has no result: it stops at line {line}, and the file may be cut off there"
            for number, line in self.without_result
        ]
        if self.with_null_moves:
            number, line = self.with_null_moves[0]
            count = len(self.with_null_moves)
            games = f"{count} game{'s have' if count > 1 else ' has'} null moves"
            lines.append(f"{games}, the first at line {line} in game {number}: the turn passes, and the game goes on")
        return lines


def count_games(path: Path | str) -> PgnCounts:
    """Count the games of a PGN file. Raises as `positions_from_pgn` does."""
    number, without_result, null_moves = 0, [], []
    for game in games_from_pgn(path):
        number = game.number
        if not game.has_result:
            without_result.append((number, game.line))
        if game.null_move_line:
            null_moves.append((number, game.null_move_line))
    return PgnCounts(number, tuple(without_result), tuple(null_moves))
