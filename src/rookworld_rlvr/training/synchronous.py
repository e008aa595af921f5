"""A step's batch, sampled in the step from the weights that it trains, and how the sampler gets these weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..model.sharded import unshard
from ..rollout.generator import GeneratorError, TrainerModelGenerator
from ..rollout.groups import Collected
from ..stability.faults import Fault, FaultError, FaultKind
from ..tasks.prompt_stream import PromptStream
from .collection import collect
from .context import StepContext
from .step_report import StepReport


class Synchronous:
    """Batches without staleness (see `context.Batches`): a step samples from the weights that it trains."""

    abandons = True

    def next(self, context: StepContext, report: StepReport) -> Collected:
        with handed_over(context, lambda: sync_sampler(context, context.policy.model)):
            return collect(context, report)

    def wait(self) -> None:
        return

    def drop(self) -> None:
        return

    def prompts_state(self, prompts: PromptStream) -> Mapping[str, Any]:
        return prompts.state_dict()

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        return

    def close(self) -> None:
        return


@contextmanager
def handed_over(context: StepContext, hand_over: Callable[[], None]) -> Iterator[None]:
    """Call `hand_over`, which gives the sampler the policy's weights; inside, the sampler can be used.

    A model in shards is gathered first. It stays so if the sampler uses the trainer's own model; if the sampler has a
    copy, only the shards stay.
    """
    with ExitStack() as gathered:
        gathered.enter_context(unshard(context.policy.model))
        hand_over()
        if not isinstance(context.generator, TrainerModelGenerator):
            gathered.close()
        yield


def sync_sampler(context: StepContext, model: PreTrainedModel) -> None:
    """Hand the model's weights to the sampler. Raises FaultError where it does not take them."""

    def hand_over() -> None:
        try:
            context.generator.sync(model)
        except GeneratorError as error:
            raise FaultError(Fault(FaultKind.generator, "weights", str(error))) from error

    context.world.barrier(hand_over, "weights")
