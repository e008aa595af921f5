"""The suites `policy` and `environment`: held-out rows under the published names, by colour and phase."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import chess

from ..board.fen import parse_fen
from ..board.phase import phase_of
from ..tasks import Example, Task, parse_prompt
from ..tasks.corpus import example_key
from .fen_errors import judge_next_fen
from .run import CHUNK_ROWS
from .suite import Suite, SuiteName, by_chunks
from .table import Row, judge

Complete = Callable[[Sequence[Example]], list[str]]
"""The greedy completions of examples, in their order."""


def held_out_suite(
    task: Task, examples: Sequence[Example], complete: Complete, *, trained: Collection[str], most: int
) -> Suite:
    """The first `most` of the task's examples whose position is none of `trained` (keys, as `example_key` has them).

    Of several examples with one position and task all stay: they may ask for different moves.
    """
    own = [example for example in examples if example.task is task]
    kept = [example for example in own if example_key(example) not in trained]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        return judged(first, chunk, complete(chunk))

    asked = kept[:most]
    facts = {"rows_in_training": len(own) - len(kept)}
    return Suite(SuiteName(task.value), asked, by_chunks(asked, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def judged(first: int, examples: Sequence[Example], completions: Sequence[str]) -> list[Row]:
    """The rows of held-out examples, the first of index `first`, in all the detail that this evaluation has."""
    return [
        Row(first + row.index, example, refined(_details(example, completion) | dict(row.values), example))
        for row, example, completion in zip(judge(examples, completions), examples, completions, strict=True)
    ]


def _details(example: Example, completion: str) -> dict[str, float]:
    if example.task is Task.policy:
        return {}
    return {f"{Task.environment}/{name}": value for name, value in judge_next_fen(example, completion).items()}


def refined(values: Mapping[str, float], example: Example) -> dict[str, float]:
    """The values, each of `<suite>/<name>` also by the colour to move and the phase of the prompt's position.

    >>> prompt = "P: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    >>> refined({"policy/valid": 1.0}, Example(Task.policy, prompt, None))
    {'policy/valid': 1.0, 'policy/valid/white': 1.0, 'policy/valid/opening': 1.0}
    """
    board = parse_fen(parse_prompt(example.prompt).fen)
    parts = (chess.COLOR_NAMES[board.turn], phase_of(board).value)
    own = {key: value for key, value in values.items() if key.count("/") == 1}
    return dict(values) | {f"{key}/{part}": value for part in parts for key, value in own.items()}
