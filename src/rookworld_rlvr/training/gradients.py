"""The gradient of an update: its micro-batches shared out among ranks and cores, their gradients added up."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..model.batch import Batch
from ..model.device import add_gradients, map_on_cores
from ..model.policy import Policy
from ..model.world import World
from .loss import MicroLoss, TokenTotals

Done = tuple[TokenTotals, float]
"""What is kept of a micro-batch: its token totals, and its share of the loss."""


def add_up_gradients(
    begin: Callable[[], None],
    loss_of: Callable[[Batch], MicroLoss],
    micros: Sequence[Batch],
    policy: Policy,
    world: World,
) -> list[Done]:
    """Leave the sum of the micro-batches' gradients in the policy's parameters; returns what is kept of each, in order.

    Each rank computes its share of the micro-batches, one on each core at a time; with weights in shards all ranks
    compute in lockstep. `begin` is called before each pass. What it or `loss_of` raises on one rank is raised on all.
    """
    if policy.sharded:
        return _in_lockstep(begin, loss_of, micros, world)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    differentiated = partial(_differentiated, begin, loss_of, parameters)

    def of_own_share() -> list[Done]:
        done = []
        for kept, gradients in map_on_cores(differentiated, world.share(micros), policy.device):
            done.append(kept)
            add_gradients(parameters, gradients)
        return done

    found = world.gather_in_order(of_own_share, "micro-batches")
    world.sum_gradients(parameters)
    return found


def _differentiated(
    begin: Callable[[], None], loss_of: Callable[[Batch], MicroLoss], parameters: Sequence[Tensor], micro: Batch
) -> tuple[Done, tuple[Tensor | None, ...]]:
    """What is kept of a micro-batch, and its gradients by parameter."""
    begin()
    found = loss_of(micro)
    return (found.totals, found.loss.item()), torch.autograd.grad(found.loss, parameters, allow_unused=True)


def _append_loss(found: list[MicroLoss], loss_of: Callable[[Batch], MicroLoss], micro: Batch) -> None:
    found.append(loss_of(micro))


def _in_lockstep(
    begin: Callable[[], None], loss_of: Callable[[Batch], MicroLoss], micros: Sequence[Batch], world: World
) -> list[Done]:
    """For a model in shards: every rank makes as many passes, because each gathers weights from all ranks.

    A rank without a micro-batch left repeats the first one, with its loss multiplied by 0.
    """
    own, done = world.share(micros), list[Done]()
    for turn in range(math.ceil(len(micros) / world.size)):
        micro, counts = (own[turn], 1.0) if turn < len(own) else (micros[0], 0.0)
        world.barrier(begin, "a micro-batch's begin")
        # The loss stays in this list: what `together` returns would be sent to the other ranks.
        found: list[MicroLoss] = []
        world.barrier(partial(_append_loss, found, loss_of, micro), "a micro-batch")
        (found[0].loss * counts).backward()
        if counts:
            done.append((found[0].totals, found[0].loss.item()))
    return world.gather_in_order(lambda: done, "micro-batches")
