"""The next step's batch, sampled while this one is trained: by weights that are one step older.

The policy that trains is then not the one that sampled. The mismatch weights (`objective.mismatch`) correct for the
difference, as they do for a sampler that rounds differently.
"""

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ..model.policy import Policy
from ..rollout.groups import Collected
from ..tasks.prompt_stream import PromptStream
from .collection import collect
from .context import StepContext
from .step_report import StepReport
from .synchronous import sync_sampler


class OneStepOffPolicy:
    """See `context.Batches`. A thread samples and judges; it has a copy of the weights, which it samples from."""

    abandons = False
    """A step that has begun is finished: what it trains on was drawn long before."""

    def __init__(self, policy: Policy) -> None:
        self._model = copy.deepcopy(policy.model).requires_grad_(False)
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._pending: Future[Collected] | None = None
        self._report: StepReport | None = None
        """What is known of the pending batch."""
        self._prompts_before: Mapping[str, Any] = {}
        """The stream's state before it drew the pending batch."""
        self._holds_older = False
        """After a resume: the copy has the weights that the lost batch was sampled from."""

    def next(self, context: StepContext, report: StepReport) -> Collected:
        """See `Batches.next`. The first batch, and one that a resumed run has lost, are sampled now."""
        if self._pending is None:
            self._begin(context, report.step, context.clock.schedule_step, staleness=int(self._holds_older))
        assert self._pending is not None and self._report is not None
        pending, sampled, self._pending = self._pending, self._report, None
        try:
            collected = pending.result()
        finally:
            report.take_collection(sampled)
        if report.step + 1 < context.total_steps:
            self._begin(context, report.step + 1, context.clock.schedule_step + 1, staleness=1)
        return collected

    def _begin(self, context: StepContext, step: int, schedule_step: int, *, staleness: int) -> None:
        """Have the batch of `step` sampled from today's weights, or once more from the older ones of a lost batch."""
        if not self._holds_older:
            self._model.load_state_dict(context.policy.model.state_dict())
        self._holds_older = False
        sync_sampler(context, self._model)
        self._prompts_before = context.prompts.state_dict()
        self._report = StepReport(step=step, kl_coef=0.0, schedule_step=schedule_step, staleness=staleness)
        self._pending = self._thread.submit(collect, context, self._report)

    def wait(self) -> None:
        """See `Batches.wait`."""
        if self._pending is not None:
            self._pending.exception()

    def drop(self) -> None:
        """See `Batches.drop`."""
        self.wait()
        self._pending, self._holds_older = None, False

    def prompts_state(self, prompts: PromptStream) -> Mapping[str, Any]:
        """See `Batches.prompts_state`."""
        return prompts.state_dict() if self._pending is None else self._prompts_before

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights that the pending batch is sampled from; empty where none is pending."""
        return {} if self._pending is None else self._model.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sample the batch that was pending once more, from its own weights."""
        self.drop()
        if state:
            self._model.load_state_dict(state)
            self._holds_older = True

    def close(self) -> None:
        """End the thread once its batch is done."""
        self._thread.shutdown()
