"""Checks before a run for reinforcement-learning bugs that do not crash, made on the real code path.

All but the check of the weight sync run separate forward passes of the model that will be trained, on completions that
it has just sampled. Each result states its bound. Positions and padding are checked in float32, in which a right model
of any size differs by almost nothing. With bf16 the sampler may differ by as much as the model's own rounding explains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import PreflightError
from ..model.batch import Batch, padded, position_ids
from ..model.device import Precision
from ..model.policy import Policy
from ..model.sharded import unshard
from ..model.weights import checksum
from ..objective import kl_k3
from ..rollout.generator import Generator
from ..rollout.groups import Group, make_batch, sample_groups, score_groups
from ..rollout.sampling import derive_seed
from ..tasks.types import Example
from .data import by_task
from .state import StepContext

EQUAL_BOUND = 1e-6
PADDING_BOUND_NAT = 1e-3
SAMPLER_BOUND_NAT = {Precision.fp32: 1e-3, Precision.bf16: 0.5}
# With bf16 the bound is at least this many times the largest change of a log-prob by the rounding of a pass.
ROUNDINGS = 4
LEFT_PADS = 3
# Number of completions per prompt that the checks sample.
PREFLIGHT_GROUP_SIZE = 2


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """Result of one check."""

    name: str
    passed: bool
    measured: float
    """Measured value, in the unit that `text` names."""
    bound: float
    """Largest value that passes."""
    text: str


@dataclass(frozen=True, slots=True)
class PreflightInput:
    """Models, generator and groups that the checks use."""

    policy: Policy
    reference: Policy
    generator: Generator
    groups: Sequence[Group]
    temperature: float

    def batch(self) -> Batch:
        return make_batch(self.groups, pad_id=self.policy.pad_id, device=self.policy.device)


def run_preflight(inputs: PreflightInput) -> list[PreflightCheck]:
    """Run all checks, in order. No update may have been made: the reference must equal the policy."""
    with torch.no_grad():
        return [result for check in CHECKS for result in check(inputs)]


def preflight_checks(context: StepContext, examples: list[Example]) -> list[PreflightCheck]:
    """Run the preflight checks on these examples, on every rank."""
    with unshard(context.policy.model, context.references.current.model):
        return context.world.barrier(lambda: run_preflight(preflight_input(context, examples)), "the preflight")


def preflight_examples(examples: tuple[Example, ...]) -> list[Example]:
    """Return the first example of each task that has one."""
    return [rows[0] for rows in by_task(examples)]


def preflight_input(context: StepContext, examples: list[Example]) -> PreflightInput:
    """Sample and score completions for the preflight checks in the way that training does."""
    sampler = context.sampler
    sampler.generator.sync(context.policy.model)
    sampled = sample_groups(
        sampler.generator,
        sampler.tokenizer,
        examples,
        group_size=PREFLIGHT_GROUP_SIZE,
        temperature=context.temperature,
        seeds=[derive_seed(context.config.seed, "preflight", example.prompt) for example in examples],
    )
    groups = score_groups(sampled, sampler.tokenizer, examples, scorer=sampler.scorer)
    return PreflightInput(context.policy, context.references.current, sampler.generator, groups, context.temperature)


def require_passed(results: Sequence[PreflightCheck]) -> None:
    """Raise PreflightError if a check failed, with the name of every failed check."""
    refused = [
        f"{check.name} ({check.measured:.3g} > {check.bound:.3g}: {check.text})"
        for check in results
        if not check.passed
    ]
    if refused:
        raise PreflightError("preflight refused: " + "; ".join(refused))


def _policy_is_reference(inputs: PreflightInput) -> list[PreflightCheck]:
    batch = inputs.batch()
    logprobs = inputs.policy.statistics(batch, temperature=inputs.temperature).logprobs
    ref_logprobs = inputs.reference.statistics(batch, temperature=inputs.temperature).logprobs
    kl = kl_k3(logprobs, ref_logprobs).abs().max()
    ratio = ((logprobs - ref_logprobs).exp() - 1).abs().max()
    return [
        _result("kl_step_0", kl, EQUAL_BOUND, "largest KL(policy‖reference) of a token before any update, nat"),
        _result("ratio_step_0", ratio, EQUAL_BOUND, "largest |policy/reference - 1| of a token before any update"),
    ]


def _dropout_is_off(inputs: PreflightInput) -> list[PreflightCheck]:
    inputs.policy.model.train()
    batch = inputs.batch()
    once, again = (inputs.policy.statistics(batch, temperature=inputs.temperature).logprobs for _ in range(2))
    text = "largest difference of two passes in training mode, nat"
    return [_result("dropout_off", (once - again).abs().max(), EQUAL_BOUND, text)]


def _padding_is_neutral(inputs: PreflightInput) -> list[PreflightCheck]:
    batch, policy = inputs.batch(), replace(inputs.policy, precision=Precision.fp32)
    logprobs = policy.statistics(batch, temperature=inputs.temperature).logprobs
    unpacked = replace(policy, packs=False)
    left_padded = unpacked.statistics(_left_padded(inputs, batch), temperature=inputs.temperature).logprobs
    change = (logprobs - left_padded).abs().max()
    text = (
        "largest change of a log-prob, in float32, when rows are padded on the left instead of packed or padded on the "
        "right, nat"
    )
    return [_result("padding_neutral", change, PADDING_BOUND_NAT, text)]


def _left_padded(inputs: PreflightInput, batch: Batch) -> Batch:
    """Return the batch's rows with all padding, and LEFT_PADS more pads, in front."""
    lengths = batch.attention_BT.sum(1).tolist()
    rows = [batch.tokens_BT[i, :length].tolist() for i, length in enumerate(lengths)]
    longest = [inputs.policy.pad_id] * (max(lengths) + LEFT_PADS)
    tokens_BT, attention_BT = padded([*rows, longest], inputs.policy.pad_id, inputs.policy.device, "left")
    tokens_BT, attention_BT = tokens_BT[:-1], attention_BT[:-1]
    return Batch(
        tokens_BT,
        attention_BT,
        position_ids(attention_BT),
        _moved(batch.loss_mask_BT, lengths, tokens_BT.shape[1]),
        _moved(batch.sampler_logprobs_BT, lengths, tokens_BT.shape[1]),
        batch.advantages_B,
        batch.prompts_B,
    )


def _moved(values_BT: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    moved_BT = values_BT.new_zeros(values_BT.shape[0], width)
    for i, length in enumerate(lengths):
        moved_BT[i, width - length :] = values_BT[i, :length]
    return moved_BT


def _sampler_agrees(inputs: PreflightInput) -> list[PreflightCheck]:
    batch = inputs.batch()
    logprobs = inputs.policy.statistics(batch, temperature=inputs.temperature).logprobs
    gap = (logprobs - batch.sampler_logprobs_BT[batch.loss_mask_BT]).abs().max()
    bound = SAMPLER_BOUND_NAT[inputs.policy.precision]
    if inputs.policy.precision is not Precision.fp32:
        exact = replace(inputs.policy, precision=Precision.fp32)
        exact_logprobs = exact.statistics(batch, temperature=inputs.temperature).logprobs
        bound = max(bound, ROUNDINGS * float((logprobs - exact_logprobs).abs().max()))
    text = "largest difference of the sampler's and the trainer's log-prob of a sampled token, nat"
    return [_result("sampler_agrees", gap, bound, text)]


def _sampler_is_synced(inputs: PreflightInput) -> list[PreflightCheck]:
    inputs.generator.sync(inputs.policy.model)
    differs = float(inputs.generator.weights_checksum() != checksum(inputs.policy.model))
    return [_result("sampler_synced", differs, 0.0, "1 if the sampler's weights are not the trainer's")]


def _result(name: str, measured: Tensor | float, bound: float, text: str) -> PreflightCheck:
    value = float(measured)
    # Written so that NaN fails the check.
    return PreflightCheck(name, value <= bound, value, bound, text)


CHECKS: tuple[Callable[[PreflightInput], list[PreflightCheck]], ...] = (
    _policy_is_reference,
    _dropout_is_off,
    _padding_is_neutral,
    _sampler_agrees,
    _sampler_is_synced,
)
