"""How much arithmetic and memory traffic a step needs at least, so that its share of the machine can be told.

Work counts only what any program would have to do, whatever ours does: each prompt once for its group, each token of a
completion once, no pads, nothing computed twice. So unnecessary computation cannot push a share above 1.

Floating point operations, a multiplication and an addition being two:

- forward: 2 for each weight of the body (embeddings are looked up) and each token; 2 for each weight of the head and
  each token drawn or trained; in attention 4 · layers · width for each pair of a token and one that it sees;
- generation: a forward pass. Training: 3 forward passes, one forward, two backward. Reference: one, told apart;
- the optimiser, norms, softmax and the loss: nothing, they are small beside it.

Bytes, at 2 a number in bf16 and 4 in fp32, the optimiser at 4:

- generation: the weights once a pass of the model; keys and values of prompts (once a group) and completions, written
  once and read in every pass until the completion ends;
- training: the weights read forward and backward and the gradient written, a micro-batch; the reference's weights once
  each; AdamW reads weight, gradient and two moments and writes three of them. Activations: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from torch import nn
from transformers import PreTrainedModel

from ..rollout.groups import Group
from ..training.state import StepReport
from .machine import Limits

BACKWARD_AND_FORWARD = 3
# Read: weight, gradient, two moments. Written: weight, two moments.
ADAMW_ARRAYS, ADAMW_BYTES = 7, 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a dense decoder decides its work."""

    body_weights: int
    """Embeddings and head left out."""
    head_weights: int
    layers: int
    query_width: int
    """Heads times their width."""
    key_width: int
    """Key heads times their width: smaller than query_width where query heads share them."""
    bytes_a_number: int


@dataclass(frozen=True, slots=True)
class Work:
    """Needed at least."""

    flops: float = 0.0
    bytes: float = 0.0

    def least_s(self, limits: Limits) -> float:
        """No machine of these limits does it in less."""
        return max(self.flops / limits.flops_per_s, self.bytes / limits.bytes_per_s)

    def bound(self, limits: Limits) -> str:
        """Which limit it meets first."""
        return "compute" if self.flops / limits.flops_per_s > self.bytes / limits.bytes_per_s else "memory"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A group in tokens."""

    prompt: int
    completions: tuple[int, ...]
    """End of text included; at least 1 each."""

    @classmethod
    def of(cls, group: Group) -> "Lengths":
        return cls(len(group.prompt_tokens), tuple(len(sample.completion.tokens) for sample in group.samples))

    def inputs(self) -> int:
        """Tokens that go through the model: from a completion's last one nothing is predicted."""
        return self.prompt + sum(length - 1 for length in self.completions)

    def pairs(self) -> int:
        """Pairs of a token and one that it sees, itself included."""
        own = sum((length - 1) * self.prompt + length * (length - 1) // 2 for length in self.completions)
        return self.prompt * (self.prompt + 1) // 2 + own


def shape_of(model: PreTrainedModel, bytes_a_number: int) -> Shape:
    """The shape of a transformers model; a mixture of experts is counted as if all of them worked."""
    config, head = model.config.get_text_config(), model.get_output_embeddings().weight
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = {id(weight) for weight in [head, *embeddings]}
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(
        body_weights=sum(weight.numel() for weight in model.parameters() if id(weight) not in left_out),
        head_weights=head.numel(),
        layers=config.num_hidden_layers,
        query_width=heads * width,
        key_width=(getattr(config, "num_key_value_heads", None) or heads) * width,
        bytes_a_number=bytes_a_number,
    )


def forward_flops(shape: Shape, groups: Sequence[Lengths]) -> float:
    """One forward pass over the groups."""
    inputs, pairs = sum(group.inputs() for group in groups), sum(group.pairs() for group in groups)
    drawn = sum(sum(group.completions) for group in groups)
    dense = 2 * (shape.body_weights * inputs + shape.head_weights * drawn)
    return float(dense + 4 * shape.layers * shape.query_width * pairs)


def generation(shape: Shape, groups: Sequence[Lengths], passes: int) -> Work:
    """Sampling the groups; `passes` of the model, 0 where another engine made them and nobody counted."""
    longest = max(max(group.completions) for group in groups)
    # Drafts make passes fewer, and with them the reading of keys.
    reading = min(1.0, passes / longest) if passes else 1.0
    read = sum(
        group.prompt * max(group.completions) + sum(length * (length - 1) // 2 for length in group.completions)
        for group in groups
    )
    written = sum(group.inputs() for group in groups)
    keys_and_values = 2 * shape.layers * shape.key_width * (written + reading * read)
    weights = (passes or longest) * (shape.body_weights + shape.head_weights)
    return Work(forward_flops(shape, groups), shape.bytes_a_number * (weights + keys_and_values))


def training(shape: Shape, groups: Sequence[Lengths], report: StepReport, examples_per_pass: int) -> tuple[Work, float]:
    """Training on the groups, `examples_per_pass` completions at a time, and of its operations those of the reference.

    The report counts a token as often as it was trained: more with several passes, less where rows were left out.
    """
    completions = [length for group in groups for length in group.completions]
    forward = forward_flops(shape, groups) / sum(completions)
    reference = forward * report.tokens.kl_count
    weights = shape.body_weights + shape.head_weights
    parts = ceil(len(completions) * report.tokens.count / sum(completions) / examples_per_pass)
    arrays = parts * (BACKWARD_AND_FORWARD + bool(reference))
    moved = weights * (arrays * shape.bytes_a_number + report.updates * ADAMW_ARRAYS * ADAMW_BYTES)
    return Work(BACKWARD_AND_FORWARD * forward * report.tokens.count + reference, moved), reference
