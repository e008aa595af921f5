"""Evaluation of held-out examples by greedy and by sampled completions, and the suites of the tasks.

Greedy completions show only the most likely text. Sampled completions have three kinds of keys: `sampled/…` is the
mean over a row's samples, `spread/best/…` the best of them, and `spread/distinct/…` the share of distinct ones. If a
run only makes likely texts more likely, `sampled/…` improves and `spread/best/…` does not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..board.fen import parse_fen
from ..rewards.move_evaluations import MoveEvaluations
from ..rollout.generator import Generator
from ..rollout.groups import sample_groups, sampled_text
from ..rollout.sampling import derive_seed
from ..stockfish.analysis import Analysis
from ..tasks import fens_of_moves, task_named
from ..tasks.corpus import example_key
from ..tasks.types import Completion, Example
from .keys import BEST, DISTINCT, SAMPLED, lower_is_better, with_slices
from .players import rule_losses
from .suite import Suite, by_chunks
from .table import PromptAndCompletion, Row, score_examples

CHUNK_ROWS = 256


Choose = Callable[[Sequence[Example], Mapping[str, Analysis]], list[dict[str, float]]]
"""Function that returns further values of examples, from the analyses of their positions; see `legal_choice`."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of sampled completions."""

    temperature: float
    samples: int = 8
    """Completions per row."""
    seed: int = 0
    """Seed of the samples. A row's samples depend on this seed and on the row's prompt."""


def evaluate(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    evaluations: MoveEvaluations | None = None,
    choose: Choose | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Return the scored greedy completion of every example, in the examples' order.

    Greedy decoding uses no random numbers, so a training run's random state does not change. `progress` receives the
    number of completed rows after each chunk and may raise to stop. With `evaluations` the policy rows also have
    `win_probability_loss`, and with `choose` its values. The engine works while the model generates. Raises ScorerError
    if the engine fails.
    """
    if evaluations is not None:
        evaluations.prepare(fens_of(examples))
    completions, chosen = list[Completion](), list[dict[str, float]]()
    analyses: dict[str, Analysis] = {}
    for start in range(0, len(examples), CHUNK_ROWS):
        chunk = examples[start : start + CHUNK_ROWS]
        completions += greedy_completions(generator, tokenizer, chunk)
        if evaluations is not None:
            analyses |= evaluations.analyses(fens_of(chunk))
        chosen += choose(chunk, analyses) if choose else [{}] * len(chunk)
        progress(len(completions))
    rows = score_examples(examples, completions, analyses)
    return [replace(row, values={**row.values, **values}) for row, values in zip(rows, chosen, strict=True)]


def fens_of(examples: Sequence[Example]) -> list[str]:
    """Return the FENs of the examples whose task names a move, each once."""
    return list(dict.fromkeys(fens_of_moves(example.prompt for example in examples).values()))


def greedy_completions(
    generator: Generator, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]
) -> list[Completion]:
    """Return the greedy completion of each example, without special tokens."""
    sampled = sample_groups(generator, tokenizer, examples, group_size=1, temperature=0.0)
    return [sampled_text(tokenizer, completions[0]) for _, completions in sampled]


def evaluate_sampled(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    sampling: Sampling,
    *,
    evaluations: MoveEvaluations | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Return one row per example, in order and numbered from 0. The module's docstring explains the keys.

    `progress` receives the number of completed rows and may raise to stop. Raises GeneratorError or ScorerError.
    """
    rows: list[Row] = []
    for start in range(0, len(examples), CHUNK_ROWS // sampling.samples):
        chunk = examples[start : start + CHUNK_ROWS // sampling.samples]
        groups = sample_groups(
            generator,
            tokenizer,
            chunk,
            group_size=sampling.samples,
            temperature=sampling.temperature,
            seeds=[derive_seed("sampled", sampling.seed, example.prompt) for example in chunk],
        )
        analyses = evaluations.analyses(fens_of(chunk)) if evaluations else {}
        for example, (_, completions) in zip(chunk, groups, strict=True):
            texts = [sampled_text(tokenizer, completion) for completion in completions]
            rows.append(Row(len(rows), (SAMPLED, example), sampled_values(example, texts, analyses)))
        progress(len(rows))
    return rows


def sampled_values(
    example: Example, texts: Sequence[str | Completion], analyses: Mapping[str, Analysis]
) -> dict[str, float]:
    """Return the values of one example from its samples, of which there must be at least one."""
    samples = [row.values for row in score_examples([example] * len(texts), texts, analyses)]
    values = {f"{SAMPLED}/{key}": fmean(sample[key] for sample in samples) for key in samples[0]}
    for key in samples[0]:
        best = min if lower_is_better(key) else max
        values[f"{BEST}/{key}"] = best(sample[key] for sample in samples)
    return values | {f"{DISTINCT}/{example.task}": len(set(texts)) / len(texts)}


@dataclass(frozen=True, slots=True)
class MoveMeasures:
    """The evaluations behind the moves of a suite's rows, and the values that are made of them."""

    evaluations: MoveEvaluations
    choose: Choose | None = None
    """Further values of rows, which need these evaluations."""


Complete = Callable[[Sequence[Example]], Sequence[str | Completion]]
"""Function that returns the greedy completions of examples, in their order."""


def held_out_suite(
    task: str,
    examples: Sequence[Example],
    complete: Complete,
    *,
    trained: Collection[str],
    most: int,
    measures: MoveMeasures | None = None,
) -> Suite:
    """Return the suite of the first `most` examples of the task whose `example_key` is not in `trained`.

    Several examples of one position are all kept, because they may have different moves. With `measures` the rows
    of a task that names a move also have its loss. If they have engines, these work while the model generates. If they
    come from a cache, the result of the suite has `rules`, the losses of simple rules in the same positions.
    """
    own = [example for example in examples if example.task == task]
    kept = [example for example in own if example_key(example) not in trained]

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        if measures is None:
            return held_out_rows(first, chunk, complete(chunk))
        # Request the next chunk too, so that engines work on it while this chunk is scored.
        measures.evaluations.prepare(fens_of(items[first : first + 2 * CHUNK_ROWS]))
        completions = complete(chunk)
        analyses = measures.evaluations.analyses(fens_of(chunk))
        rows = held_out_rows(first, chunk, completions, analyses)
        values = measures.choose(chunk, analyses) if measures.choose else [{}] * len(chunk)
        return [replace(row, values={**row.values, **added}) for row, added in zip(rows, values, strict=True)]

    items = kept[:most]
    facts: dict[str, Any] = {"rows_in_training": len(own) - len(kept)}
    if measures is not None and task_named(task).names_move:
        facts |= measures.evaluations.facts(fens_of(items))

    def rules(rows: Sequence[Row]) -> dict[str, Any]:
        if measures is None or "move_evals" not in facts:
            return {}
        return {"rules": rule_losses(measures.evaluations.analyses(fens_of(items)))}

    return Suite(task, items, by_chunks(items, CHUNK_ROWS, answer), CHUNK_ROWS, facts, conclude=rules)


def held_out_rows(
    first: int,
    examples: Sequence[Example],
    completions: Sequence[str | Completion],
    analyses: Mapping[str, Analysis] | None = None,
) -> list[Row]:
    """Return the rows of held-out examples with all detailed values, numbered from `first`.

    `analyses` by FEN add the values of move evaluations.
    """
    answers = list(map(Completion.of, completions))
    rows = score_examples(examples, answers, analyses)
    return [
        Row(
            first + row.index,
            example,
            _refined(task_named(example.task).details(example, completion) | dict(row.values), example),
            written=PromptAndCompletion(example.prompt, example.completion, completion.text),
        )
        for row, example, completion in zip(rows, examples, answers, strict=True)
    ]


def _refined(values: Mapping[str, float], example: Example) -> dict[str, float]:
    """Return the values, and each `<suite>/<name>` again by the slices of the prompt's position and by its source."""
    own = {key: value for key, value in values.items() if key.count("/") == 1}
    refined = dict(values) | with_slices(own, parse_fen(task_named(example.task).query(example.prompt).fen))
    if example.source:
        refined |= {f"{key}/from_{example.source}": value for key, value in own.items()}
    return refined
