"""Checks of a step, in the order in which it makes them. Each raises FaultError, which names a tensor.

To find *that* a value is wrong is cheap and always done. To find *where* costs a forward pass and is done only after a
failed check. The named tensor is the first bad one in the order of computation.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..model.batch import Batch, TokenBatch, micro_batches
from ..model.policy import Policy
from ..model.sharded import full_tensor, is_dtensor
from ..stability.faults import Fault, FaultError, FaultKind
from ..stability.guards import Guards
from .loss import TokenTotals


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


def check_weights(model: nn.Module) -> None:
    """Check that all weights are finite, before completions are sampled from them."""
    if not all_finite(model.parameters()):
        where = first_bad_parameter(model) or "all weights, by their sum"
        raise _fault(FaultKind.parameter, where, "not finite before the step")


def check_rewards(rewards_PG: Tensor) -> None:
    """Check that all rewards (P, G) are finite, before they become advantages."""
    bad = (~rewards_PG.isfinite()).nonzero()
    if len(bad):
        group, sample = bad[0].tolist()
        where = f"reward[group {group}, completion {sample}]"
        raise _fault(FaultKind.reward, where, f"expected a finite number, got {rewards_PG[group, sample].item()}")


def check_logprobs(
    logprobs: Tensor, policy: Policy, batch: TokenBatch, *, side: str = "policy", micro_batch_size: int | None = None
) -> None:
    """Check that log-probs of a batch are finite, as soon as they are known.

    `policy` is the model that computed them, and `side` its name: `policy` or `reference`. To find the first bad value
    of a whole batch, the model computes `micro_batch_size` rows at a time; by default all rows together.
    """
    if not all_finite([logprobs]):
        where = _locate(policy, batch, micro_batch_size or len(batch.tokens_BT))
        raise _fault(FaultKind.logprobs, f"{side}: {where}", "a log-prob is not finite", batch)


def check_sampler_logprobs(batch: Batch) -> None:
    """Check that the sampler's log-probs are finite, after those of the trainer."""
    if not all_finite([batch.sampler_logprobs_BT]):
        detail = "a log-prob of the sampler is not finite; the trainer's are finite"
        raise _fault(FaultKind.logprobs, "sampler: log-probs", detail, batch)


def check_loss(loss: Tensor, micro: TokenBatch) -> None:
    """Check that the loss is finite, before it is differentiated."""
    if not loss.detach().isfinite():
        raise _fault(FaultKind.loss, "loss", f"expected a finite number, got {loss.item()}", micro)


def check_kl(totals: TokenTotals, limit: float, minibatch: TokenBatch) -> None:
    """Check the KL of an update against its limit, nats per token, before the weights change; 0 is no limit.

    Each update is checked alone, because the mean over a step's updates could hide a large KL in the last one.
    """
    if totals.kl_count and 0 < limit < (kl := totals.kl_exact_mean):
        detail = f"{kl:.3g} nats per token, at most {limit:g} allowed"
        raise _fault(FaultKind.kl_limit, "kl/exact", detail, minibatch)


def check_gradient(model: nn.Module, grad_norm: float, minibatch: TokenBatch) -> None:
    """Check that the gradient's norm is finite. This precedes clipping, which would spread a NaN."""
    if not math.isfinite(grad_norm):
        bad = (name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad))
        raise _fault(FaultKind.gradient, f"gradient of {next(bad, 'all, by its norm')}", "not finite", minibatch)


def check_gradient_spike(
    model: nn.Module, grad_norm: float, guards: Guards, minibatch: TokenBatch, *, floor: float
) -> None:
    """Check that the gradient's norm is no spike in the run's history. A norm below `floor` counts as `floor`."""
    if guards.grad_norm.is_spike(grad_norm, floor):
        usual = math.exp(guards.grad_norm.mean)
        largest = max(model.named_parameters(), key=lambda named: _norm(named[1].grad))
        where = f"gradient of {largest[0]}"
        raise _fault(FaultKind.gradient_spike, where, f"norm {grad_norm:.3g}, usually {usual:.3g}", minibatch)


def check_update(model: nn.Module, optimizer: torch.optim.Optimizer, update_norm: float, minibatch: TokenBatch) -> None:
    """Check that the weights are still finite, after the optimiser has stepped."""
    if math.isfinite(update_norm):
        return
    where = first_bad_moment(optimizer, model) or first_bad_parameter(model)
    raise _fault(FaultKind.parameter, where or "update", "not finite after the update", minibatch)


def _finite(tensor: Tensor) -> bool:
    return bool(full_tensor(tensor.detach()).isfinite().all())


def _norm(grad: Tensor | None) -> float:
    return 0.0 if grad is None else float(full_tensor(grad).norm())


def _fault(kind: FaultKind, tensor: str, detail: str, batch: TokenBatch | None = None) -> FaultError:
    return FaultError(Fault(kind, tensor, detail), batch)


@torch.no_grad()
def _locate(policy: Policy, batch: TokenBatch, micro_batch_size: int) -> str:
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
