"""Gradient of an update as the sum over its micro-batches, which are divided among ranks and cores."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from .batch import Batch
from .device import add_gradients, cores, map_on_cores
from .policy import Policy
from .world import World

Kept = TypeVar("Kept")
LossOf = Callable[[Batch], tuple[Tensor, Kept]]
"""Function of a micro-batch that returns its share of the loss, a scalar with a gradient, and a second result."""


def backward(
    begin: Callable[[], None], loss_of: LossOf[Kept], micros: Sequence[Batch], policy: Policy, world: World
) -> list[tuple[float, Kept]]:
    """Sum the micro-batches' gradients in the policy's parameters; return loss and second result of each, in order.

    Each rank computes its share of the micro-batches, one on each core at a time. With sharded weights all ranks
    compute in lockstep. `begin` is called before each pass. If it or `loss_of` raises an error on one rank, all ranks
    raise it.
    """
    if policy.sharded:
        return _in_lockstep(begin, loss_of, micros, world)
    if world.size == 1 and cores(policy.device) == 1:
        return [_backward_of_one(begin, loss_of, micro) for micro in micros]
    parameters = [p for p in policy.model.parameters() if p.requires_grad]

    def own_share() -> list[tuple[float, Kept]]:
        results = []
        differentiate = partial(_differentiate, begin, loss_of, parameters)
        for result, gradients in map_on_cores(differentiate, world.share(micros), policy.device):
            results.append(result)
            add_gradients(parameters, gradients)
        return results

    results = world.gather_in_order(own_share, "micro-batches")
    world.sum_gradients(parameters)
    return results


def _backward_of_one(begin: Callable[[], None], loss_of: LossOf[Kept], micro: Batch) -> tuple[float, Kept]:
    """Add a micro-batch's gradients to those of the parameters; return its loss and second result."""
    begin()
    loss, kept = loss_of(micro)
    loss.backward()
    return loss.item(), kept


def _differentiate(
    begin: Callable[[], None], loss_of: LossOf[Kept], parameters: Sequence[Tensor], micro: Batch
) -> tuple[tuple[float, Kept], tuple[Tensor | None, ...]]:
    """Return a micro-batch's two results and its gradients by parameter. Threads must not share `Tensor.grad`."""
    begin()
    loss, kept = loss_of(micro)
    return (loss.item(), kept), torch.autograd.grad(loss, parameters, allow_unused=True)


def _in_lockstep(
    begin: Callable[[], None], loss_of: LossOf[Kept], micros: Sequence[Batch], world: World
) -> list[tuple[float, Kept]]:
    """Compute the micro-batches of a sharded model with the same number of passes on every rank.

    Each pass gathers weights from all ranks. All ranks compute micro-batches of one type at a time, because another
    type may need passes of other models.
    """
    kinds = dict.fromkeys(type(micro) for micro in micros)
    by_kind = ([micro for micro in micros if type(micro) is kind] for kind in kinds)
    return [result for of_kind in by_kind for result in _of_one_kind(begin, loss_of, of_kind, world)]


def _of_one_kind(
    begin: Callable[[], None], loss_of: LossOf[Kept], micros: Sequence[Batch], world: World
) -> list[tuple[float, Kept]]:
    """Compute micro-batches of one type. A rank without one left repeats the first, with its loss multiplied by 0."""
    own, results = world.share(micros), list[tuple[float, Kept]]()
    for turn in range(math.ceil(len(micros) / world.size)):
        micro, weight = (own[turn], 1.0) if turn < len(own) else (micros[0], 0.0)
        world.barrier(begin, "a micro-batch's begin")
        loss, kept = world.barrier(partial(loss_of, micro), "a micro-batch")
        (loss * weight).backward()
        if weight:
            results.append((loss.item(), kept))
    return world.gather_in_order(lambda: results, "micro-batches")
