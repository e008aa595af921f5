"""The interface of a task: its prompts, how its completions are read, scored, evaluated and drawn.

Everything else in the package asks a task and never which one it is. A task of your own is a subclass, given to
`register`; docs/own-task.md builds one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import chess

from ..board.drawing import Drawing, position
from ..board.fen import parse_fen, require_valid_fen
from ..stockfish.analysis import Analysis
from ..stockfish.move_values import MoveValues
from .keys import Key
from .types import Completion, Example, ParseFailure, Position, PromptError

Weights = Mapping[str, Mapping[str, float]]
"""Weights of the components of each tier (`structure`, `parse` and `correctness`), by the component's name."""


@dataclass(frozen=True, slots=True)
class PositionQuery:
    """Content of a prompt that holds only a position."""

    fen: str


class TaskAudit:
    """Defects of a task's labelled rows. The base class knows none."""

    @property
    def defects(self) -> int:
        """Number of findings of all kinds."""
        return 0

    def add(self, query: Any, label: Any) -> None:
        """Add the findings in a row with this parsed prompt and this parsed label."""

    def lines(self) -> Iterator[str]:
        """Yield the findings as sentences; nothing if there are no rows."""
        yield from ()

    def card(self) -> dict[str, object]:
        """Return the counts that belong into the data card of a file without defects."""
        return {}


def scaled_weights(
    structure: Mapping[str, float],
    parse: Mapping[str, float],
    correctness: Mapping[str, tuple[str, float]],
    factors: Any,
) -> Weights:
    """Return the weights of three tiers. A component of the third has a group, whose factor is a field of `factors`."""
    scaled = {name: float(getattr(factors, group)) * weight for name, (group, weight) in correctness.items()}
    return {"structure": structure, "parse": parse, "correctness": scaled}


class Task(ABC):
    """A task. Its `name` is in configurations, in the names of metrics and in files, and must be one plain word.

    The methods below "Prompts", "Completions" and "Rewards" make it trainable, those below "Evaluation" measurable.
    """

    name: ClassVar[str]
    prefix: ClassVar[str] = ""
    """Text with which all prompts of the task begin, and no prompt of another task."""
    max_new_tokens: int = 144
    """Maximum number of tokens of a completion if `generator.max_new_tokens` leaves it to the task."""
    from_positions: ClassVar[bool] = True
    """Whether a position is enough to make an example; see `from_position`."""
    names_move: ClassVar[bool] = False
    """Whether a completion names a move to play. Its rewards then get the values of the position's moves, and the task
    can play games."""
    weights: ClassVar[Weights]
    """Weights of the components of the reward; see `components`."""
    keys: ClassVar[Mapping[str, Key]]
    """Evaluation keys `<name>/<key>` by full name; see `values`."""
    headline: ClassVar[tuple[str, ...]] = ()
    """Keys of `keys` that a report shows first and that are tested for changes."""
    decision_key: ClassVar[str]
    """Key of `keys`, higher is better, that decides which checkpoint is the best. It must need no engine."""

    # Prompts

    def owns(self, prompt: str) -> bool:
        """Return whether a prompt is one of this task, however malformed."""
        return bool(self.prefix) and prompt.startswith(self.prefix)

    def prompt(self, fen: str) -> str:
        """Return the prompt of a position."""
        return self.prefix + fen

    def query(self, prompt: str) -> Any:
        """Parse a prompt. The result has at least a `fen`. Raises PromptError for a malformed prompt."""
        try:
            return PositionQuery(require_valid_fen(prompt.removeprefix(self.prefix)).fen())
        except ValueError as error:
            raise PromptError(f"expected '{self.prefix}<FEN>', got {prompt!r}: {error}") from error

    def split(self, line: str) -> tuple[str, str | None]:
        """Split a line of text into prompt and completion (None without one)."""
        return line, None

    def configured(self, options: Any) -> "Task":
        """Return the task with the options of `data.<name>`; the task itself if the configuration has none."""
        return self

    def from_position(self, position: Position) -> Example | None:
        """Return the example of a position; None if it has none, because no move is legal."""
        board = parse_fen(position.fen)
        return Example(self.name, self.prompt(board.fen()), None, position.source) if any(board.legal_moves) else None

    def position(self, example: Example) -> Position | None:
        """Return the position of an example, from which other tasks make their own; None if there is none to share."""
        return Position(self.query(example.prompt).fen, None, example.source)

    # Completions

    @abstractmethod
    def parse(self, completion: Completion, query: Any) -> Any:
        """Parse a completion strictly, or return the ParseFailure that says why it is malformed."""

    # Rewards

    def tier_weights(self, options: Any) -> Weights:
        """Return the weights of the components. `options` are those of `rubric.<name>`; None if there are none."""
        return self.weights

    def truth(self, query: Any, label: str | None) -> Any:
        """Return what `components` and `values` compare with, from the rules and the label.

        It is computed once per prompt. That of a task that names a move has `legal`, the legal moves, and `label`,
        which is None without one. Raises LabelError for a malformed label.
        """
        return query

    def components(
        self, completion: Completion, truth: Any, values: MoveValues | None, options: Any
    ) -> dict[str, float]:
        """Return the components of the reward that apply, each in [0, 1], as `tier/name`.

        The truth decides which apply, never the completion, so that leaving something out gains nothing. If `parse`
        finds no failure, all components of the first tier must be 1. `values` has the values of the position's moves if
        the task names a move and they are known. A task that needs more than this implements `score`.
        """
        raise NotImplementedError(f"the task {self.name} has no components")

    def score(
        self, completion: Completion, query: Any, truth: Any, values: MoveValues | None, options: Any
    ) -> tuple[dict[str, float], ParseFailure | None]:
        """Return the components, and the failure of a completion that `parse` refuses."""
        parsed = self.parse(completion, query)
        components = self.components(completion, truth, values, options)
        return components, parsed if isinstance(parsed, ParseFailure) else None

    def move_value(self, move: str, values: MoveValues, options: Any) -> float:
        """Return the value in [0, 1] of a legal move as the move that a completion names."""
        return values.value(move, options.halving_loss)

    def before_move(self, completion: str, query: Any) -> str | None:
        """Return the beginning of a completion up to the place where it names its move, or its first candidate.

        There the objective trains the expected value over all legal moves. None if the completion has no such place.
        """
        return None

    def opening(self, query: Any) -> str | None:
        """Return the beginning of a completion up to its move, as a label has it; None if other words come first.

        There a model chooses among the legal moves, see `evaluation.legal_choice`.
        """
        return None

    def move_text(self, move: str, query: Any) -> str:
        """Return the text that names a legal move, given in UCI, at that place."""
        raise NotImplementedError(f"the task {self.name} has no place for a move")

    def after_move(self, query: Any) -> str | None:
        """Return the text that ends a move at that place; empty if the completion ends there.

        Its first token counts as part of the move: without it a model learns to list legal moves and never to end.
        None if other text follows.
        """
        return None

    # Evaluation

    @abstractmethod
    def values(self, example: Example, completion: Completion, analysis: Analysis | None) -> dict[str, float]:
        """Return the values of a completion by full key. Their set depends only on the example and on `analysis`."""

    def details(self, example: Example, completion: Completion) -> dict[str, float]:
        """Return further values that only `rookworld evaluate` computes."""
        return {}

    def audit(self) -> TaskAudit:
        """Return a new, empty audit of this task's rows."""
        return TaskAudit()

    def corrected(self, example: Example, query: Any, label: Any) -> Example | ParseFailure:
        """Return a labelled example without the defects that an audit finds, or why it must be dropped."""
        return example

    def draw(self, prompt: str, completion: str) -> Drawing:
        """Return a drawing of a completion. The base class draws the position alone."""
        return Drawing([position(chess.Board(self.query(prompt).fen), [])])

    # Games, for a task that names a move

    def move(self, completion: str, query: Any) -> str:
        """Return the move that a completion names, in UCI if it can be read as a move, or its text; empty without."""
        raise NotImplementedError(f"the task {self.name} names no move")

    def candidates(self, completion: str, query: Any) -> Mapping[str, float]:
        """Return the legal candidates with their evals in pawns, in their order; empty if there are none."""
        return {}
