"""Evaluation of held-out examples by greedy and by sampled completions.

Greedy completions show only the most likely text. Sampled completions have three kinds of keys: `sampled/…` is the
mean over a row's samples, `spread/best/…` the best of them, and `spread/distinct/…` the share of distinct ones. If a
run only makes likely texts more likely, `sampled/…` improves and `spread/best/…` does not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from ..rewards.move_evaluations import MoveEvaluations
from ..rollout.generator import Generator
from ..rollout.groups import completion_text, sample_groups
from ..rollout.sampling import derive_seed
from ..stockfish.analysis import Analysis
from ..tasks import policy_fens
from ..tasks.types import Example
from .keys import BEST, DISTINCT, SAMPLED, lower_is_better
from .table import Row, score_examples

CHUNK_ROWS = 256


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
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Return the scored greedy completion of every example, in the examples' order.

    Greedy decoding uses no random numbers, so a training run's random state does not change. `progress` receives the
    number of completed rows after each chunk and may raise to stop. With `evaluations` the policy rows also have
    `win_probability_loss`. The engine works while the model generates. Raises ScorerError if the engine fails.
    """
    if evaluations is not None:
        evaluations.prepare(fens_of(examples))
    completions: list[str] = []
    analyses: dict[str, Analysis] = {}
    for start in range(0, len(examples), CHUNK_ROWS):
        chunk = examples[start : start + CHUNK_ROWS]
        completions += greedy_texts(generator, tokenizer, chunk)
        if evaluations is not None:
            analyses |= evaluations.analyses(fens_of(chunk))
        progress(len(completions))
    return score_examples(examples, completions, analyses)


def fens_of(examples: Sequence[Example]) -> list[str]:
    """Return the FENs of the policy examples, each once."""
    return list(dict.fromkeys(policy_fens(example.prompt for example in examples).values()))


def greedy_texts(generator: Generator, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]) -> list[str]:
    """Return the greedy completion of each example as text without special tokens."""
    sampled = sample_groups(generator, tokenizer, examples, group_size=1, temperature=0.0)
    return [completion_text(tokenizer, completions[0]) for _, completions in sampled]


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
            texts = [completion_text(tokenizer, completion) for completion in completions]
            rows.append(Row(len(rows), (SAMPLED, example), sampled_values(example, texts, analyses)))
        progress(len(rows))
    return rows


def sampled_values(example: Example, texts: Sequence[str], analyses: Mapping[str, Analysis]) -> dict[str, float]:
    """Return the values of one example from the texts of its samples; there must be at least one."""
    samples = [row.values for row in score_examples([example] * len(texts), texts, analyses)]
    values = {f"{SAMPLED}/{key}": fmean(sample[key] for sample in samples) for key in samples[0]}
    for key in samples[0]:
        best = min if lower_is_better(key) else max
        values[f"{BEST}/{key}"] = best(sample[key] for sample in samples)
    return values | {f"{DISTINCT}/{example.task}": len(set(texts)) / len(texts)}
