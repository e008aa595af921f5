"""Prompts and scores of this folder's two tasks, for lm-evaluation-harness.

The questions are the held-out rows that ship with the package, and the scores are those of `rookworld evaluate`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from rookworld_rlvr.evaluation.completions import fens_of
from rookworld_rlvr.evaluation.table import score_examples
from rookworld_rlvr.rewards.evaluation_cache import DEFAULT, load_cache
from rookworld_rlvr.rewards.move_evaluations import MoveEvaluations
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import HELD_OUT_FILE, default_file


def policy_rows(**_: Any) -> dict[str, datasets.Dataset]:
    """Return the held-out `P:` rows as the split `test`. The harness passes its `--metadata`, which is not used."""
    return _rows("policy")


def environment_rows(**_: Any) -> dict[str, datasets.Dataset]:
    """Return the held-out `A:` rows as the split `test`. The harness passes its `--metadata`, which is not used."""
    return _rows("environment")


def score(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return the values of one completion by key without the task's name, such as `best_move_accuracy`.

    A row lacks the keys that do not apply to it, such as `recall_win` after a move that is not mate; the harness takes
    the mean over the rows that have a key, as `rookworld evaluate` does.
    """
    example = Example(doc["task"], doc["prompt"], doc["expected"])
    [completion] = results
    analyses = MoveEvaluations(load_cache(DEFAULT)).analyses(fens_of([example]))
    [row] = score_examples([example], [completion], analyses)
    return {key.partition("/")[2]: value for key, value in row.values.items() if key.count("/") == 1}


def _rows(task: str) -> dict[str, datasets.Dataset]:
    examples = [each for each in read_corpus(default_file(HELD_OUT_FILE)).examples if each.task == task]
    rows = [{"task": str(task), "prompt": each.prompt, "expected": each.completion} for each in examples]
    return {"test": datasets.Dataset.from_list(rows)}
