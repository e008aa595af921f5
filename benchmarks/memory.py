"""Check that memory is constant over a run and does not depend on the number of prompts.

    python benchmarks/memory.py
    python benchmarks/memory.py --steps 60 --early 10 20 --late 40 60 --prompts 4 8

Two tables show the peaks of steps. Over steps: a run as `rookworld train` makes it; the bound is on the growth of the
median and of the largest peak from the early to the late steps. Over prompts: every completion is as long as
max_new_tokens allows, so that each step needs the most memory; the first steps, in which kernels are compiled, are left
out; the bound is on the spread of the largest peaks. Each run has a process of its own. The exit code is 1 if a bound
is exceeded.
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
from rookworld_rlvr.rollout.native_generator import NativeGenerator
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.memory import step_peak_gib
from rookworld_rlvr.training.state import StepContext
from rookworld_rlvr.training.step import grpo_step

WARMUP_STEPS = 2
# Small enough that the smallest number of prompts fills them.
SMALL_BATCHES = ["optim.micro_batch_size=16", "generator.batch_size=32"]
MIB_A_GIB = 1024


def peaks_mib(steps: int, overrides: list[str], *, endless: bool) -> list[float]:
    """Return the peak of each step of a fresh run in MiB; `endless`: no completion ends before max_new_tokens."""
    raw = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.from_dotlist(["evaluation.rows=0", *overrides]))
    config: Any = OmegaConf.to_object(raw)
    run = build_unsaved_run(config)
    if endless:
        run.context.sampler.generator = never_ending(run.context, config)
        # Such completions all have the same reward, which guards may refuse; memory does not depend on it.
        run.config.recovery.enabled = False
    peaks = []
    for step in range(steps):
        report = grpo_step(run.context, step)
        if report.fault is not None:
            raise SystemExit(f"step {step + 1}: {report.fault}")
        peaks.append(step_peak_gib() * MIB_A_GIB)
        print(f"{' '.join(overrides)}  step {step + 1}: {peaks[-1]:.0f} MiB", file=sys.stderr, flush=True)
    return peaks


def never_ending(context: StepContext, config: RunConfig) -> NativeGenerator:
    """Return a generator that never ends a completion: its end-of-text id is outside the vocabulary."""
    policy = context.policy
    eos_id = int(policy.model.config.vocab_size)
    return NativeGenerator(policy.model, config.generator, eos_id=eos_id, pad_id=policy.pad_id)


def in_own_process(steps: int, overrides: list[str], *, endless: bool) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(peaks_mib, steps, overrides, endless=endless).result()


def over_steps(arguments: argparse.Namespace) -> bool:
    """Print the first table and return whether it is within the bound."""
    peaks = in_own_process(arguments.steps, arguments.override, endless=False)
    early, late = (peaks[first - 1 : last] for first, last in (arguments.early, arguments.late))
    growths = [middle(late) / middle(early) - 1 for middle in (median, max)]
    for (first, last), values in ((arguments.early, early), (arguments.late, late)):
        print(f"steps {first}-{last}: median {median(values):.0f} MiB, largest {max(values):.0f} MiB")
    print(f"growth: median {growths[0]:+.1%}, largest {growths[1]:+.1%}, at most {arguments.bound:.1%}\n")
    return max(growths) <= arguments.bound


def over_prompts(arguments: argparse.Namespace) -> bool:
    """Print the second table and return whether it is within the bound."""
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
    # The list prints both tables, whatever the result of the first.
    return 0 if all([over_steps(arguments), over_prompts(arguments)]) else 1


if __name__ == "__main__":
    sys.exit(main())
