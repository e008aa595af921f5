"""`python studies/updates.py KIND OVERRIDES`: `rookworld train` with another update, of a kind below.

Prompts, optimiser, schedules, evaluation and run folder are those of an ordinary run. With `labels` (supervised
training) and `best` (rejection sampling) the update minimises the cross-entropy of one completion per prompt: the
label, or the completion with the highest reward of those that were sampled for the prompt. With both, the last steps
measure KL and reward on samples. The evals of labels are rounded to the grid on which the shipped model learned to
write them. With `shuffled` the update is GRPO's, but the rewards of each group are shuffled: the control that shows
whether what is learned comes from the rewards. With `per_component` the update is GRPO's, but each component of the
reward is standardised in its group before the weighted sum (GDPO, arXiv 2601.05242). With `outcome_filter` the update
is GRPO's, but only groups that have both right and wrong completions get advantages (verl-recipe, pull request 125).
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from explosion import right_completions
from results import LAST_STEPS
from rookworld_rlvr.app.cli import main as rookworld
from rookworld_rlvr.errors import BAD_INPUT
from rookworld_rlvr.model.batch import collate, micro_batches
from rookworld_rlvr.objective import AdvantageScale, LossSizes, group_advantages
from rookworld_rlvr.rewards import Rubric
from rookworld_rlvr.rewards.rubric import quality
from rookworld_rlvr.rollout.groups import Collected, Group, make_batch
from rookworld_rlvr.rollout.sampling import derive_seed
from rookworld_rlvr.tasks.policy import parse_policy, parse_policy_prompt, render_policy
from rookworld_rlvr.tasks.types import Example, PolicyCompletion, Task
from rookworld_rlvr.training import collection, step
from rookworld_rlvr.training.loss import grpo_loss
from rookworld_rlvr.training.sft import TokenizedExample, sft_loss, tokenize
from rookworld_rlvr.training.state import Collection, StepContext, StepReport, timed
from study import UPDATES

sys.path.append(str(Path(__file__).parents[1] / "recipes"))
from tiny_model.policy_examples import coarse

# Examples per forward pass.
MICRO_BATCH = 32
# Prompts per step that are sampled to measure KL and reward if the update itself needs no samples.
MEASURED_PROMPTS = 16
Collect = Callable[[StepContext, int], Collection]


def main(argv: Sequence[str]) -> int:
    """Run `rookworld train` with the other update and return its exit code."""
    if not argv or argv[0] not in UPDATES:
        print(f"studies: expected one of {', '.join(UPDATES)}, got {argv[0] if argv else 'nothing'}", file=sys.stderr)
        return BAD_INPUT
    with ExitStack() as patches:
        if argv[0] == "shuffled":
            patches.enter_context(patch.object(step, "_collect", partial(collect_shuffled, step._collect)))
        elif argv[0] == "per_component":
            patches.enter_context(patch.object(step, "_advantages", advantages_per_component))
        elif argv[0] == "outcome_filter":
            patches.enter_context(patch.object(step, "_advantages", advantages_of_mixed_groups))
        else:
            patches.enter_context(patch.object(step, "_sample_and_train", partial(sample_and_train, argv[0])))
            # It ends runs without rewards, and training on labels has none.
            patches.enter_context(patch("rookworld_rlvr.training.loop.watch", lambda _state, _report: None))
        return rookworld(["train", *argv[1:]])


def collect_shuffled(collect: Collect, context: StepContext, number: int) -> Collection:
    """Return the groups of a step with each group's rewards in an order that depends only on seed, step and group."""
    collection = collect(context, number)
    if (collected := collection.collected) is not None:
        groups, size = collected.rewards_PG.shape
        seeds = [derive_seed("shuffle", context.config.seed, number, place) for place in range(groups)]
        orders = [torch.randperm(size, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        collected.rewards_PG = collected.rewards_PG.gather(1, torch.stack(orders))
    return collection


def advantages_per_component(context: StepContext, collected: Collected, *_: object) -> torch.Tensor:
    """Return advantages (P, G) of the weighted sums of components that are standardised in their group.

    A component has the weight that it has in the reward of a well-formed completion. The sums are divided by the std
    of the batch, as `group_advantages` divides rewards.
    """
    config, rubric = context.config.objective.advantage, Rubric(context.config.rubric)
    in_group = replace(config, scale=AdvantageScale.group)
    sums = []
    for group in collected.groups:
        weights = component_weights(rubric, group)
        values_CG = torch.tensor([[sample.score.components[name] for sample in group.samples] for name in weights])
        sums.append(torch.tensor(list(weights.values())) @ group_advantages(values_CG, in_group))
    return group_advantages(torch.stack(sums), config)


def component_weights(rubric: Rubric, group: Group) -> dict[str, float]:
    """Return the weight of each component that applies to a group; the weights sum to 1.

    The quality of a well-formed completion is linear in the components, so a weight is the quality of a completion in
    which only this component is 1.
    """
    weights = rubric._policy_weights if group.example.task is Task.policy else rubric._environment_weights
    names = group.samples[0].score.components
    return {
        name: quality({other: float(other == name) for other in names}, weights, rubric._tiers, refused=False)
        for name in names
    }


def advantages_of_mixed_groups(context: StepContext, collected: Collected, *_: object) -> torch.Tensor:
    """Return advantages (P, G) that are 0 in groups whose completions are all right or all wrong.

    Such groups are also left out of the batch's std.
    """
    right_PG = right_completions(collected)
    mixed_P = right_PG.any(1) & ~right_PG.all(1)
    # A group of equal rewards gets no advantages.
    return group_advantages(collected.rewards_PG * mixed_P.unsqueeze(1), context.config.objective.advantage)


def sample_and_train(kind: str, context: StepContext, report: StepReport) -> None:
    """Make the step's update by imitation, in place of the GRPO update."""
    last = report.step >= context.config.steps - LAST_STEPS
    if kind == "labels":
        examples = context.prompts.draw(context.config.objective.prompts_per_step)
        if last:
            with collection.synced_sampler(context):
                report.collection.collected = collection._sampled(
                    context, examples[:MEASURED_PROMPTS], report.collection
                )
        imitated = tokenize(list(map(round_label_evals, examples)), context.policy.tokenizer)
    else:
        report.collection = step._collect(context, report.step)
        assert report.collection.collected is not None
        imitated = best_of_groups(report.collection.collected)
    if last and report.collection.collected is not None:
        _measure(context, report, report.collection.collected)
    with timed(report.times_s, "train"):
        _imitate(context, report, imitated)


def round_label_evals(example: Example) -> Example:
    """Return the labelled example with its evals rounded to the shipped model's grid; an `A:` example is unchanged."""
    label = parse_policy(example.completion or "") if example.task is Task.policy else None
    if not isinstance(label, PolicyCompletion):
        return example
    rounded = replace(label, evals_pawns=tuple(map(coarse, label.evals_pawns)))
    return replace(example, completion=render_policy(rounded, parse_policy_prompt(example.prompt).fen))


def best_of_groups(collected: Collected) -> list[TokenizedExample]:
    """Return the completion with the highest reward of each group, the first of equal ones."""
    best_P = collected.rewards_PG.argmax(dim=1).tolist()
    examples = []
    for group, best in zip(collected.groups, best_P, strict=True):
        completion = group.samples[best].completion
        tokens = (*group.prompt_tokens, *completion.tokens)
        examples.append(TokenizedExample(tokens, len(group.prompt_tokens)))
    return examples


def _imitate(context: StepContext, report: StepReport, examples: Sequence[TokenizedExample]) -> None:
    """Compute the gradient of the completions' cross-entropy per token, and make the step's update."""
    context.optimizer.zero_grad(set_to_none=True)
    tokens = sum(len(example.tokens) - example.prompt_length for example in examples)
    for first in range(0, len(examples), MICRO_BATCH):
        micro = examples[first : first + MICRO_BATCH]
        share = sum(len(example.tokens) - example.prompt_length for example in micro) / tokens
        loss = sft_loss(context.policy, micro) * share
        torch.autograd.backward(loss)
        report.loss += float(loss.detach())
    pairs = [(example.tokens[: example.prompt_length], example.tokens[example.prompt_length :]) for example in examples]
    # The batch that is saved if the update has a fault.
    batch = collate(pairs, pad_id=context.policy.pad_id, device=context.policy.device)
    step._update(context, batch, report)


@torch.no_grad()
def _measure(context: StepContext, report: StepReport, collected: Collected) -> None:
    """Measure KL to the starting model on the step's samples, as the GRPO loss does."""
    batch = make_batch(collected.groups, pad_id=context.policy.pad_id, device=context.policy.device)
    tokens = batch.trained_tokens()
    sizes = LossSizes(len(batch.tokens_BT), tokens, tokens, context.config.generator.max_new_tokens)
    plan = context.loss_plan(sizes, kl_coef=0.0)
    size = context.examples_per_pass(len(batch.tokens_BT))
    for micro in micro_batches(batch, size, by_prompt=context.policy.packs):
        report.tokens.add(grpo_loss(context.policy, micro, plan).totals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
