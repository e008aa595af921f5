"""Gradient of an update from its micro-batches, which ranks and cores share out among themselves."""

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
"""Computes a micro-batch's share of the loss, a scalar with a gradient, and anything else that is kept of it."""


def backward(
    begin: Callable[[], None], loss_of: LossOf[Kept], micros: Sequence[Batch], policy: Policy, world: World
) -> list[tuple[float, Kept]]:
    """Leave the sum of the micro-batches' gradients in the policy's parameters; return loss and rest of each, in order.

    Each rank computes its share of the micro-batches, one on each core at a time; with weights in shards all ranks
    compute in lockstep. `begin` is called before each pass. An error of it or of `loss_of` on one rank is raised on
    all ranks.
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
    """Loss and rest of a micro-batch, its gradients added to those of the parameters."""
    begin()
    loss, kept = loss_of(micro)
    loss.backward()
    return loss.item(), kept


def _differentiate(
    begin: Callable[[], None], loss_of: LossOf[Kept], parameters: Sequence[Tensor], micro: Batch
) -> tuple[tuple[float, Kept], tuple[Tensor | None, ...]]:
    """Loss and rest of a micro-batch, and its gradients by parameter. Threads must not share `Tensor.grad`."""
    begin()
    loss, kept = loss_of(micro)
    return (loss.item(), kept), torch.autograd.grad(loss, parameters, allow_unused=True)


def _in_lockstep(
    begin: Callable[[], None], loss_of: LossOf[Kept], micros: Sequence[Batch], world: World
) -> list[tuple[float, Kept]]:
    """For a model in shards: every rank makes as many passes, because each gathers weights from all ranks.

    All ranks compute micro-batches of one kind at a time: another kind may need passes of other models.
    """
    kinds = dict.fromkeys(type(micro) for micro in micros)
    by_kind = ([micro for micro in micros if type(micro) is kind] for kind in kinds)
    return [result for of_kind in by_kind for result in _of_one_kind(begin, loss_of, of_kind, world)]


def _of_one_kind(
    begin: Callable[[], None], loss_of: LossOf[Kept], micros: Sequence[Batch], world: World
) -> list[tuple[float, Kept]]:
    """A rank without a micro-batch left repeats the first one, with its loss multiplied by 0."""
    own, results = world.share(micros), list[tuple[float, Kept]]()
    for turn in range(math.ceil(len(micros) / world.size)):
        micro, weight = (own[turn], 1.0) if turn < len(own) else (micros[0], 0.0)
        world.barrier(begin, "a micro-batch's begin")
        loss, kept = world.barrier(partial(loss_of, micro), "a micro-batch")
        (loss * weight).backward()
        if weight:
            results.append((loss.item(), kept))
    return world.gather_in_order(lambda: results, "micro-batches")
