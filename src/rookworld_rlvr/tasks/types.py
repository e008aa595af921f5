"""Types that both tasks share: prompts, parsed completions, failures and examples."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar


class Task(StrEnum):
    """The two tasks, chosen by a prompt's prefix."""

    policy = "policy"
    environment = "environment"


class FailureReason(StrEnum):
    """Why a completion is malformed, or a row of data no example; counted under these names."""

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
    # Of rows of data only: a malformed prompt; neither text nor an object with the columns wanted.
    bad_prompt = "bad_prompt"
    bad_row = "bad_row"


class PromptError(ValueError):
    """A malformed prompt: ours to mend, never scored."""


class LabelError(ValueError):
    """A malformed label: ours to mend, never scored."""


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """The first thing that the strict parser refused in a completion."""

    reason: FailureReason
    detail: str
    """The offending text or a count; for people, not for code."""


@dataclass(frozen=True, slots=True)
class PolicyPrompt:
    """`P:` prompts for candidates, evals and the best move in a position."""

    fen: str

    @property
    def task(self) -> Task:
        return Task.policy


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """`A:` prompts for the transition of a move from a position."""

    fen: str
    uci: str
    """The move as given; it may be illegal or no move at all."""
    history: tuple[str, ...]
    """The last moves, oldest first, `uci` last; empty if unknown."""

    @property
    def task(self) -> Task:
        return Task.environment


Prompt = PolicyPrompt | EnvironmentPrompt


@dataclass(frozen=True, slots=True)
class PolicyCompletion:
    """A well-formed policy completion; the moves are UCI, the rewards decide about their legality."""

    moves: tuple[str, ...]
    """One to five candidates, in no order."""
    evals_pawns: tuple[float, ...]
    """One eval per candidate, same index; the side to move's view; mates as in `board.evals`."""
    best: str


@dataclass(frozen=True, slots=True)
class EnvironmentCompletion:
    """A well-formed environment completion."""

    next_fen: str
    reward: float
    terminated: bool
    truncated: bool


ParsedCompletion = PolicyCompletion | EnvironmentCompletion
C = TypeVar("C", PolicyCompletion, EnvironmentCompletion)


def require_parsed(label: str, parsed: C | ParseFailure) -> C:
    """The parsed content of `label`. Raises LabelError if that is a failure."""
    if isinstance(parsed, ParseFailure):
        raise LabelError(f"expected a label that parses, got {label!r}: {parsed.reason} {parsed.detail}")
    return parsed


@dataclass(frozen=True, slots=True)
class Example:
    """One row of data: a prompt and, where known, its reference completion."""

    task: Task
    prompt: str
    """As the model reads it."""
    completion: str | None
    """As the model should write it (the label), or None."""
    source: str = ""
    """Source of the position, as the data say: `engine`, `opening`; empty if they do not."""
