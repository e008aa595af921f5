"""Readers of positions from files: PGN games, lines of FEN, EPD or JSON, and Lichess's puzzles.

The readers raise on the first bad line, because a file of positions can be corrected, unlike a model's text.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import chess
import chess.pgn

from .fen import is_valid_fen, parse_fen, rule_violations
from .puzzles import read_puzzles

PUZZLE_FILE = ".csv"


def positions_from_file(path: Path | str) -> Iterator[str]:
    """Yield the FENs of a file of lines: FEN in `.fen` and `.txt`, EPD in `.epd`, objects with `fen` in `.jsonl`.

    A `.csv` file has Lichess's puzzles, of which the positions in which the solver begins are taken. Each FEN is as
    python-chess prints it. Blank lines are skipped; a file without other lines yields nothing. Raises
    ValueError for another suffix and, naming file and line, for a line without a valid position; OSError if the file
    cannot be read.
    """
    path = Path(path)
    if path.suffix == PUZZLE_FILE:
        return (puzzle.fen for puzzle in read_puzzles(path))
    if path.suffix not in _LINE_READERS:
        raise ValueError(f"expected a file of type {', '.join((*_LINE_READERS, PUZZLE_FILE))}, got {path}")
    return _positions_by_line(path, _LINE_READERS[path.suffix])


def _positions_by_line(path: Path, read: Callable[[str], chess.Board]) -> Iterator[str]:
    # Undecodable bytes become replacement characters, so that the error names the line that contains them.
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
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
        return chess.Board.from_epd(text)[0]
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
    return parse_fen(row["fen"])


_LINE_READERS: dict[str, Callable[[str], chess.Board]] = {
    ".fen": parse_fen,
    ".txt": parse_fen,
    ".epd": _epd_board,
    ".jsonl": _json_board,
}


def positions_from_pgn(path: Path | str) -> Iterator[str]:
    """Yield the FEN of every position in the main line of every game, except those in which the game is over.

    A file without a game yields nothing. Raises ValueError, naming file and line, for an illegal move, for text that
    is not a game and for a game that is not standard chess; OSError if the file cannot be read.
    """
    for game in games_from_pgn(path):
        yield from _main_line(game)


def games_from_pgn(path: Path | str) -> Iterator[chess.pgn.Game]:
    """Yield the games of a file, each of standard chess. Raises as `positions_from_pgn` does."""
    yield from (game for game, _, _ in _read_games(Path(path)))


@dataclass(frozen=True, slots=True)
class PgnCounts:
    """Number of games in a PGN file, and the games that stop without a result."""

    games: int
    without_result: tuple[tuple[int, int], ...]
    """Number of the game, from 1, and the line at which it stops. A file that was cut off ends with such a game."""

    def warnings(self) -> list[str]:
        """Return a line about each game that stops without a result."""
        return [
            f"Game {number} has no result: it stops at line {line}, and the file may be cut off there"
            for number, line in self.without_result
        ]


def count_games(path: Path | str) -> PgnCounts:
    """Count the games of a PGN file. Raises as `positions_from_pgn` does."""
    games, without_result = 0, []
    for games, (_, line, has_result) in enumerate(_read_games(Path(path)), start=1):
        if not has_result:
            without_result.append((games, line))
    return PgnCounts(games, tuple(without_result))


def _read_games(path: Path) -> Iterator[tuple[chess.pgn.Game, int, bool]]:
    """Yield each game, the last line that was read for it, and whether it ends with a result (`*` counts as one)."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        text = _NumberedText(file)
        game, has_result = _read_game(text, path)
        while game:
            _check_game(game, f"{path}:{text.lines_read}")
            yield game, text.lines_read, has_result
            game, has_result = _read_game(text, path)


def _read_game(text: "_NumberedText", path: Path) -> tuple[chess.pgn.Game | None, bool]:
    builder = _NumberedGameBuilder(text, path)
    return chess.pgn.read_game(cast(TextIO, text), Visitor=lambda: builder), builder.has_result


class _NumberedText:
    """Text file that counts the lines read from it. `chess.pgn.read_game` needs no other method of a file."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self.lines_read = 0

    def readline(self) -> str:
        line = self._text.readline()
        self.lines_read += bool(line)
        return line


class StrictGameBuilder(chess.pgn.GameBuilder[chess.pgn.Game]):
    """Game builder that raises an error that python-chess would only record, keeping the moves before it."""

    def handle_error(self, error: Exception) -> None:
        raise ValueError(f"expected a game of legal moves, got {error}") from error


class _NumberedGameBuilder(StrictGameBuilder):
    """Strict game builder that names the line of an error and knows whether the game has a result."""

    def __init__(self, text: _NumberedText, path: Path) -> None:
        super().__init__()
        self._text, self._path = text, path
        self.has_result = False

    def visit_result(self, result: str) -> None:
        self.has_result = True
        super().visit_result(result)

    def handle_error(self, error: Exception) -> None:
        where = f"{self._path}:{self._text.lines_read}"
        raise ValueError(f"expected a game of legal moves, got {error}, {where}") from error


def _check_game(game: chess.pgn.Game, where: str) -> None:
    if game.headers.variant() is not chess.Board or game.headers.is_chess960() or not game.board().is_valid():
        raise ValueError(f"expected standard chess from a valid position, got {dict(game.headers)}, {where}")
    # python-chess skips what it cannot read, so it reads any text at all as a game without tags and moves.
    if game.next() is None and game.headers == chess.pgn.Game().headers:
        raise ValueError(f"expected a PGN game, got neither tags nor moves, {where}")


def _main_line(game: chess.pgn.Game) -> Iterator[str]:
    board = game.board()
    for move in [*game.mainline_moves(), None]:
        if board.outcome(claim_draw=False) is None:
            yield board.fen()
        if move:
            board.push(move)
