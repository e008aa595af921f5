"""Held-out rows answered several times at the training temperature: what a model says when it is sampled.

Greedy answers show the likeliest text alone. If a run only made the likely likelier, sampled answers gain and the best
of several does not: `sampled/…` is the mean over a row's samples, `spread/best/…` the best of them, and
`spread/distinct/…` the share of them that differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from ..rollout.generator import Generator
from ..rollout.groups import completion_text, sample_groups
from ..rollout.sampling import derive_seed
from ..stockfish.engine import Analysis
from ..tasks import Example
from .engine_loss import MoveEvaluator
from .run import CHUNK_ROWS
from .scales import BEST, DISTINCT, SAMPLED, lower_is_better
from .table import Row, score_examples


@dataclass(frozen=True, slots=True)
class Sampling:
    """How rows are sampled."""

    temperature: float
    samples: int = 8
    """Answers a row."""
    seed: int = 0
    """Decides with each row's prompt what is drawn for it."""


def evaluate_sampled(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    sampling: Sampling,
    *,
    first_index: int = 0,
    measure: MoveEvaluator | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """A row an example, in order, numbered from `first_index`; see the module for its keys.

    `progress` is told how many rows are answered and may raise to stop. Raises GeneratorError or ScorerError.
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
        analyses = measure.analyses(chunk) if measure else {}
        for example, (_, answers) in zip(chunk, groups, strict=True):
            texts = [completion_text(tokenizer, answer) for answer in answers]
            index = first_index + len(rows)
            rows.append(Row(index, (SAMPLED, example), sampled_values(example, texts, analyses)))
        progress(len(rows))
    return rows


def sampled_values(example: Example, texts: Sequence[str], analyses: Mapping[str, Analysis]) -> dict[str, float]:
    """The values of one example's samples, at least one."""
    judged = [row.values for row in score_examples([example] * len(texts), texts, analyses)]
    values = {f"{SAMPLED}/{key}": fmean(values[key] for values in judged) for key in judged[0]}
    for key in judged[0]:
        best = min if lower_is_better(key) else max
        values[f"{BEST}/{key}"] = best(values[key] for values in judged)
    return values | {f"{DISTINCT}/{example.task}": len(set(texts)) / len(texts)}
