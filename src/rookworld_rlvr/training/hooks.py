"""Public hooks: a callable that sees, and may change, the state of a step at its moments.

    def add_noise(moment, context, report):
        if moment is Moment.accumulated:
            for parameter in context.policy.model.parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-3)

    run.context.hooks.append(add_noise)

What a hook raises propagates. The fault injection of the tests and of `benchmarks/` uses nothing else.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import StepContext
    from .step_report import StepReport


class Moment(StrEnum):
    """When a hook is called, in the order of a step."""

    begun = "begun"
    """Before anything is sampled."""
    collected = "collected"
    """Groups are scored: `report.rewards_PG` is what advantages will be made of."""
    micro_batch = "micro_batch"
    """A micro-batch is about to be computed."""
    accumulated = "accumulated"
    """The gradient of one update is complete and not yet looked at."""
    updated = "updated"
    """The optimiser has stepped and the weights are not yet looked at."""


Hook = Callable[[Moment, "StepContext", "StepReport"], None]
