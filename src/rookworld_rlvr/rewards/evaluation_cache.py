"""Evaluation cache of a file, keyed by position: an engine's evals of every legal move, made in advance."""

from functools import cache, lru_cache
from pathlib import Path

from ..files import asset
from ..stockfish.engine import Analysis, engine_position
from ..tasks.move_evals import move_evals_lines, parse_move_evals

DEFAULT = "default"
# More than the positions of a step; an entry takes about 5 kB.
PARSED = 4096


class EvaluationCacheError(ValueError):
    """A file of move evaluations that is not there or cannot be read; one line."""


class EvaluationCache:
    """The move evaluations of a file by position, as `rookworld data evals` writes them; read-only."""

    def __init__(self, lines: dict[str, str], name: str) -> None:
        """`lines`: rendered move evaluations by `engine_position`."""
        self._lines, self.name = lines, name
        self._parsed = lru_cache(maxsize=PARSED)(self._parse)

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, fen: str) -> Analysis | None:
        """The evaluations of a position, None if the cache lacks it. Raises ValueError for a malformed FEN."""
        position = engine_position(fen)
        return self._parsed(position) if position in self._lines else None

    def _parse(self, position: str) -> Analysis:
        evals = parse_move_evals(self._lines[position])
        return Analysis(position, tuple(evals.evals_pawns.items()), origin=self.name)


@cache
def load_cache(source: str) -> EvaluationCache:
    """The cache of a file (`.gz` is unpacked), `default` for the one that ships; empty for an empty name.

    Raises EvaluationCacheError, naming the first malformed line.
    """
    if not source:
        return EvaluationCache({}, "")
    path = asset("data/move_evals.tsv.gz") if source == DEFAULT else Path(source)
    lines: dict[str, str] = {}
    try:
        for line in move_evals_lines(path):
            lines[engine_position(_fen(line))] = line
    except (OSError, ValueError) as error:
        place = f"{source}, line {len(lines) + 1}"
        raise EvaluationCacheError(f"expected a file of move evaluations, got {place}: {error}") from error
    return EvaluationCache(lines, "shipped" if source == DEFAULT else "file")


def _fen(line: str) -> str:
    """The FEN of a line; the moves are parsed when they are needed. Raises ValueError."""
    fields = line.split("\t")
    if len(fields) != 3:
        raise ValueError(f"expected source, FEN and moves, parted by tabs, got {line[:80]!r}")
    return fields[1]
