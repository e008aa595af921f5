"""Is memory flat over a run, and does it depend on the micro-batch alone?

    python benchmarks/memory.py
    python benchmarks/memory.py --steps 60 --early 10 20 --late 40 60 --prompts 4 8

Two tables of the step's own peak. Over steps: a run as `rookworld train` makes it; the bound is on the median
and on the largest of the late steps against the early ones. Over prompts: every completion is as long as
max_new_tokens allows, so that each step is the worst one there is, and the first, in which kernels are compiled, is
left out; the bound is on the largest. Each run has a process of its own. Exit code 1 if a bound is broken.
"""

# ruff: noqa: E402 — memory and threads are set before torch is imported.
from rookworld_rlvr.app.process import prepare_process

prepare_process()

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from omegaconf import OmegaConf

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.rollout.static_generator import StaticGenerator
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.memory import step_peak_gib
from rookworld_rlvr.training.state import StepContext
from rookworld_rlvr.training.step import grpo_step

WARMUP_STEPS = 2
# Small enough that the fewest prompts fill them.
SMALL_BATCHES = ["optim.micro_batch_size=16", "generator.batch_size=32"]
MIB_A_GIB = 1024


def peaks_mib(steps: int, overrides: list[str], *, endless: bool) -> list[float]:
    """Peak of each step of a fresh run, MiB."""
    raw = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.from_dotlist(["evaluation_rows=0", *overrides]))
    config: Any = OmegaConf.to_object(raw)
    run = build_unsaved_run(config)
    if endless:
        run.context.generator = never_ending(run.context, config)
        # Rewards of such completions are all alike; what is measured does not ask.
        run.config.recovery.enabled = False
    peaks = []
    for step in range(steps):
        report = grpo_step(run.context, step)
        if report.fault is not None:
            raise SystemExit(f"step {step + 1}: {report.fault}")
        peaks.append(step_peak_gib() * MIB_A_GIB)
        print(f"{' '.join(overrides)}  step {step + 1}: {peaks[-1]:.0f} MiB", file=sys.stderr, flush=True)
    return peaks


def never_ending(context: StepContext, config: RunConfig) -> StaticGenerator:
    """A generator that knows no end of text: its token lies behind the vocabulary."""
    policy = context.policy
    eos_id = int(policy.model.config.vocab_size)
    return StaticGenerator(policy.model, config.generator, eos_id=eos_id, pad_id=policy.pad_id)


def in_own_process(steps: int, overrides: list[str], *, endless: bool) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(peaks_mib, steps, overrides, endless=endless).result()


def over_steps(arguments: argparse.Namespace) -> bool:
    """Print the first table; whether it is within the bound."""
    peaks = in_own_process(arguments.steps, arguments.override, endless=False)
    early, late = (peaks[first - 1 : last] for first, last in (arguments.early, arguments.late))
    growths = [middle(late) / middle(early) - 1 for middle in (median, max)]
    for (first, last), values in ((arguments.early, early), (arguments.late, late)):
        print(f"steps {first}-{last}: median {median(values):.0f} MiB, largest {max(values):.0f} MiB")
    print(f"growth: median {growths[0]:+.1%}, largest {growths[1]:+.1%}, at most {arguments.bound:.1%}\n")
    return max(growths) <= arguments.bound


def over_prompts(arguments: argparse.Namespace) -> bool:
    """Print the second table; whether it is within the bound."""
    largest = []
    for prompts in arguments.prompts:
        overrides = [*SMALL_BATCHES, *arguments.override, f"objective.prompts_per_step={prompts}"]
        peaks = in_own_process(WARMUP_STEPS + arguments.steps_a_size, overrides, endless=True)
        largest.append(max(peaks[WARMUP_STEPS:]))
        print(f"{prompts:>3} prompts: largest {largest[-1]:.0f} MiB")
    spread = max(largest) / min(largest) - 1
    print(f"spread {spread:.1%}, at most {arguments.bound:.1%}")
    return spread <= arguments.bound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--early", type=int, nargs=2, default=(10, 20), metavar=("FIRST", "LAST"))
    parser.add_argument("--late", type=int, nargs=2, default=(100, 200), metavar=("FIRST", "LAST"))
    parser.add_argument("--prompts", type=int, nargs="+", default=(4, 8, 16, 32))
    parser.add_argument("--steps-a-size", type=int, default=3)
    parser.add_argument("--bound", type=float, default=0.02)
    parser.add_argument("override", nargs="*", help="of the configuration, as in optim.micro_batch_size=32")
    arguments = parser.parse_args()
    # Both tables, whatever the first says.
    return 0 if all([over_steps(arguments), over_prompts(arguments)]) else 1


if __name__ == "__main__":
    sys.exit(main())
