"""Sides of a comparison: each is a process that makes one round of steps per request, so that sides take turns.

The side `ours` makes steps as `rookworld train` does. Each side imports torch itself, because its process is prepared
before that, and measures its memory between the imports and the loading of the model.
"""

import ctypes
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Any

GIB, KIB_A_GIB = 2**30, 2**20
Round = dict[str, float]
# A side imports what it needs. For each number of steps that it receives it sends one Round; None ends it.
Side = Callable[[Connection, Any], None]


@contextmanager
def started(sides: Sequence[tuple[Side, Any]]) -> Iterator[list[Connection]]:
    """Start a process for each side with its settings and yield their connections; they end with the block."""
    spawn = multiprocessing.get_context("spawn")
    processes, ends = [], []
    for side, settings in sides:
        here, there = spawn.Pipe()
        process = spawn.Process(target=side, args=(there, settings), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        ends.append(here)
    try:
        yield ends
    finally:
        for end, process in zip(ends, processes, strict=True):
            with suppress(OSError):
                end.send(None)
            process.join()


def take_turns(ends: Sequence[Connection], *, rounds: int, steps: int, warmup_steps: int) -> list[list[Round]]:
    """Return a list of rounds for each side; each round begins with another side. Raises EOFError if a side died."""
    for end in ends if warmup_steps else ():
        _ask(end, warmup_steps)
    results: list[list[Round]] = [[] for _ in ends]
    for at in range(rounds):
        for i in range(len(ends)):
            side = (at + i) % len(ends)
            results[side].append(_ask(ends[side], steps))
    return results


def _ask(end: Connection, steps: int) -> Round:
    end.send(steps)
    answer: Round = end.recv()
    return answer


def medians(rounds: Sequence[Round]) -> Round:
    """Return the median of each figure; for memory (`_gib`) the highest value."""
    middle = {key: median(row[key] for row in rounds) for key in rounds[0]}
    return middle | {key: max(row[key] for row in rounds) for key in middle if key.endswith("_gib")}


def ratio(ours: Sequence[Round], theirs: Sequence[Round], key: str) -> tuple[float, float, float]:
    """Return median, lowest and highest of the ratios ours / theirs, one per round."""
    values = [our[key] / their[key] for our, their in zip(ours, theirs, strict=True)]
    return median(values), min(values), max(values)


class Counted:
    """Counts of a side's steps since the last request."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.lengths: list[int] = []
        self.rewards: list[float] = []
        self.updates = self.decode_steps = 0
        self.generate_s = self.score_s = 0.0
        self.started = time.perf_counter()

    def add_step(self, lengths: Sequence[int], rewards: Sequence[float]) -> None:
        """Count a step's completions. Both sides sample them as one batch, so the longest one has all decode steps."""
        self.lengths += lengths
        self.rewards += rewards
        self.decode_steps += max(lengths)

    def round(self, **others: float) -> Round:
        """Return the figures of the round, with those of `others` added; training is all but sampling and scoring."""
        wall_s = time.perf_counter() - self.started
        return {
            "completions_per_s": len(self.lengths) / wall_s,
            "wall_s": wall_s,
            "generate_s": self.generate_s,
            "score_s": self.score_s,
            "train_s": wall_s - self.generate_s - self.score_s,
            "decode_steps": self.decode_steps,
            "completions": len(self.lengths),
            "updates": self.updates,
            "length": fmean(self.lengths),
            "reward": fmean(self.rewards),
            **others,
        }


def configured(overrides: Sequence[str]) -> Any:
    """Return our configuration with these overrides and without evaluation, as its dataclass."""
    from omegaconf import OmegaConf

    from rookworld_rlvr.training.config import RunConfig

    dotlist = OmegaConf.from_dotlist([*overrides, "evaluation.rows=0"])
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), dotlist))


def ours(connection: Connection, overrides: Sequence[str]) -> None:
    """Make our side's rounds; see `Side`. Raises SystemExit for a step that failed or did not measure KL."""
    from rookworld_rlvr.app.process import prepare_process

    prepare_process()
    # A module in this folder.
    import roofline
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401 — every side has it before memory is looked at.

    from rookworld_rlvr.app.build import build_unsaved_run
    from rookworld_rlvr.training.memory import peak_memory_gib, step_peak_gib
    from rookworld_rlvr.training.step import grpo_step

    before_gib = begin_memory()
    context = build_unsaved_run(configured(overrides)).context
    shape = roofline.shape_of(context.policy.model, roofline.DTYPES[context.policy.precision].itemsize)
    counted, steps_done = Counted(), 0
    while (steps := connection.recv()) is not None:
        counted.begin()
        peaks_gib, train_flop = [], 0.0
        for _ in range(steps):
            report = grpo_step(context, steps_done)
            if report.fault is not None or not report.tokens.kl_count:
                raise SystemExit(f"expected a good step that measures KL, got {report.fault}")
            samples = [sample for group in report.groups for sample in group.samples]
            lengths = [len(sample.completion.tokens) for sample in samples]
            counted.add_step(lengths, [sample.score.total for sample in samples])
            counted.updates += report.updates
            counted.generate_s += report.times_s["generate"]
            counted.score_s += report.times_s["score"]
            forward = roofline.forward_flops(shape, [roofline.Lengths.of(group) for group in report.groups])
            train_flop += roofline.BACKWARD_AND_FORWARD * forward
            peaks_gib.append(step_peak_gib())
            steps_done += 1
        connection.send(
            counted.round(
                grown_gib=grown_gib(before_gib, peak_memory_gib()),
                peak_gib=peak_memory_gib(),
                step_peak_gib=max(peaks_gib),
                train_tflop=train_flop / 1e12,
            )
        )


def begin_memory() -> float:
    """Give free memory back, reset the process's peak, and return the resident memory in GiB (Linux, glibc)."""
    ctypes.CDLL(None).malloc_trim(0)
    # A sandbox may lack the file. On CUDA, where one is used, the memory that torch allocates counts anyway.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return resident_gib()


def resident_gib() -> float:
    """Return the resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / GIB


def grown_gib(before_gib: float, peak_gib: float) -> float:
    """Return how far the peak is above `before_gib`; on CUDA, where nothing was allocated before, the peak."""
    import torch

    return peak_gib if torch.cuda.is_initialized() else peak_gib - before_gib


def peak_gib() -> float:
    """Return the peak of resident memory since its last reset; the peak of allocated memory if CUDA is in use."""
    import torch

    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_A_GIB
