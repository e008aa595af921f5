"""Types that tasks share: prompts, completions, failures and examples."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar


class FailureReason(StrEnum):
    """Reason why a completion is malformed, or why a row of data is not an example. Counts have these names."""

    empty = "empty"
    missing_field = "missing_field"
    repeated_field = "repeated_field"
    field_order = "field_order"
    extra_text = "extra_text"
    bad_move = "bad_move"
    too_many_moves = "too_many_moves"
    bad_eval = "bad_eval"
    unaligned_evals = "unaligned_evals"
    bad_fen = "bad_fen"
    bad_reward = "bad_reward"
    bad_flag = "bad_flag"
    # Only for answers to chat prompts. The last of them is that of a completion that did not end by itself.
    no_answer = "no_answer"
    two_answers = "two_answers"
    other_form = "other_form"
    unfinished_thinking = "unfinished_thinking"
    cut_off = "cut_off"
    # Only for rows of data: a malformed prompt; a row that is neither text nor an object with the required columns.
    bad_prompt = "bad_prompt"
    bad_row = "bad_row"


class PromptError(ValueError):
    """Malformed prompt. It is an error in the data, not in a completion, and is never scored."""


class LabelError(ValueError):
    """Malformed label. It is an error in the data, not in a completion, and is never scored."""


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """First error that the strict parser found in a completion."""

    reason: FailureReason
    detail: str
    """The offending text or a count; for people to read, not for code."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The text that a model wrote after a prompt."""

    text: str
    finished: bool = True
    """True if it ended by itself, not by the length limit."""

    @classmethod
    def of(cls, written: "str | Completion") -> "Completion":
        """Return a completion. A text stands for one that ended by itself."""
        return cls(written) if isinstance(written, str) else written


@dataclass(frozen=True, slots=True)
class PolicyPrompt:
    """Content of a `P:` prompt, which asks for candidates, evals and the best move in a position."""

    fen: str


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """Content of an `A:` prompt, which asks for the transition of a move from a position."""

    fen: str
    uci: str
    """The move as the prompt gives it; it may be illegal or not a move at all."""
    history: tuple[str, ...]
    """The last moves, oldest first, ending with `uci`; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PolicyCompletion:
    """Well-formed policy completion. Its moves have UCI form; the rewards decide whether they are legal."""

    moves: tuple[str, ...]
    """One to five candidates, in any order."""
    evals_pawns: tuple[float, ...]
    """One eval per candidate, in the same order, from the side to move's view; mates as in `board.evals`."""
    best: str


C = TypeVar("C")


def require_parsed(label: str, parsed: C | ParseFailure) -> C:
    """Return the parsed content of `label`. Raises LabelError if it is a failure."""
    if isinstance(parsed, ParseFailure):
        raise LabelError(f"expected a label that parses, got {label!r}: {parsed.reason} {parsed.detail}")
    return parsed


@dataclass(frozen=True, slots=True)
class Example:
    """One row of data: a prompt and, if known, its reference completion."""

    task: str
    """Name of the task."""
    prompt: str
    """The prompt as the model reads it: a text, or chat messages as JSON."""
    completion: str | None
    """The completion that the model should write (the label), or None."""
    source: str = ""
    """Source of the position according to the data, such as `engine` or `opening`; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position of the data, from which a task makes an example."""

    fen: str
    best: str | None = None
    """The best move according to the data, UCI; None if it is unknown."""
    source: str = ""
    """As in `Example`."""
