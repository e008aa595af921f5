"""Share of the machine's limits that a training step uses: MFU and bandwidth, for each generator.

    python benchmarks/roofline.py
    python benchmarks/roofline.py --generators native hf --rounds 5 device=cuda

The limits are measured first: a large matrix product, and reading, copying and adding large arrays. Work counts only
what any program would have to do: each prompt once per group, each token of a completion once, no padding and nothing
computed twice. So unnecessary computation cannot push a share above 1.

Floating point operations, a multiplication and an addition being two:

- forward: 2 per weight of the body (embeddings are looked up) and token; 2 per weight of the head and token that is
  sampled or trained; in attention 4 · layers · width per pair of a token and one that it sees;
- generation: one forward pass; training: 3 (one forward, two backward); reference: 1, counted separately;
- optimiser, norms, softmax and loss: not counted, because they are small in comparison.

Bytes, 2 per number in bf16 and 4 in fp32 and in the optimiser:

- generation: the weights once per pass of the model, in the thread that makes most passes; keys and values of prompts
  (once per group) and completions, written once and read in every pass until the completion ends;
- training, per micro-batch: the weights read forward and backward and the gradient written; the reference's weights
  once; AdamW reads weight, gradient and two moments and writes three of them. Activations are not counted.
"""

# ruff: noqa: E402 — memory and threads are set before torch is imported.
from rookworld_rlvr.app.process import prepare_process

prepare_process()

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from threading import get_ident

# A module in this folder.
import sides
import torch
from torch import nn
from transformers import PreTrainedModel

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.model.device import Precision, is_accelerator, synchronise
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import Generator, SampledCompletion
from rookworld_rlvr.rollout.groups import Group
from rookworld_rlvr.training.state import StepContext, StepReport
from rookworld_rlvr.training.step import examples_per_pass, grpo_step

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp32: torch.float32}
BACKWARD_AND_FORWARD = 3
# Sizes of square matrices that keep the machine busy, and of arrays that fit into no cache.
MATMUL_SIZES, ACCELERATOR_MATMUL_SIZES = (1024, 2048), (4096, 8192)
ARRAY_NUMBERS, ACCELERATOR_ARRAY_NUMBERS = 2**26, 2**28
REPEATS = 5


# Read: weight, gradient, two moments. Written: weight, two moments.
ADAMW_ARRAYS, ADAMW_BYTES = 7, 4


@dataclass(frozen=True, slots=True)
class Limits:
    """The best rates that were measured."""

    flops_per_s: float
    """A large matrix product at the run's precision; a multiplication and an addition are two."""
    bytes_per_s: float
    """The best of reading, copying and a triad (a + s·b → c) of large arrays; each array counts once."""


def measure_limits(device: torch.device, dtype: torch.dtype) -> Limits:
    """Measure the limits of this device with torch's current number of threads; the matrix product uses `dtype`."""
    return Limits(_flops_per_s(device, dtype), _bytes_per_s(device))


def _flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    rates = []
    for size in ACCELERATOR_MATMUL_SIZES if is_accelerator(device) else MATMUL_SIZES:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        rates.append(2 * size**3 / _best_s(partial(torch.mm, a, b, out=out), device))
    return max(rates)


def _bytes_per_s(device: torch.device) -> float:
    numbers = ACCELERATOR_ARRAY_NUMBERS if is_accelerator(device) else ARRAY_NUMBERS
    a, b, c = (torch.ones(numbers, device=device) for _ in range(3))
    array_bytes = a.numel() * a.element_size()
    ways: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: a.sum()),
        (2, lambda: b.copy_(a)),
        (3, lambda: torch.add(a, b, alpha=0.5, out=c)),
    ]
    return max(arrays * array_bytes / _best_s(way, device) for arrays, way in ways)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """Return the shortest of several times; the first, in which kernels are chosen, does not count."""
    times_s = []
    for _ in range(1 + REPEATS):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        times_s.append(time.perf_counter() - started)
    return min(times_s[1:])


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a dense decoder that decide its work."""

    body_weights: int
    """Number of weights without embeddings and head."""
    head_weights: int
    layers: int
    query_width: int
    """Number of heads times their width."""
    key_width: int
    """Number of key heads times their width; smaller than query_width if query heads share key heads."""
    bytes_per_number: int


@dataclass(frozen=True, slots=True)
class Work:
    """The least operations and memory traffic that are needed."""

    flops: float = 0.0
    bytes: float = 0.0

    def least_s(self, limits: Limits) -> float:
        """Return the shortest time in which a machine with these limits can do the work."""
        return max(self.flops / limits.flops_per_s, self.bytes / limits.bytes_per_s)

    def bound(self, limits: Limits) -> str:
        """Return the limit that determines that time: compute or memory."""
        return "compute" if self.flops / limits.flops_per_s > self.bytes / limits.bytes_per_s else "memory"


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of a group in tokens."""

    prompt: int
    completions: tuple[int, ...]
    """Lengths of the completions, end of text included; at least 1 each."""

    @classmethod
    def of(cls, group: Group) -> "Lengths":
        return cls(len(group.prompt_tokens), tuple(len(sample.completion.tokens) for sample in group.samples))

    def inputs(self) -> int:
        """Return the number of tokens that go through the model: all but the last of each completion."""
        return self.prompt + sum(length - 1 for length in self.completions)

    def pairs(self) -> int:
        """Return the number of pairs of a token and one that it sees, itself included."""
        own = sum((length - 1) * self.prompt + length * (length - 1) // 2 for length in self.completions)
        return self.prompt * (self.prompt + 1) // 2 + own


def shape_of(model: PreTrainedModel, bytes_per_number: int) -> Shape:
    """Return the shape of a transformers model; a mixture of experts counts as if all experts were used."""
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
        bytes_per_number=bytes_per_number,
    )


def forward_flops(shape: Shape, groups: Sequence[Lengths]) -> float:
    """Return the operations of one forward pass over the groups."""
    inputs, pairs = sum(group.inputs() for group in groups), sum(group.pairs() for group in groups)
    sampled = sum(sum(group.completions) for group in groups)
    dense = 2 * (shape.body_weights * inputs + shape.head_weights * sampled)
    return float(dense + 4 * shape.layers * shape.query_width * pairs)


def generation(shape: Shape, groups: Sequence[Lengths], passes: int) -> Work:
    """Return the work of sampling the groups in `passes` forward passes; 0: unknown, as for an external generator."""
    longest = max(max(group.completions) for group in groups)
    # Fewer passes read the keys less often.
    reading = min(1.0, passes / longest) if passes else 1.0
    read = sum(
        group.prompt * max(group.completions) + sum(length * (length - 1) // 2 for length in group.completions)
        for group in groups
    )
    written = sum(group.inputs() for group in groups)
    keys_and_values = 2 * shape.layers * shape.key_width * (written + reading * read)
    weights = (passes or longest) * (shape.body_weights + shape.head_weights)
    return Work(forward_flops(shape, groups), shape.bytes_per_number * (weights + keys_and_values))


def training(shape: Shape, groups: Sequence[Lengths], report: StepReport, examples_per_pass: int) -> tuple[Work, float]:
    """Return the work of training on the groups in micro-batches, and the operations in it that are the reference's.

    The report counts a token as often as it was trained: more with several epochs, less if examples were left out.
    """
    completions = [length for group in groups for length in group.completions]
    forward = forward_flops(shape, groups) / sum(completions)
    reference = forward * report.tokens.kl_count
    weights = shape.body_weights + shape.head_weights
    parts = ceil(len(completions) * report.tokens.count / sum(completions) / examples_per_pass)
    arrays = parts * (BACKWARD_AND_FORWARD + bool(reference))
    moved = weights * (arrays * shape.bytes_per_number + report.updates * ADAMW_ARRAYS * ADAMW_BYTES)
    return Work(BACKWARD_AND_FORWARD * forward * report.tokens.count + reference, moved), reference


class LengthsOfGroups:
    """A generator that keeps the lengths of its groups, including those that are not trained on. See `Generator`."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self.groups: list[Lengths] = []

    def sync(self, model: PreTrainedModel) -> None:
        self._generator.sync(model)

    def weights_checksum(self) -> str:
        return self._generator.weights_checksum()

    def generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        group_size: int,
        temperature: float,
        seeds: Sequence[int] = (),
        top_k: int = 0,
    ) -> list[list[SampledCompletion]]:
        groups = self._generator.generate(
            prompts, group_size=group_size, temperature=temperature, seeds=seeds, top_k=top_k
        )
        self.groups += [
            Lengths(len(prompt), tuple(len(completion.tokens) for completion in group))
            for prompt, group in zip(prompts, groups, strict=True)
        ]
        return groups


@contextmanager
def counted_passes(model: PreTrainedModel) -> Iterator[Counter[int]]:
    """Count by thread the body's forward passes without a gradient in evaluation mode, which are those of sampling."""
    passes = Counter[int]()

    def add(module: nn.Module, *_: object) -> None:
        passes[get_ident()] += not module.training and not torch.is_grad_enabled()

    handle = model.base_model.register_forward_pre_hook(add)
    try:
        yield passes
    finally:
        handle.remove()


def step_figures(context: StepContext, step: int, shape: Shape, limits: Limits) -> sides.Round:
    """Make a training step; return its shares of the limits. Raises SystemExit if it failed or made no update."""
    generator = context.sampler.generator = LengthsOfGroups(context.sampler.generator)
    synchronise(context.policy.device)
    with counted_passes(context.policy.model) as passes:
        report = grpo_step(context, step)
    context.sampler.generator = generator._generator
    if report.fault is not None or not report.updates:
        raise SystemExit(f"expected a good step with an update, got {report.fault or 'no update'}")
    trained_groups = [Lengths.of(group) for group in report.groups]
    per_pass = examples_per_pass(context, sum(len(group.completions) for group in trained_groups))
    # The threads read the same weights at the same time, so the longest sequence of passes is what has to be read.
    longest = max(passes.values(), default=0)
    sampled = generation(shape, generator.groups, longest)
    trained = training(shape, trained_groups, report, per_pass)
    return shares(sampled, *trained, report.times_s, limits) | {"passes": longest}


def shares(
    sampled: Work, trained: Work, reference_flops: float, times_s: dict[str, float], limits: Limits
) -> sides.Round:
    """Return MFU, shares of the limit that binds, and the work. Raises AssertionError for a share above 1."""
    own_flops = trained.flops - reference_flops
    by_key = {
        "mfu/step": (sampled.flops + trained.flops) / limits.flops_per_s / times_s["step"],
        "mfu/train": own_flops / limits.flops_per_s / times_s["train"],
        "share/train": trained.least_s(limits) / times_s["train"],
        "share/generate": sampled.least_s(limits) / times_s["generate"],
    }
    assert all(0 < share <= 1 for share in by_key.values()), f"expected shares in (0, 1], got {by_key}"
    return {
        **by_key,
        "bandwidth/generate": sampled.bytes / limits.bytes_per_s / times_s["generate"],
        "memory_bound/generate": float(sampled.bound(limits) == "memory"),
        "gflop/generate": sampled.flops / 1e9,
        "gflop/train": own_flops / 1e9,
        "gflop/reference": reference_flops / 1e9,
        "gib/generate": sampled.bytes / 2**30,
    }


def measure(kind: str, rounds: int, overrides: Sequence[str]) -> tuple[Limits, sides.Round]:
    """Return limits of this machine, and medians over the steps of a fresh run; one step before them does not count.

    The loss of legal moves is off, because `training` does not count its work.
    """
    overrides = ["objective.all_moves_coef=0", *overrides]
    with closing(build_unsaved_run(sides.configured([*overrides, f"generator.kind={kind}"]))) as run:
        policy = run.context.policy
        limits, shape = limits_and_shape(policy)
        rows = [step_figures(run.context, step, shape, limits) for step in range(1 + rounds)][1:]
    return limits, {key: median(row[key] for row in rows) for key in rows[0]}


def limits_and_shape(policy: Policy) -> tuple[Limits, Shape]:
    """Return the limits of the policy's device at its precision, and the shape of its model."""
    dtype = DTYPES[policy.precision]
    return measure_limits(policy.device, dtype), shape_of(policy.model, dtype.itemsize)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generators", nargs="+", default=["native", "hf"], help="default native and hf")
    parser.add_argument("--rounds", type=int, default=3, help="steps of each generator (default 3)")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("overrides", nargs="*", help="of the configuration, as in device=cuda; behind --")
    given = parser.parse_args()
    figures = {}
    for kind in given.generators:
        limits, row = measure(kind, given.rounds, given.overrides)
        print(f"{kind}: {limits.flops_per_s / 1e12:.3f} TFLOP/s, {limits.bytes_per_s / 1e9:.1f} GB/s, measured now")
        print("\n".join(f"  {key:<22} {value:.4g}" for key, value in row.items()))
        figures[kind] = {"limits": asdict(limits), **row}
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
