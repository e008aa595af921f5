"""The suites of single completions: `policy` and `environment`, held-out examples, and `balanced`, generated prompts.

Of published environment rows 98 in 100 are plain legal moves, so that a constant completion comes near the published
scores. In `balanced` every class of transition has equally many rows and its own values.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chess

from ..board.fen import parse_fen
from ..stockfish.engine import Analysis
from ..tasks import EnvironmentCompletion, Example, ParseFailure, Task, parse_prompt
from ..tasks.classes import TransitionClass, class_prompts, transition_class
from ..tasks.corpus import example_key
from ..tasks.environment import environment_truth, parse_environment, parse_environment_prompt, render_environment
from ..tasks.transitions import illegal_kind
from .completions import CHUNK_ROWS
from .keys import with_slices
from .scoring import MoveEvaluator, score_environment_row, score_next_fen
from .suite import Suite, SuiteName, by_chunks
from .table import Row, Written, score_examples

RECALL_ILLEGAL = f"{Task.environment}/recall_illegal"
# The values of environment rows that mean something for one class alone.
CLASS_KEYS = ("exact", "next_state_accuracy", "outcome_accuracy")
# Left out of `balanced`: these recalls mix classes, each of which has its own values there.
_RECALLS = "recall_"

Complete = Callable[[Sequence[Example]], list[str]]
"""The greedy completions of examples, in their order."""


def held_out_suite(
    task: Task,
    examples: Sequence[Example],
    complete: Complete,
    *,
    trained: Collection[str],
    most: int,
    engine: MoveEvaluator | None = None,
) -> Suite:
    """The first `most` examples of the task whose position is not in `trained` (keys of `example_key`).

    All examples of one position and task stay, because they may have different moves. With `engine` policy rows also
    have `win_probability_loss`; the engine evaluates their positions while the model writes.
    """
    own = [example for example in examples if example.task is task]
    kept = [example for example in own if example_key(example) not in trained]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        if engine is None:
            return held_out_rows(first, chunk, complete(chunk))
        # The next chunk too, so that the engine works while this one is scored.
        engine.prepare(items[first : first + 2 * CHUNK_ROWS])
        completions = complete(chunk)
        return held_out_rows(first, chunk, completions, engine.analyses(chunk))

    items = kept[:most]
    facts: dict[str, Any] = {"rows_in_training": len(own) - len(kept)}
    if engine is not None and task is Task.policy:
        facts |= engine.facts(items)
    return Suite(SuiteName(task.value), items, by_chunks(items, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def held_out_rows(
    first: int,
    examples: Sequence[Example],
    completions: Sequence[str],
    analyses: Mapping[str, Analysis] | None = None,
) -> list[Row]:
    """The rows of held-out examples with all details, the first with index `first`.

    `analyses`, by FEN, add the values of move evaluations.
    """
    rows = score_examples(examples, completions, analyses)
    return [
        Row(
            first + row.index,
            example,
            _refined(_details(example, completion) | dict(row.values), example),
            written=Written(example.prompt, example.completion, completion),
        )
        for row, example, completion in zip(rows, examples, completions, strict=True)
    ]


def _details(example: Example, completion: str) -> dict[str, float]:
    if example.task is Task.policy:
        return {}
    return {f"{Task.environment}/{name}": value for name, value in score_next_fen(example, completion).items()}


def _refined(values: Mapping[str, float], example: Example) -> dict[str, float]:
    """The values, and each `<suite>/<name>` again by the slices of the prompt's position and by its source.

    The recall of illegal moves has a key for each kind of illegal move, too.
    """
    own = {key: value for key, value in values.items() if key.count("/") == 1}
    refined = dict(values) | with_slices(own, parse_fen(parse_prompt(example.prompt).fen))
    if example.source:
        refined |= {f"{key}/from_{example.source}": value for key, value in own.items()}
    recall = own.get(RECALL_ILLEGAL)
    return refined if recall is None else refined | {f"{RECALL_ILLEGAL}/{_illegal_kind(example)}": recall}


def _illegal_kind(example: Example) -> str:
    prompt = parse_environment_prompt(example.prompt)
    try:
        return illegal_kind(parse_fen(prompt.fen), prompt.uci)
    except chess.InvalidMoveError:
        return "no_move"


@dataclass(slots=True)
class BalancedConfig:
    """Number of prompts."""

    rows_per_class: int = 50
    """Rows of each class of transition; `seed` decides them."""

    def __post_init__(self) -> None:
        if self.rows_per_class < 1:
            raise ValueError(f"balanced.rows_per_class: expected 1 or more, got {self.rows_per_class}")


def balanced_suite(config: BalancedConfig, complete: Complete, *, seed: int, excluded: Collection[str]) -> Suite:
    """Equally many prompts of each class, from positions that are not in `excluded` (keys of `example_key`).

    The classes alternate, so that a part of the suite is balanced too.
    """
    prompts = [class_prompts(name, config.rows_per_class, seed=seed, excluded=excluded) for name in TransitionClass]
    items = [prompt for turn in zip(*prompts, strict=True) for prompt in turn]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        texts = complete(chunk)
        return [
            Row(first + i, example, score_balanced_row(example, text), written=_written(example, text))
            for i, (example, text) in enumerate(zip(chunk, texts, strict=True))
        ]

    facts = {"rows_per_class": config.rows_per_class, "positions_excluded": len(excluded)}
    return Suite(SuiteName.balanced, items, by_chunks(items, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def _written(example: Example, completion: str) -> Written:
    truth = environment_truth(parse_environment_prompt(example.prompt))
    return Written(example.prompt, render_environment(truth), completion)


def score_balanced_row(example: Example, completion: str) -> dict[str, float]:
    """The values of an environment row and of its next FEN (see `scoring`) under `balanced/…`, and these:

    - `exact`: all four fields are python-chess's.
    - `outcome_accuracy`: reward and both flags are.

    All also by the slices of the prompt's position; `exact`, `next_state_accuracy` and `outcome_accuracy` also by
    class: `balanced/exact/castling` is the recall of the class. Raises PromptError for a malformed prompt.
    """
    prompt = parse_environment_prompt(example.prompt)
    truth, answer = environment_truth(prompt), parse_environment(completion)
    values = score_environment_row(example, completion) | score_next_fen(example, completion)
    values["exact"] = float(answer == truth)
    values["outcome_accuracy"] = float(not isinstance(answer, ParseFailure) and _outcome(answer) == _outcome(truth))
    board = parse_fen(prompt.fen)
    name = transition_class(board, prompt.uci)
    by_class = {f"{key}/{name}": values[key] for key in CLASS_KEYS}
    kept = {key: value for key, value in values.items() if not key.startswith(_RECALLS)}
    return {f"{SuiteName.balanced}/{key}": value for key, value in (with_slices(kept, board) | by_class).items()}


def _outcome(answer: EnvironmentCompletion) -> tuple[float, bool, bool]:
    return answer.reward, answer.terminated, answer.truncated
