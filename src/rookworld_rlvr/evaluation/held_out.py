"""The suites of held-out examples, `policy` and `environment`: one greedy completion per example."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import chess

from ..board.fen import parse_fen
from ..rewards.move_evaluations import MoveEvaluations
from ..stockfish.analysis import Analysis
from ..tasks import parse_prompt
from ..tasks.corpus import example_key
from ..tasks.environment import parse_environment_prompt
from ..tasks.move_classes import illegal_kind
from ..tasks.types import Example, Task
from .completions import CHUNK_ROWS, fens_of
from .keys import with_slices
from .scoring import score_next_fen
from .suite import Suite, SuiteName, by_chunks
from .table import PromptAndCompletion, Row, score_examples

RECALL_ILLEGAL = f"{Task.environment}/recall_illegal"

Complete = Callable[[Sequence[Example]], list[str]]
"""Function that returns the greedy completions of examples, in their order."""


def held_out_suite(
    task: Task,
    examples: Sequence[Example],
    complete: Complete,
    *,
    trained: Collection[str],
    most: int,
    evaluations: MoveEvaluations | None = None,
) -> Suite:
    """Return the suite of the first `most` examples of the task whose `example_key` is not in `trained`.

    Several examples of one position are all kept, because they may have different moves. With `evaluations`
    policy rows also have `win_probability_loss`. If they have engines, these work while the model generates.
    """
    own = [example for example in examples if example.task is task]
    kept = [example for example in own if example_key(example) not in trained]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        if evaluations is None:
            return held_out_rows(first, chunk, complete(chunk))
        # Request the next chunk too, so that engines work on it while this chunk is scored.
        evaluations.prepare(fens_of(items[first : first + 2 * CHUNK_ROWS]))
        completions = complete(chunk)
        return held_out_rows(first, chunk, completions, evaluations.analyses(fens_of(chunk)))

    items = kept[:most]
    facts: dict[str, Any] = {"rows_in_training": len(own) - len(kept)}
    if evaluations is not None and task is Task.policy:
        facts |= evaluations.facts(fens_of(items))
    return Suite(SuiteName(task.value), items, by_chunks(items, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def held_out_rows(
    first: int,
    examples: Sequence[Example],
    completions: Sequence[str],
    analyses: Mapping[str, Analysis] | None = None,
) -> list[Row]:
    """Return the rows of held-out examples with all detailed values, numbered from `first`.

    `analyses` by FEN add the values of move evaluations.
    """
    rows = score_examples(examples, completions, analyses)
    return [
        Row(
            first + row.index,
            example,
            _refined(_details(example, completion) | dict(row.values), example),
            written=PromptAndCompletion(example.prompt, example.completion, completion),
        )
        for row, example, completion in zip(rows, examples, completions, strict=True)
    ]


def _details(example: Example, completion: str) -> dict[str, float]:
    if example.task is Task.policy:
        return {}
    return {f"{Task.environment}/{name}": value for name, value in score_next_fen(example, completion).items()}


def _refined(values: Mapping[str, float], example: Example) -> dict[str, float]:
    """Return the values, and each `<suite>/<name>` again by the slices of the prompt's position and by its source.

    The recall of illegal moves is also repeated under the kind of the illegal move.
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
