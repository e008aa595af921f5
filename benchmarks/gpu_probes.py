"""Parts of `gpu_visit.py` that no other command covers, each in a process of its own.

    python benchmarks/gpu_probes.py weights --folder FOLDER --small
    python benchmarks/gpu_probes.py out_of_memory --json out_of_memory.json model.path=FOLDER
    .venv-vllm/bin/python benchmarks/gpu_probes.py sleep --json sleep.json
    .venv-vllm/bin/python benchmarks/gpu_probes.py server --folder FOLDER debug=short

A part ends with an exception or a nonzero exit code if its result is not as expected.
"""

# ruff: noqa: E402 — memory and threads are set before torch is imported.
from rookworld_rlvr.app.process import prepare_process

prepare_process()

import argparse
import json
import subprocess
import sys
from pathlib import Path

# A module in this folder.
import sides
import torch

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.rollout.vllm_serve import READY
from rookworld_rlvr.training.memory import step_peak_gib
from rookworld_rlvr.training.state import StepContext
from rookworld_rlvr.training.step import grpo_step

SMALL = {"n_layer": 2, "n_embd": 128, "n_head": 2}
BIG_MICRO_BATCH, SMALL_MICRO_BATCH = 64, 8


def good_step(context: StepContext, step: int) -> float:
    """Make a step and return its peak of memory in GiB. Raises AssertionError if it failed."""
    report = grpo_step(context, step)
    assert report.fault is None and report.updates, f"expected a good step, got {report.fault or 'no update'}"
    return step_peak_gib()


def out_of_memory(overrides: list[str]) -> dict[str, float]:
    """Check that a step whose micro-batch does not fit into memory is repeated with half of it; return the figures."""
    context = build_unsaved_run(sides.configured(overrides)).context
    needs_gib = []
    for step, size in enumerate((SMALL_MICRO_BATCH, BIG_MICRO_BATCH)):
        context.config.optim.micro_batch_size = size
        torch.cuda.empty_cache()
        needs_gib.append(good_step(context, step))
    torch.cuda.empty_cache()
    allowed_gib = sum(needs_gib) / 2
    total_gib = torch.cuda.get_device_properties(0).total_memory / sides.GIB
    torch.cuda.set_per_process_memory_fraction(allowed_gib / total_gib)
    peak_gib = good_step(context, 2)
    halvings = context.recovery.halvings
    assert halvings > 0 and peak_gib <= allowed_gib, f"expected halvings below {allowed_gib:.2f} GiB, got {halvings}"
    return {"halvings": halvings, "needed_gib": needs_gib[1], "allowed_gib": allowed_gib, "peak_gib": peak_gib}


def sleep(overrides: list[str]) -> dict[str, float]:
    """Check that vLLM in this process gives its memory back while the trainer works; return the figures."""
    context = build_unsaved_run(sides.configured(["generator.kind=vllm", *overrides])).context
    peak_gib = max(good_step(context, step) for step in range(3))

    def used_gib() -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / sides.GIB

    torch.cuda.empty_cache()
    asleep_gib, generator = used_gib(), context.sampler.generator
    with generator._awake():  # type: ignore[attr-defined] # It is vLLM's.
        awake_gib = used_gib()
    assert asleep_gib < awake_gib and used_gib() < awake_gib, f"expected less than {awake_gib:.2f} GiB asleep"
    return {"asleep_gib": asleep_gib, "awake_gib": awake_gib, "peak_gib": peak_gib}


def serve_and_train(folder: Path, overrides: list[str]) -> int:
    """Train with a vLLM server of the shipped model. Return training's exit code."""
    command = ["-m", "rookworld_rlvr.rollout.vllm_serve", "tiny", "--port", "0"]
    # The server is in this process group, which the visit ends as a whole.
    server = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if line.startswith(READY))
        url = ready.removeprefix(READY).strip()
        sampler = ["generator.kind=vllm_server", f"generator.vllm.url={url}", "precision=bf16", f"output_root={folder}"]
        trained = [sys.executable, "-m", "rookworld_rlvr", "train", *sampler, *overrides]
        return subprocess.run(trained, check=False).returncode
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", choices=("weights", "out_of_memory", "sleep", "server"))
    parser.add_argument("--folder", type=Path, help="weights, server: where to write")
    parser.add_argument("--small", action="store_true", help="weights: two layers of width 128")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("overrides", nargs="*", help="of the configuration")
    given = parser.parse_intermixed_args()
    if given.probe == "weights":
        from gpt2_memory import random_gpt2

        random_gpt2(str(given.folder), **(SMALL if given.small else {}))
    elif given.probe == "server":
        return serve_and_train(given.folder, given.overrides)
    else:
        figures = (sleep if given.probe == "sleep" else out_of_memory)(given.overrides)
        print(figures)
        if given.json:
            given.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
