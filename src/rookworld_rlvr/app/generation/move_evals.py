"""`rookworld data evals`: what an engine says of every legal move of the positions in files of rows."""

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...board.fen import parse_fen
from ...stockfish.engine import EngineConfig
from ...stockfish.pool import EnginePool
from ...tasks import policy_fens
from ...tasks.corpus import read_corpus
from ...tasks.move_evals import MoveEvals, render_move_evals

CHUNK = 64


def write_move_evals(
    sources: Sequence[str], out: Path, config: EngineConfig, progress: Callable[[int], None] = lambda done: None
) -> int:
    """Write the verdicts on all positions of `P:` rows, each once, in the order of the rows; how many there are.

    A stopped one goes on by the engines' cache. Raises CorpusError, ScorerError, EngineUnusableError or OSError.
    """
    fens = positions_with_moves(sources)
    unfinished = out.with_name(f".{out.name}.unfinished")
    with EnginePool(config) as pool, gzip.GzipFile(unfinished, "wb", mtime=0) as file:
        for start in range(0, len(fens), CHUNK):
            chunk = fens[start : start + CHUNK]
            for fen, analysis in zip(chunk, pool.analyse(chunk), strict=True):
                line = render_move_evals(MoveEvals(fen, "engine", dict(analysis.lines)))
                file.write(f"{line}\n".encode())
            progress(start + len(chunk))
    unfinished.replace(out)
    return len(fens)


def positions_with_moves(sources: Sequence[str]) -> list[str]:
    """The FENs of the `P:` rows, each once, without mates and stalemates. Raises CorpusError."""
    return list(dict.fromkeys(fen for source in sources for fen in _fens(source)))


def _fens(source: str) -> Iterator[str]:
    prompts = (example.prompt for example in read_corpus(source).examples)
    return (fen for fen in policy_fens(prompts).values() if any(parse_fen(fen).legal_moves))
