"""Collection: samples are scored in order, and a generator that returns too few completions raises."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from transformers import AutoTokenizer

from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.rewards.evaluation_cache import load_cache
from rookworld_rlvr.rewards.move_evaluations import MoveEvaluations
from rookworld_rlvr.rewards.scorer import RubricScorer
from rookworld_rlvr.rollout.generator import GeneratorError, SampledCompletion
from rookworld_rlvr.rollout.groups import prompt_tokens, rendered, sample_groups, score_groups
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.tasks.chat.prompts import ChatPromptConfig
from rookworld_rlvr.tasks.chat.task import ChatTask
from rookworld_rlvr.tasks.messages import messages_of
from rookworld_rlvr.tasks.types import Example

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
EXAMPLES = [
    Example("environment", f"A: {START}+e2e4+e2e4+", None),
    Example("policy", f"P: {START}", "M: e2e4 d2d4 E: 0.3 0.2 B: e2e4"),
]
Groups = list[list[SampledCompletion]]


@dataclass
class Changed:
    """A real generator whose groups are changed by `change`."""

    real: HFGenerator
    change: Callable[[Groups], Groups]

    def sync(self, model: torch.nn.Module) -> None:
        self.real.sync(model)

    def weights_checksum(self) -> str:
        return self.real.weights_checksum()

    def generate(self, prompts: Any, **settings: Any) -> Groups:
        return self.change(self.real.generate(prompts, **settings))


def test_groups_hold_examples_tokens_and_rubric_scores(policy: Policy, generator: HFGenerator) -> None:
    sampled = sample_groups(generator, policy.tokenizer, EXAMPLES, group_size=3, temperature=1.0, seeds=[0, 1])
    rubric = Rubric(RubricConfig())
    groups = score_groups(
        sampled, policy.tokenizer, EXAMPLES, scorer=RubricScorer(rubric, MoveEvaluations(load_cache("")))
    )
    assert [group.example for group in groups] == EXAMPLES
    for group, (prompt, completions) in zip(groups, sampled, strict=True):
        assert group.prompt_tokens == prompt == prompt_tokens(policy.tokenizer, group.example.prompt)
        assert [sample.completion for sample in group.samples] == completions
        for sample in group.samples:
            assert sample.text == policy.tokenizer.decode(sample.completion.tokens, skip_special_tokens=True)
            example = group.example
            assert sample.score == rubric.score(example.prompt, sample.text, example.completion)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda groups: [], r"0 groups of \[\]"),
        (lambda groups: groups[:1], r"1 groups of \[2\]"),
        (lambda groups: [groups[0], groups[1][:1]], r"2 groups of \[2, 1\]"),
        # A completion without tokens has nothing to train.
        (lambda groups: [groups[0], [replace(groups[1][0], tokens=(), logprobs=()), groups[1][1]]], r"\[2, 1\]"),
    ],
    ids=["nothing", "one group", "half a group", "an empty completion"],
)
def test_generator_that_returns_too_little_raises_with_both_counts(
    policy: Policy, generator: HFGenerator, change: Callable[[Groups], Groups], got: str
) -> None:
    with pytest.raises(GeneratorError, match=f"expected 2 groups of 2 completions, got .*{got}"):
        sample_groups(
            Changed(generator, change), policy.tokenizer, EXAMPLES, group_size=2, temperature=1.0, seeds=[0, 1]
        )


def test_messages_without_a_template_are_plain_text(small_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    asked = [{"role": "system", "content": "Play chess."}, {"role": "user", "content": "Your move?"}]
    assert tokenizer.chat_template is None
    assert rendered(tokenizer, asked) == "Play chess.\n\nYour move?\n\n"
    assert rendered(tokenizer, [*asked, {"role": "assistant", "content": "<answer>"}]).endswith("move?\n\n<answer>")


def test_a_template_is_told_whether_thinking_is_asked_for(chat_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokenizer.chat_template = "{{ messages[-1].content }}{% if enable_thinking %} (think){% else %} (answer){% endif %}"
    for thinking, end in ((True, " (think)"), (False, " (answer)")):
        prompt = ChatTask(ChatPromptConfig(thinking=thinking)).prompt(chess.STARTING_FEN)
        assert rendered(tokenizer, messages_of(prompt) or []).endswith(end)
