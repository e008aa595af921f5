"""Evaluation cache read from a file, keyed by position: an engine's evals of every legal move, made in advance."""

from functools import cache, lru_cache
from pathlib import Path

from ..board.evals import from_pawns
from ..board.fen import parse_fen
from ..errors import UserError
from ..files import asset
from ..stockfish.analysis import Analysis
from ..stockfish.engine import engine_position
from ..stockfish.move_evals import move_evals_lines, parse_move_evals

DEFAULT = "default"
# Number of parsed entries kept: more than the positions of a step. An entry takes about 5 kB.
PARSED = 4096


class EvaluationCache:
    """Read-only move evaluations by position, from a file that `rookworld data evals` writes."""

    def __init__(self, lines: dict[str, str], name: str) -> None:
        """Create a cache from `lines`, the rendered move evaluations by `engine_position`."""
        self._lines, self.name = lines, name
        self._parsed = lru_cache(maxsize=PARSED)(self._parse)

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, fen: str) -> Analysis | None:
        """Return the evaluations of a position; None if the cache lacks it. Raises ValueError for a malformed FEN."""
        position = engine_position(fen)
        return self._parsed(position) if position in self._lines else None

    def _parse(self, position: str) -> Analysis:
        evals = parse_move_evals(self._lines[position])
        return Analysis(position, tuple(evals.evals_pawns.items()), origin=self.name)


@cache
def load_cache(source: str) -> EvaluationCache:
    """Return the cache of a file (`.gz` is unpacked), of the file that ships for `default`, or an empty one for "".

    Raises UserError for a file that cannot be read, and names its first malformed line.
    """
    if not source:
        return EvaluationCache({}, "")
    path = asset("data/move_evals.tsv.gz") if source == DEFAULT else Path(source)
    lines: dict[str, str] = {}
    place = source
    try:
        for number, line in enumerate(move_evals_lines(path), start=1):
            place = f"{source}, line {number}"
            # The file that ships was checked when it was made.
            fen = line.split("\t")[1] if source == DEFAULT else _checked(line)
            lines[engine_position(fen)] = line
    except (OSError, ValueError) as error:
        raise UserError(f"expected a file of move evaluations, got {place}: {error}") from error
    return EvaluationCache(lines, "shipped" if source == DEFAULT else "file")


def _checked(line: str) -> str:
    """Return the FEN of a line. Raises ValueError unless it has an eval for each legal move, and at least one."""
    evals = parse_move_evals(line)
    legal = {move.uci() for move in parse_fen(evals.fen).legal_moves}
    if not legal or evals.evals_pawns.keys() != legal:
        raise ValueError(f"expected an eval for each legal move, and at least one, got {line[:80]!r}")
    for pawns in evals.evals_pawns.values():
        from_pawns(pawns)
    return evals.fen
