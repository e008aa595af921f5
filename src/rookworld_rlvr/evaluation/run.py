"""Held-out rows, answered greedily and judged."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from ..rollout.generator import Generator
from ..rollout.groups import completion_text, sample_groups
from ..stockfish.engine import Analysis
from ..tasks import Example
from .engine_loss import MoveEvaluator
from .table import Row, score_examples

CHUNK_ROWS = 256


def evaluate(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    engine: MoveEvaluator | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Judge the greedy completion of every example; rows in the examples' order.

    Greedy decoding draws nothing, so the random state of a training run is left as it is. `progress` is told how many
    rows are answered, chunk by chunk, and may raise to stop. With `engine` the policy rows have `win_probability_loss`
    too; it looks at their positions while the model writes. Raises ScorerError where it fails.
    """
    if engine is not None:
        engine.prepare(examples)
    completions: list[str] = []
    analyses: dict[str, Analysis] = {}
    for start in range(0, len(examples), CHUNK_ROWS):
        chunk = examples[start : start + CHUNK_ROWS]
        completions += greedy_texts(generator, tokenizer, chunk)
        if engine is not None:
            analyses |= engine.analyses(chunk)
        progress(len(completions))
    return score_examples(examples, completions, analyses)


def greedy_texts(generator: Generator, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]) -> list[str]:
    """The greedy completion of each example, as a reader sees it."""
    sampled = sample_groups(generator, tokenizer, examples, group_size=1, temperature=0.0)
    return [completion_text(tokenizer, answers[0]) for _, answers in sampled]
