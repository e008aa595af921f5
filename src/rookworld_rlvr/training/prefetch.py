"""One-step-off-policy sampling: a thread samples the next step's groups while this step is trained.

The groups are then sampled by a policy one step older than the trained one. The mismatch weights (`objective.mismatch`)
correct the loss for the difference, as they do for a sampler that rounds differently. Measured KLs are means over
tokens of the older policy.
"""

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.policy import Policy
from ..tasks.prompt_stream import PromptStream

Result = TypeVar("Result")


class Prefetch(Generic[Result]):
    """Thread that samples groups from its own copy of the weights."""

    def __init__(self, policy: Policy) -> None:
        self._model = copy.deepcopy(policy.model).requires_grad_(False)
        # Otherwise the thread would use the number of cores that any thread set last: one, after a pool was used.
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, "prefetch", torch.set_num_threads, (threads,))
        self._pending: Future[Result] | None = None
        self._prompts_before: Mapping[str, Any] = {}
        """State of the prompt stream before the prompts of the pending groups were drawn."""
        self.holds_older = False
        """True after a resume, while the copy has the older weights from which the lost groups were sampled."""

    @property
    def pending(self) -> bool:
        """True while groups are being sampled, or are sampled but not yet taken."""
        return self._pending is not None

    def weights(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the copy to sample from, with the model's current weights or, once after a resume, the older ones."""
        if not self.holds_older:
            self._model.load_state_dict(model.state_dict())
        self.holds_older = False
        return self._model

    def begin(self, sample: Callable[[], Result], prompts: PromptStream) -> None:
        """Start to call `sample` in the thread."""
        self._prompts_before = prompts.state_dict()
        self._pending = self._thread.submit(sample)

    def take(self) -> Result:
        """Wait for the pending groups and return them. Raises any exception of their sampling."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        return pending.result()

    def wait(self) -> None:
        """Wait until nothing is being sampled, because the generator is needed for something else."""
        if self._pending is not None:
            self._pending.exception()

    def drop(self) -> None:
        """Discard the pending groups, because they do not belong to the weights that are loaded next."""
        self.wait()
        self._pending, self.holds_older = None, False

    def prompts_state(self, prompts: PromptStream) -> Mapping[str, Any]:
        """Return the state of the prompt stream from which the next step continues."""
        return prompts.state_dict() if self._pending is None else self._prompts_before

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights from which the pending groups are sampled; empty if none are pending."""
        return {} if self._pending is None else self._model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load saved weights, from which the groups that were pending are sampled again."""
        self.drop()
        if state:
            self._model.load_state_dict(state)
            self.holds_older = True

    def close(self) -> None:
        """End the thread once its groups are sampled."""
        self._thread.shutdown()
