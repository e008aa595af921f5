"""One-step-off-policy sampling: a thread samples the next step's groups while this step is trained.

The policy that trains is then not the one that sampled. The mismatch weights (`objective.mismatch`) correct the loss
for the difference, as they do for a sampler that rounds differently. Measured KLs are means over the older policy's
tokens.
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
    """A thread with a copy of the weights to sample from, and the groups that it samples."""

    def __init__(self, policy: Policy) -> None:
        self._model = copy.deepcopy(policy.model).requires_grad_(False)
        # A new thread has the number of cores that was set last, by whichever thread: one, once a pool has been used.
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, "prefetch", torch.set_num_threads, (threads,))
        self._pending: Future[Result] | None = None
        self._prompts_before: Mapping[str, Any] = {}
        """State of the stream of prompts before the pending groups were drawn."""
        self.holds_older = False
        """Whether, after a resume, the copy has the weights that the lost groups were sampled from."""

    @property
    def pending(self) -> bool:
        """True while groups are being sampled, or are sampled and not taken yet."""
        return self._pending is not None

    def weights(self, model: PreTrainedModel) -> PreTrainedModel:
        """The copy to sample from: with the model's present weights, or once after a resume with the older ones."""
        if not self.holds_older:
            self._model.load_state_dict(model.state_dict())
        self.holds_older = False
        return self._model

    def begin(self, sample: Callable[[], Result], prompts: PromptStream) -> None:
        """Call `sample` in the thread."""
        self._prompts_before = prompts.state_dict()
        self._pending = self._thread.submit(sample)

    def take(self) -> Result:
        """The pending groups, once they are sampled. Raises what sampling them raised."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        return pending.result()

    def wait(self) -> None:
        """Wait until nothing is sampled any more: the generator is needed for something else."""
        if self._pending is not None:
            self._pending.exception()

    def drop(self) -> None:
        """Forget the pending groups: they do not belong to the weights that a restore has put back."""
        self.wait()
        self._pending, self.holds_older = None, False

    def prompts_state(self, prompts: PromptStream) -> Mapping[str, Any]:
        """State of the stream of prompts from which the next step goes on."""
        return prompts.state_dict() if self._pending is None else self._prompts_before

    def state_dict(self) -> dict[str, Tensor]:
        """The weights that the pending groups are sampled from; empty if none are pending."""
        return {} if self._pending is None else self._model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Sample the groups that were pending once more, from the weights of then."""
        self.drop()
        if state:
            self._model.load_state_dict(state)
            self.holds_older = True

    def close(self) -> None:
        """End the thread once its groups are sampled."""
        self._thread.shutdown()
