"""The words both tasks share: tasks, prompts, answers, failures, examples."""

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """The two tasks, chosen by a prompt's prefix."""

    policy = "policy"
    environment = "environment"


class FailureReason(StrEnum):
    """Why a completion is not an answer, or a row of data no example; counted under these names."""

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


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """What kept a completion from being an answer."""

    reason: FailureReason
    detail: str
    """The offending text or a count; for people, not for code."""


@dataclass(frozen=True, slots=True)
class PolicyPrompt:
    """`P:` asks for candidates, evals and the best move in a position."""

    fen: str

    @property
    def task(self) -> Task:
        return Task.policy


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """`A:` asks for the transition of a move from a position."""

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
class PolicyAnswer:
    """A well-formed policy completion; the moves are UCI, their legality is for the judge."""

    moves: tuple[str, ...]
    """One to five candidates, in no order."""
    evals_pawns: tuple[float, ...]
    """One eval a candidate, same index; the side to move's view; mates as in `board.evals`."""
    best: str


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """A well-formed environment completion."""

    next_fen: str
    reward: float
    terminated: bool
    truncated: bool


Answer = PolicyAnswer | EnvironmentAnswer


@dataclass(frozen=True, slots=True)
class Example:
    """One row of data: a prompt and, where known, its reference completion."""

    task: Task
    prompt: str
    """As the model reads it."""
    completion: str | None
    """As the model should write it (the label), or None."""
    source: str = ""
    """Where the position comes from, as the data say: `engine`, `opening`; empty if they do not."""
