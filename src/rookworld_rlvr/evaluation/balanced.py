"""The suite `balanced`: environment prompts of our own, as many of each class of transition.

Of published environment rows 98 in 100 are plain legal moves, so that a constant answer comes near the published
scores. Here each class counts the same, and each has its own figures.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..board.fen import parse_fen
from ..tasks import EnvironmentCompletion, Example, ParseFailure
from ..tasks.classes import TransitionClass, class_prompts, transition_class
from ..tasks.environment import environment_truth, parse_environment, parse_environment_prompt, render_environment
from .environment import score_environment_row
from .fen_errors import score_next_fen
from .held_out import Complete
from .parts import refined
from .run import CHUNK_ROWS
from .suite import Suite, SuiteName, by_chunks
from .table import Row, Written

# Of the environment's values those that have a meaning for one class alone.
OF_A_CLASS = ("exact", "next_state_accuracy", "outcome_accuracy")
# In a set balanced by class these recalls mix classes that do not belong together; each class has its own.
_LEFT_OUT = "recall_"


@dataclass(slots=True)
class BalancedConfig:
    """How many prompts there are."""

    rows_per_class: int = 50
    """Rows of each class of transition; `seed` decides them."""

    def __post_init__(self) -> None:
        if self.rows_per_class < 1:
            raise ValueError(f"balanced.rows_per_class: expected 1 or more, got {self.rows_per_class}")


def balanced_suite(config: BalancedConfig, complete: Complete, *, seed: int, excluded: Collection[str]) -> Suite:
    """As many prompts of each class, from positions that are none of `excluded` (keys as `example_key` has them).

    The classes take turns, so that a part of the suite is balanced too.
    """
    prompts = [class_prompts(name, config.rows_per_class, seed=seed, excluded=excluded) for name in TransitionClass]
    asked = [prompt for turn in zip(*prompts, strict=True) for prompt in turn]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        texts = complete(chunk)
        return [
            Row(first + i, example, score_balanced_row(example, text), written=_written(example, text))
            for i, (example, text) in enumerate(zip(chunk, texts, strict=True))
        ]

    facts = {"rows_per_class": config.rows_per_class, "positions_excluded": len(excluded)}
    return Suite(SuiteName.balanced, asked, by_chunks(asked, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def _written(example: Example, completion: str) -> Written:
    truth = environment_truth(parse_environment_prompt(example.prompt))
    return Written(example.prompt, render_environment(truth), completion)


def score_balanced_row(example: Example, completion: str) -> dict[str, float]:
    """The values of an environment row and of its next FEN (see the two judges) under `balanced/…`, and these:

    - `exact`: all four fields are python-chess's.
    - `outcome_accuracy`: reward and both flags are.

    All also by the parts of the prompt's position; `exact`, `next_state_accuracy` and `outcome_accuracy` by class too,
    `balanced/exact/castling`: the recall of the class. Raises PromptError for a malformed prompt.
    """
    asked = parse_environment_prompt(example.prompt)
    truth, answer = environment_truth(asked), parse_environment(completion)
    values = score_environment_row(example, completion) | score_next_fen(example, completion)
    values["exact"] = float(answer == truth)
    values["outcome_accuracy"] = float(not isinstance(answer, ParseFailure) and _outcome(answer) == _outcome(truth))
    board = parse_fen(asked.fen)
    name = transition_class(board, asked.uci)
    by_class = {f"{key}/{name}": values[key] for key in OF_A_CLASS}
    kept = {key: value for key, value in values.items() if not key.startswith(_LEFT_OUT)}
    return {f"{SuiteName.balanced}/{key}": value for key, value in (refined(kept, board) | by_class).items()}


def _outcome(answer: EnvironmentCompletion) -> tuple[float, bool, bool]:
    return answer.reward, answer.terminated, answer.truncated
