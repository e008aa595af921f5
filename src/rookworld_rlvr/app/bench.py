"""`rookworld bench [overrides]`: measure the speed of a configuration's step with each generator.

    rookworld bench 'bench.generators=[native,hf]' bench.rounds=5

It makes real steps, updates included, as `rookworld train` does. The generators take turns in one process, on the same
prompts and the same model, and each round begins with another generator. Figures are medians over rounds. A phase ends
when its result has been read from the device, so its time is correct on CUDA, too. `benchmarks/roofline.py` measures
the share of the machine's limits that a step uses.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import isnan
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from omegaconf import DictConfig

from ..errors import TrainingGaveUpError
from ..files import check_output_file, write_json
from ..model.device import device_name, synchronise
from ..model.policy import Policy
from ..rollout.generator import GeneratorKind
from ..training.memory import peak_memory_gib, step_peak_gib
from ..training.optim import micro_batch_size
from ..training.state import StepContext
from ..training.step import grpo_step
from .build import build_unsaved_run
from .config import BenchRunConfig
from .generators import make_generator
from .hydra_command import overrides, run_command, to_dataclass
from .tables import bench_table
from .train import resumed_config

PHASES = ("generate", "score", "train", "step")
Row = dict[str, float]


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command("bench", BenchRunConfig, argv, bench)


def bench(config: BenchRunConfig, raw: DictConfig) -> None:
    """Measure each generator, print the table, and write `bench.output`."""
    output = Path(config.bench.output) if config.bench.output else None
    if output is not None:
        check_output_file(output, "bench.output")
    if config.resume:
        config = to_dataclass(resumed_config(config.resume, raw, overrides()))
    run = build_unsaved_run(replace(config, evaluation=replace(config.evaluation, rows=0), resume=""))
    with closing(run):
        rounds = measure(run.context, config)
    figures = {"machine": machine(config, run.context.policy), **summary(rounds)}
    run.console.print(bench_table(figures))
    if output is not None:
        write_json(output, figures)


def measure(context: StepContext, config: BenchRunConfig) -> dict[GeneratorKind, list[Row]]:
    """Return the figures of each generator's rounds. Raises TrainingGaveUpError if a step failed."""
    kinds = config.bench.generators
    generators = {kind: make_generator(context.policy, replace(config.generator, kind=kind)) for kind in kinds}
    rows: dict[GeneratorKind, list[Row]] = {kind: [] for kind in kinds}
    for at in range(1 + config.bench.rounds):
        prompts = context.sampler.prompts.state_dict()
        first = at % len(kinds)
        for kind in [*kinds[first:], *kinds[:first]]:
            context.sampler.prompts.load_state_dict(prompts)
            context.sampler.generator = generators[kind]
            row = one_step(context, at)
            # The first round does not count, because kernels are chosen and memory is allocated in it.
            rows[kind] += [row] if at else []
    return rows


def one_step(context: StepContext, step: int) -> Row:
    """Make one step and return its figures. Raises TrainingGaveUpError if it failed or had nothing to train on."""
    synchronise(context.policy.device)
    report = grpo_step(context, step)
    if report.fault is not None:
        raise TrainingGaveUpError(f"the step failed: {report.fault}")
    if not report.updates:
        raise TrainingGaveUpError("the step had nothing to train on: expected groups of unequal rewards")
    completions, times_s, peak_gib = report.rollout.completions(), report.times_s, step_peak_gib()
    tokens = sum(len(done.tokens) for done in completions)
    return {
        "completions_per_s": len(completions) / times_s["step"],
        "tokens_per_s": tokens / times_s["generate"],
        **{f"{phase}_s": times_s[phase] for phase in PHASES},
        "score_share": times_s["score"] / times_s["step"],
        # The peak of the whole process if the system does not report the step's own.
        "peak_gib": peak_memory_gib() if isnan(peak_gib) else peak_gib,
        "completion_tokens": tokens / len(completions),
    }


def machine(config: BenchRunConfig, policy: Policy) -> dict[str, Any]:
    """Return the device, and the settings that determine the amount of work in a step."""
    return {
        "device": device_name(policy.device),
        "threads": torch.get_num_threads(),
        "precision": policy.precision.value,
        "prompts": config.objective.prompts_per_step,
        "group_size": config.objective.group_size,
        "max_new_tokens": config.generator.max_new_tokens,
        "micro_batch_size": micro_batch_size(config.optim, policy.model, policy.device),
    }


def summary(rounds: Mapping[GeneratorKind, Sequence[Row]]) -> dict[str, Any]:
    """Return each generator's medians, its ratios to hf, and the figures of every round."""
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
    """Return the median of each figure and, for the memory peak, the maximum."""
    middle = {key: median(row[key] for row in rows) for key in rows[0]}
    return middle | {"peak_gib": max(row["peak_gib"] for row in rows)}


def ratios(rows: Sequence[Row], others: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the median, lowest, highest and mean ratio of each rate over rounds."""
    by_rate = {}
    for key in ("completions_per_s", "tokens_per_s"):
        values = [row[key] / other[key] for row, other in zip(rows, others, strict=True)]
        by_rate[key] = {"median": median(values), "low": min(values), "high": max(values), "mean": fmean(values)}
    return by_rate
