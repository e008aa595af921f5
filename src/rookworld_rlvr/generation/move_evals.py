"""Move evaluations of existing rows, for `rubric.move_evals`."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

from ..board.fen import parse_fen
from ..files import replacing
from ..stockfish.engine import EngineConfig
from ..stockfish.move_evals import MoveEvals, render_move_evals
from ..stockfish.pool import EnginePool
from ..tasks import fens_of_moves
from ..tasks.corpus import read_corpus

# Number of positions between two reports of progress.
CHUNK = 64


def positions_with_moves(sources: Sequence[str]) -> list[str]:
    """Return the FENs of the `P:` rows, each once, without mates and stalemates. Raises UserError."""
    prompts = (example.prompt for source in sources for example in read_corpus(source).examples)
    fens = dict.fromkeys(fens_of_moves(prompts).values())
    return [fen for fen in fens if any(parse_fen(fen).legal_moves)]


def write_move_evals(fens: Sequence[str], out: Path, config: EngineConfig, progress: Callable[[int], None]) -> None:
    """Write move evaluations of positions that have a legal move, in order.

    A repeated call after an interrupt finds finished analyses in the engines' cache. Raises UserError, ScorerError or
    OSError.
    """
    with EnginePool(config) as pool, replacing(out) as writing, gzip.GzipFile(writing, "wb", mtime=0) as file:
        for start in range(0, len(fens), CHUNK):
            chunk = fens[start : start + CHUNK]
            for fen, analysis in zip(chunk, pool.analyse(chunk), strict=True):
                line = render_move_evals(MoveEvals(fen, "engine", dict(analysis.lines)))
                file.write(f"{line}\n".encode())
            progress(start + len(chunk))
