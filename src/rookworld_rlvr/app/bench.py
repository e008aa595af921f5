"""`rookworld bench [overrides]`: how fast a step of this configuration is with each generator.

    rookworld bench 'bench.generators=[static,hf]' bench.rounds=5

It makes real steps, updates included, as `rookworld train` does. The generators take turns in one process, on the same
prompts and the same model, and each round begins with another generator; figures are medians of rounds. A phase ends
when its result has been read from the device, so its seconds are right on CUDA too. `machine` measures the limits of
the machine, and `work` defines what counts as work.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import PreTrainedModel

from ..errors import TrainingGaveUpError, UserError
from ..files import write_json
from ..model.device import Precision, device_name, synchronise
from ..model.policy import Policy
from ..rollout.generator import Generator, GeneratorKind, SampledCompletion
from ..training.memory import peak_memory_gib, step_peak_gib
from ..training.run import Run
from ..training.state import StepReport
from ..training.step import grpo_step
from .build import build_unsaved_run
from .config import BenchRunConfig
from .generators import make_generator
from .hydra_command import overrides, run_command, to_dataclass
from .machine import Limits, measure_limits
from .tables import bench_tables
from .train import resumed_config
from .work import Lengths, Shape, Work, generation, shape_of, training

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp32: torch.float32}
PHASES = ("generate", "score", "train", "step")
Row = dict[str, float]


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    return run_command("bench", BenchRunConfig, argv, bench)


def bench(config: BenchRunConfig, raw: DictConfig) -> None:
    """Measure, show, and write what was asked for."""
    if config.bench.output and not Path(config.bench.output).resolve().parent.is_dir():
        raise UserError(f"bench.output: expected a file in a folder that exists, got {config.bench.output}")
    if config.resume:
        config = to_dataclass(resumed_config(config.resume, raw, overrides()))
    run = build_unsaved_run(replace(config, evaluation_rows=0, resume="", max_staleness=0))
    policy = run.context.policy
    dtype = DTYPES[policy.precision]
    limits, shape = measure_limits(policy.device, dtype), shape_of(policy.model, dtype.itemsize)
    with closing(run):
        rounds = measure(Measured(run, config, limits, shape))
    figures = {"machine": machine(config, policy, limits), **summary(rounds)}
    for table in bench_tables(figures):
        run.console.print(table)
    if config.bench.output:
        write_json(Path(config.bench.output), figures)


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured, and against what."""

    run: Run
    config: BenchRunConfig
    limits: Limits
    shape: Shape


def measure(bench: Measured) -> dict[GeneratorKind, list[Row]]:
    """The figures of each generator's rounds. Raises TrainingGaveUpError for a step that failed."""
    context, kinds = bench.run.context, bench.config.bench.generators
    generators = {
        kind: Noting(make_generator(context.policy, replace(bench.config.generator, kind=kind))) for kind in kinds
    }
    rows: dict[GeneratorKind, list[Row]] = {kind: [] for kind in kinds}
    for at in range(1 + bench.config.bench.rounds):
        prompts = context.prompts.state_dict()
        first = at % len(kinds)
        for kind in [*kinds[first:], *kinds[:first]]:
            context.prompts.load_state_dict(prompts)
            context.generator = generators[kind]
            row = one_step(bench, generators[kind], at)
            # Of the first round kernels are chosen and memory is asked for.
            rows[kind] += [row] if at else []
    return rows


class Noting:
    """A generator that notes how long its groups are, those that are not trained on included. See `Generator`."""

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
            Lengths(len(prompt), tuple(len(done.tokens) for done in group))
            for prompt, group in zip(prompts, groups, strict=True)
        ]
        return groups


def one_step(bench: Measured, generator: Noting, step: int) -> Row:
    """A step's figures. Raises TrainingGaveUpError where it failed or had nothing to train on."""
    context = bench.run.context
    generator.groups = []
    synchronise(context.policy.device)
    with counted_passes(context.policy.model) as passes:
        report = grpo_step(context, step)
    if report.fault is not None:
        raise TrainingGaveUpError(f"the step failed: {report.fault}")
    if not report.updates:
        raise TrainingGaveUpError("the step had nothing to train on: expected groups of unequal rewards")
    return figures_of(bench, report, generator.groups, passes[0])


@contextmanager
def counted_passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """Counts the body's passes without a gradient in evaluation mode, which are those of sampling."""
    passes = [0]

    def add(module: torch.nn.Module, *_: object) -> None:
        passes[0] += not module.training and not torch.is_grad_enabled()

    handle = model.base_model.register_forward_pre_hook(add)
    try:
        yield passes
    finally:
        handle.remove()


def figures_of(bench: Measured, report: StepReport, groups: Sequence[Lengths], passes: int) -> Row:
    """Rates, seconds, memory, and shares of the machine. Raises AssertionError for a share above 1."""
    limits, times_s = bench.limits, report.times_s
    tokens = sum(sum(group.completions) for group in groups)
    sampled = generation(bench.shape, groups, passes)
    kept = [Lengths.of(group) for group in report.groups]
    examples_per_pass = bench.run.context.examples_per_pass(sum(len(group.completions) for group in kept))
    trained, reference_flops = training(bench.shape, kept, report, examples_per_pass)
    step_flops, own_flops = sampled.flops + trained.flops, trained.flops - reference_flops
    shares = {
        "share/generate": sampled.least_s(limits) / times_s["generate"],
        "share/train": trained.least_s(limits) / times_s["train"],
        "mfu/train": own_flops / limits.flops_per_s / times_s["train"],
        "mfu/step": step_flops / limits.flops_per_s / times_s["step"],
    }
    assert all(0 < share <= 1 for share in shares.values()), f"expected shares of the machine in (0, 1], got {shares}"
    peak_gib = step_peak_gib()
    return {
        "completions_per_s": report.collection.sampled_completions / times_s["step"],
        "tokens_per_s": tokens / times_s["generate"],
        **{f"{phase}_s": times_s[phase] for phase in PHASES},
        "score_share": times_s["score"] / times_s["step"],
        # Where the system does not tell a step's own peak: that of the process.
        "peak_gib": peak_memory_gib() if peak_gib != peak_gib else peak_gib,
        **shares,
        **_in_gflop(sampled, own_flops, reference_flops),
        "gib/generate": sampled.bytes / 2**30,
        "memory_bound/generate": float(sampled.bound(limits) == "memory"),
        "passes": passes,
        "completion_tokens": tokens / report.collection.sampled_completions,
    }


def _in_gflop(sampled: Work, own_flops: float, reference_flops: float) -> Row:
    flops = {"generate": sampled.flops, "train": own_flops, "reference": reference_flops}
    return {f"gflop/{name}": value / 1e9 for name, value in flops.items()}


def machine(config: BenchRunConfig, policy: Policy, limits: Limits) -> dict[str, Any]:
    """What it was measured on."""
    name = device_name(policy.device)
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "precision": policy.precision.value,
        "prompts": config.objective.prompts_per_step,
        "group_size": config.objective.group_size,
        "max_new_tokens": config.generator.max_new_tokens,
        "micro_batch_size": config.optim.micro_batch_size,
        **asdict(limits),
    }


def summary(rounds: Mapping[GeneratorKind, Sequence[Row]]) -> dict[str, Any]:
    """Medians of each generator, its ratios to hf round by round, and every round."""
    return {
        "generators": {kind.value: medians(rows) for kind, rows in rounds.items()},
        "ratios_to_hf": {
            kind.value: ratios(rows, rounds[GeneratorKind.hf])
            for kind, rows in rounds.items()
            if GeneratorKind.hf in rounds and kind is not GeneratorKind.hf
        },
        "rounds": {kind.value: list(rows) for kind, rows in rounds.items()},
    }


def medians(rows: Sequence[Row]) -> Row:
    """The median of each figure, and the highest memory peak."""
    found = {key: median(row[key] for row in rows) for key in rows[0]}
    return found | {"peak_gib": max(row["peak_gib"] for row in rows)}


def ratios(rows: Sequence[Row], others: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Ratios of the rates, round by round: median, lowest, highest."""
    found = {}
    for key in ("completions_per_s", "tokens_per_s"):
        values = [row[key] / other[key] for row, other in zip(rows, others, strict=True)]
        found[key] = {"median": median(values), "low": min(values), "high": max(values), "mean": fmean(values)}
    return found
