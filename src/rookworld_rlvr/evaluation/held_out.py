"""The suites `policy` and `environment`: held-out rows under the published names, by colour and phase."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import chess

from ..board.fen import parse_fen
from ..stockfish.engine import Analysis
from ..tasks import Example, Task, parse_prompt
from ..tasks.corpus import example_key
from ..tasks.environment import parse_environment_prompt
from ..tasks.transitions import illegal_kind
from .engine_loss import MoveEvaluator
from .fen_errors import score_next_fen
from .parts import refined
from .run import CHUNK_ROWS
from .suite import Suite, SuiteName, by_chunks
from .table import Row, Written, score_examples

RECALL_ILLEGAL = f"{Task.environment}/recall_illegal"

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
    """The first `most` of the task's examples whose position is none of `trained` (keys, as `example_key` has them).

    All examples of one position and task stay, because they may ask for different moves. With `engine` policy rows
    also have `win_probability_loss`; the engine looks at their positions while the model writes.
    """
    own = [example for example in examples if example.task is task]
    kept = [example for example in own if example_key(example) not in trained]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        if engine is None:
            return held_out_rows(first, chunk, complete(chunk))
        # And at the next chunk's, while this one is judged.
        engine.prepare(asked[first : first + 2 * CHUNK_ROWS])
        completions = complete(chunk)
        return held_out_rows(first, chunk, completions, engine.analyses(chunk))

    asked = kept[:most]
    facts: dict[str, Any] = {"rows_in_training": len(own) - len(kept)}
    if engine is not None and task is Task.policy:
        facts |= engine.facts(asked)
    return Suite(SuiteName(task.value), asked, by_chunks(asked, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def held_out_rows(
    first: int,
    examples: Sequence[Example],
    completions: Sequence[str],
    analyses: Mapping[str, Analysis] | None = None,
) -> list[Row]:
    """The rows of held-out examples, the first of index `first`, in all the detail that this evaluation has.

    `analyses`, by FEN, add what an engine says.
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
    """The values, and each of `<suite>/<name>` again by the parts of the prompt's position and by its source.

    Whether an illegal move is told is also by its kind.
    """
    own = {key: value for key, value in values.items() if key.count("/") == 1}
    found = dict(values) | refined(own, parse_fen(parse_prompt(example.prompt).fen))
    if example.source:
        found |= {f"{key}/from_{example.source}": value for key, value in own.items()}
    told = own.get(RECALL_ILLEGAL)
    return found if told is None else found | {f"{RECALL_ILLEGAL}/{_illegal_kind(example)}": told}


def _illegal_kind(example: Example) -> str:
    asked = parse_environment_prompt(example.prompt)
    try:
        return illegal_kind(parse_fen(asked.fen), asked.uci)
    except chess.InvalidMoveError:
        return "no_move"
