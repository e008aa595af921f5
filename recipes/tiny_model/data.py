"""Data of the recipe: positions with an evaluation of every legal move, and labelled transitions."""

import random
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

import chess

from rookworld_rlvr.board.distance_to_mate import exact_evals
from rookworld_rlvr.board.fen import parse_fen, position_key
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.conversion import endgames_kept_out
from rookworld_rlvr.generation.sources import Source, bare_king_ending
from rookworld_rlvr.stockfish.move_evals import MoveEvals, move_evals_lines, parse_move_evals
from rookworld_rlvr.tasks.corpus import exclude_positions, read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import held_out_positions, positions_of

# Eval of a mate in one, as `render_move_evals` writes it.
MATE_IN_ONE = ":99999"


class Positions(Sequence[MoveEvals]):
    """Positions as lines of text that are parsed when they are read: a million as objects would need gigabytes."""

    def __init__(self, lines: Iterable[str], excluded: frozenset[str] = frozenset()) -> None:
        """`excluded`: positions by identity (`position_key`) that no example may have."""
        self.lines, self.excluded = tuple(lines), excluded

    @cached_property
    def checks(self) -> "Positions":
        """The positions whose side to move is in check."""
        return Positions(line for line in self.lines if parse_fen(line.split("\t")[1]).is_check())

    @cached_property
    def mates(self) -> "Positions":
        """The positions with exactly one mate in one."""
        return Positions(line for line in self.lines if line.count(MATE_IN_ONE) == 1)

    @cached_property
    def endings(self) -> "Positions":
        """The positions of games that began from an ending."""
        return Positions(line for line in self.lines if line.startswith(f"{Source.ending}\t"))

    def bare_king(self, rng: random.Random) -> MoveEvals:
        """Return a new position of queen or rook against king, with values from the distance to mate."""
        while position_key(board := bare_king_ending(rng)) in self.excluded:
            pass
        evals = exact_evals(board)
        assert evals is not None
        return MoveEvals(board.fen(), Source.ending, evals)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> MoveEvals: ...

    @overload
    def __getitem__(self, index: slice) -> "Positions": ...

    def __getitem__(self, index: int | slice) -> "MoveEvals | Positions":
        if isinstance(index, slice):
            return Positions(self.lines[index])
        return parse_move_evals(self.lines[index])


def load_data(folder: Path, exclude: Sequence[str]) -> tuple[Positions, list[Example]]:
    """Return a folder's positions, each once, and its labelled `A:` rows, without held-out ones. Raises UserError.

    `exclude`: files whose positions are left out, beside the held-out rows that ship with the package and the endgames
    of the suite `conversion`. Positions whose colour-flipped form is one of those are left out too.
    """
    try:
        excluded = held_out_positions() | endgames_kept_out() | positions_of(exclude)
        # Training draws half of the positions with colours exchanged.
        both_colours = excluded | {position_key(parse_fen(f"{key} 0 1").mirror()) for key in excluded}
        by_position = {_key(line): line for line in move_evals_lines(folder / "move_evals.tsv")}
        rows = read_corpus(folder / "environment.txt").examples
    except (ValueError, OSError) as error:
        raise UserError(f"data: {error}") from error
    kept = (line for key, line in by_position.items() if key not in both_colours)
    positions = Positions(kept, both_colours)
    labelled = [row for row in rows if row.completion and row.task == "environment"]
    transitions = list(exclude_positions(labelled, excluded))
    if not positions or not transitions:
        raise UserError(f"data: expected positions and transitions, got {len(positions)} and {len(transitions)}")
    return positions, transitions


def _key(line: str) -> str:
    """Return the key of the position of a line. Raises ValueError for a line without one."""
    fields = line.split("\t")
    if len(fields) != 3:
        raise ValueError(f"expected source, FEN and moves with centipawns, separated by tabs, got {line[:80]!r}")
    return position_key(parse_fen(fields[1]))


def mirrored(evals: MoveEvals) -> MoveEvals:
    """Return the position with colours exchanged. Its evals are the same."""
    moves = {_mirrored_move(move): pawns for move, pawns in evals.evals_pawns.items()}
    return MoveEvals(chess.Board(evals.fen).mirror().fen(), evals.source, moves)


def _mirrored_move(uci: str) -> str:
    return uci[0] + str(9 - int(uci[1])) + uci[2] + str(9 - int(uci[3])) + uci[4:]
