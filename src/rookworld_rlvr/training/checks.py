"""Checks of a step, in the order in which it makes them. Each raises FaultError, which names a tensor.

To find *that* a value is wrong is cheap and always done. To find *where* costs a forward pass and is done only after a
failed check. The named tensor is the first bad one in the order of computation.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..model.batch import Batch, micro_batches
from ..model.policy import Policy
from ..model.sharded import full_tensor, is_dtensor
from ..stability.faults import Fault, FaultError, FaultKind
from .loss import TokenTotals
from .state import StepContext


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return True if no value is NaN or infinite. Values so large that their absolute sum overflows also give False."""
    floating = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    shards, wholes = ([tensor for tensor in floating if is_dtensor(tensor) is wanted] for wanted in (True, False))
    sums = [torch.stack(torch._foreach_norm(alike, ord=1)).sum() for alike in (shards, wholes) if alike]
    return all(bool(full_tensor(total).isfinite()) for total in sums)


def first_bad_parameter(model: nn.Module) -> str:
    """Return the name of the first weight with a value that is not finite; empty if there is none."""
    return next((name for name, p in model.named_parameters() if not _finite(p)), "")


def first_bad_moment(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """Return the first optimiser state that is not finite, named `optimizer.exp_avg of <weight>`; empty if none."""
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and not _finite(value):
                return f"optimizer.{key} of {name}"
    return ""


def check_weights(context: StepContext) -> None:
    """Check that all weights are finite, before completions are sampled from them."""
    if not all_finite(context.policy.model.parameters()):
        where = first_bad_parameter(context.policy.model) or "all weights, by their sum"
        raise _fault(FaultKind.parameter, where, "not finite before the step")


def check_rewards(rewards_PG: Tensor) -> None:
    """Check that all rewards (P, G) are finite, before they become advantages."""
    bad = (~rewards_PG.isfinite()).nonzero()
    if len(bad):
        group, sample = bad[0].tolist()
        where = f"reward[group {group}, completion {sample}]"
        raise _fault(FaultKind.reward, where, f"expected a finite number, got {rewards_PG[group, sample].item()}")


def check_logprobs(context: StepContext, logprobs: Tensor, ref_logprobs: Tensor | None, batch: Batch) -> None:
    """Check that the log-probs of policy, reference and sampler are finite, as soon as they are known."""
    sides = (("policy", context.policy, logprobs), ("reference", context.references.current, ref_logprobs))
    for name, side, values in sides:
        if values is not None and not all_finite([values]):
            where = _locate(side, batch, context.micro_batch_size)
            raise _fault(FaultKind.logprobs, f"{name}: {where}", "a log-prob is not finite", batch)
    if not all_finite([batch.sampler_logprobs_BT]):
        detail = "a log-prob of the sampler is not finite; the trainer's are finite"
        raise _fault(FaultKind.logprobs, "sampler: log-probs", detail, batch)


def check_loss(loss: Tensor, micro: Batch) -> None:
    """Check that the loss is finite, before it is differentiated."""
    if not loss.detach().isfinite():
        raise _fault(FaultKind.loss, "loss", f"expected a finite number, got {loss.item()}", micro)


def check_kl(context: StepContext, part: Batch, update_totals: TokenTotals) -> None:
    """Check the KL of an update against its limit and the run's own history, before the weights change.

    Each update is checked alone, because the mean over a step's updates could hide a spike in the last one.
    """
    if not update_totals.kl_count or not context.config.recovery.enabled:
        return
    kl, guards = update_totals.kl_exact_mean, context.guards
    limit = guards.config.kl_limit
    if 0 < limit < kl:
        raise _fault(FaultKind.kl_limit, "kl/exact", f"{kl:.3g} nats per token, at most {limit:g} allowed", part)
    if guards.is_kl_spike(kl):
        usual = math.exp(guards.kl.mean)
        raise _fault(FaultKind.kl_spike, "kl/exact", f"{kl:.3g} nats per token, usually {usual:.3g}", part)


def check_gradient(context: StepContext, grad_norm: float, part: Batch) -> None:
    """Check that the gradient's norm is finite and not a spike. This precedes clipping, which would spread a NaN."""
    if not math.isfinite(grad_norm):
        named = context.policy.model.named_parameters()
        bad = (name for name, p in named if p.grad is not None and not _finite(p.grad))
        raise _fault(FaultKind.gradient, f"gradient of {next(bad, 'all, by its norm')}", "not finite", part)
    guards, floor = context.guards, context.config.optim.max_grad_norm
    if context.config.recovery.enabled and guards.grad_norm.is_spike(grad_norm, floor, guards.config.spike_factor):
        usual = math.exp(guards.grad_norm.mean)
        largest = max(context.policy.model.named_parameters(), key=lambda named: _norm(named[1].grad))
        where = f"gradient of {largest[0]}"
        raise _fault(FaultKind.gradient_spike, where, f"norm {grad_norm:.3g}, usually {usual:.3g}", part)


def check_update(context: StepContext, update_norm: float, part: Batch) -> None:
    """Check that the weights are still finite, after the optimiser has stepped."""
    if math.isfinite(update_norm):
        return
    model = context.policy.model
    where = first_bad_moment(context.optimizer, model) or first_bad_parameter(model)
    raise _fault(FaultKind.parameter, where or "update", "not finite after the update", part)


def _finite(tensor: Tensor) -> bool:
    return bool(full_tensor(tensor.detach()).isfinite().all())


def _norm(grad: Tensor | None) -> float:
    return 0.0 if grad is None else float(full_tensor(grad).norm())


def _fault(kind: FaultKind, tensor: str, detail: str, batch: Batch | None = None) -> FaultError:
    return FaultError(Fault(kind, tensor, detail), batch)


@torch.no_grad()
def _locate(policy: Policy, batch: Batch, micro_batch_size: int) -> str:
    """Return the name of the first bad weight, or else of the first module whose output is not finite.

    The module is found by another forward pass. For a model in shards neither is looked for, because that would need
    the other ranks.
    """
    if policy.sharded:
        return "log-probs"
    bad_parameter = first_bad_parameter(policy.model)
    if bad_parameter:
        return bad_parameter
    bad_modules: list[str] = []

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            values = output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)
            if values is not None and not values.isfinite().all():
                bad_modules.append(f"output of {name}")

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in policy.model.named_modules() if name]
    try:
        for micro in micro_batches(batch, micro_batch_size, by_prompt=policy.packs):
            policy.statistics(micro, temperature=1.0)
    finally:
        for handle in handles:
            handle.remove()
    return bad_modules[0] if bad_modules else "log-probs"
