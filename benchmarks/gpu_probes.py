"""Parts of `gpu_visit.py` that no other command covers, each in a process of its own.

    python benchmarks/gpu_probes.py limits --json limits.json
    python benchmarks/gpu_probes.py weights --folder FOLDER --shapes gpt2 llama
    python benchmarks/gpu_probes.py decode --json decode.json --model FOLDER --batches 64 256 1024
    python benchmarks/gpu_probes.py start --folder FOLDER --data FOLDER --seconds 200 training.layers=8

A part ends with an exception or a nonzero exit code if its result is not as expected. The figures that it writes are
rows by name, which the page shows as they are.
"""

# ruff: noqa: E402 — memory and threads are set before torch is imported.
from rookworld_rlvr.app.process import prepare_process

prepare_process()

import argparse
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

# Modules in this folder.
import roofline
import torch
from gpt2_memory import save_random_model
from gpu_calls import BACK_MIB
from gpu_carry import EXAMPLES_FILE, split

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.model.device import (
    Device,
    Precision,
    allocated_peak_bytes,
    reset_allocated_peak,
    resolve_precision,
    select_device,
    synchronise,
)
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import Completions, GeneratorBaseConfig, Prompts
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.training.data import default_file
from rookworld_rlvr.training.memory import GIB

Rows = dict[str, dict[str, Any]]
Save = Callable[[Rows], None]
"""Function that keeps the figures so far."""
GROUP = 16
REPEATS = 3
# Steps of the recipe before its speed is measured; as many are measured, twice.
TIMED_STEPS = 10
# Steps of the recipe's `quick`.
QUICK_STEPS = 60
# Part of the seconds that steps may take; the others are for saving, and for steps that are slower than those measured.
OF_SECONDS = 0.85
CURVE_LINE = re.compile(r"^step (\d+)/\d+  (.*)$", re.M)


def limits(device: torch.device, save: Save, *, small: bool) -> None:
    """Save the best rates of a matrix product and of memory traffic on this device."""
    if small:
        roofline.MATMUL_SIZES, roofline.ARRAY_NUMBERS = (256, 512), 2**22
    dtype = roofline.DTYPES[resolve_precision(Precision.auto, device)]
    best = roofline.measure_limits(device, dtype)
    save({"limits": {"tflop_per_s": best.flops_per_s / 1e12, "gb_per_s": best.bytes_per_s / 1e9}})


def save_weights(folder: Path, shapes: Sequence[str], *, small: bool) -> None:
    """Write models with random weights, 124M parameters unless small, that are not there yet."""
    from transformers import GPT2Config, LlamaConfig

    gpt2 = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 8192} if small else {}
    llama: dict[str, Any] = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 2048}
    llama |= {"num_attention_heads": 12, "vocab_size": 50257, "max_position_embeddings": 2048}
    if small:
        llama |= {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
        llama["vocab_size"] = 8192
    for shape in shapes:
        config = GPT2Config(**gpt2) if shape == "gpt2" else LlamaConfig(**llama, tie_word_embeddings=True)
        if not (folder / f"random_{shape}" / "config.json").exists():
            save_random_model(str(folder / f"random_{shape}"), config)


def decode(policy: Policy, batches: Sequence[int], max_new_tokens: int, save: Save) -> None:
    """Save the time per decode step at each batch, eager and in CUDA graphs, and the share of equal completions.

    The pass over the prompts counts as one of the steps.
    """
    rows: Rows = {}
    examples = read_corpus(default_file("train.txt")).examples
    for batch in batches:
        group = min(GROUP, batch)
        prompts = [prompt_tokens(policy.tokenizer, example.prompt) for example in examples[: batch // group]]
        eager, rows[f"{batch} eager"] = timed(policy, prompts, group, max_new_tokens, graphs=False)
        if policy.device.type != "cuda":
            rows[f"{batch} graphs"] = {"reason": "there is no CUDA device"}
        else:
            drawn, row = timed(policy, prompts, group, max_new_tokens, graphs=True)
            speedup = rows[f"{batch} eager"]["decode_ms"] / row["decode_ms"]
            rows[f"{batch} graphs"] = row | {"ratio": speedup, "same_tokens": same_tokens(eager, drawn)}
        save(rows)


def timed(
    policy: Policy, prompts: Prompts, group: int, max_new_tokens: int, *, graphs: bool
) -> tuple[Completions, dict[str, float]]:
    """Return the completions, and medians of several times after a first one in which kernels are chosen."""
    size = len(prompts) * group
    config = GeneratorBaseConfig(max_new_tokens=max_new_tokens, batch_size=size, cuda_graph=graphs)
    on_cuda = policy.device.type == "cuda"
    if on_cuda:
        reset_allocated_peak()
    generator = make_generator(policy, config)
    generator.sync(policy.model)
    seeds, times_s, completions = range(len(prompts)), list[float](), []
    for _ in range(1 + REPEATS):
        synchronise(policy.device)
        started = time.perf_counter()
        completions = generator.generate(prompts, group_size=group, temperature=1.0, seeds=seeds)
        times_s.append(time.perf_counter() - started)
    lengths = [len(done.tokens) for of_prompt in completions for done in of_prompt]
    taken_s = median(times_s[1:])
    figures = {
        "decode_ms": 1000 * taken_s / max(lengths),
        "tokens_per_s": sum(lengths) / taken_s,
        "first_s": times_s[0],
    }
    return completions, figures | ({"peak_gib": allocated_peak_bytes() / GIB} if on_cuda else {})


def same_tokens(first: Completions, second: Completions) -> float:
    """Return the share of completions whose tokens are the same."""
    pairs = [pair for one, other in zip(first, second, strict=True) for pair in zip(one, other, strict=True)]
    return sum(one.tokens == other.tokens for one, other in pairs) / len(pairs)


def start(folder: Path, data: Path, seconds: float, options: Sequence[str], save: Save) -> None:
    """Train the recipe for about so many seconds; save its curve and evaluation, and leave the model in parts.

    The learning rate falls to 0 at the last step, so the number of steps is set before, by the time of the first ones.
    """
    options = [*options, f"examples={data / EXAMPLES_FILE}"]
    # The examples are for so many steps.
    most = next((int(word.partition("=")[2]) for word in options if word.startswith("training.steps=")), QUICK_STEPS)
    step_s = measured_step_s(folder, options)
    steps = min(most, max(2, int(OF_SECONDS * seconds / step_s)))
    rows: Rows = {"training": {"step_s": step_s, "steps": steps}}
    with recipe(folder, [*options, f"training.steps={steps}"]) as process:
        for line in printed(process):
            rows |= curve(line)
            save(rows)
    if process.returncode:
        raise SystemExit(f"expected exit code 0 of the recipe, got {process.returncode}")
    rows["evaluation"] = evaluated(folder / "evaluation.json")
    save(rows)
    with tarfile.open(folder / "model.tar", "w") as archive:
        archive.add(folder / "model", "model")
    split(folder / "model.tar", folder, BACK_MIB)


def recipe(folder: Path, options: Sequence[str]) -> subprocess.Popen[str]:
    """Start the recipe."""
    command = [sys.executable, "-m", "tiny_model", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def printed(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines that a process prints, and print them."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        yield line


def measured_step_s(folder: Path, options: Sequence[str]) -> float:
    """Return the seconds of a step of the recipe, by the times of its lines, after which it is ended."""
    trial = folder / "trial"
    trial.mkdir()
    often = [f"training.log_every={TIMED_STEPS}", f"training.save_every={10 * TIMED_STEPS}"]
    times_s = list[float]()
    with recipe(trial, [*options, *often]) as process:
        for line in printed(process):
            times_s += [time.perf_counter()] * bool(CURVE_LINE.match(line))
            if len(times_s) == 3:
                process.kill()
                return (times_s[2] - times_s[0]) / (2 * TIMED_STEPS)
    raise SystemExit(f"expected three lines of steps, got {len(times_s)}")


def curve(printed: str) -> Rows:
    """Return the losses that the recipe printed, by step."""
    rows: Rows = {}
    for step, line in CURVE_LINE.findall(printed):
        pairs = [shown.rsplit(" ", 1) for shown in line.split("  ")]
        rows[f"step {step}"] = {name.removesuffix(" ×"): float(value) for name, value in pairs}
    return rows


def evaluated(file: Path) -> dict[str, float]:
    """Return the headline figures of an evaluation."""
    from rookworld_rlvr.evaluation.headline import greedy_keys

    tables = [suite["table"] for suite in json.loads(file.read_text())["suites"].values()]
    return {key: table[key]["value"] for table in tables for key in greedy_keys() if key in table}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", choices=("limits", "weights", "decode", "start"))
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--folder", type=Path, help="weights, start: where to write")
    parser.add_argument("--shapes", nargs="+", default=[], choices=("gpt2", "llama"), help="weights: which")
    parser.add_argument("--small", action="store_true", help="limits, weights: for a dry call")
    parser.add_argument("--model", default="tiny", help="decode: tiny or a folder")
    parser.add_argument("--batches", nargs="+", type=int, default=[64], help="decode: numbers of completions")
    parser.add_argument("--max-new-tokens", type=int, default=144, help="decode: longest completion")
    parser.add_argument("--data", type=Path, help="start: the folder with the recipe's examples")
    parser.add_argument("--seconds", type=float, default=200, help="start: of training")
    parser.add_argument("options", nargs="*", help="start: options of the recipe")
    given = parser.parse_intermixed_args()
    device = select_device(Device.auto)

    def save(rows: Rows) -> None:
        if given.json:
            given.json.write_text(json.dumps(rows, indent=2))

    match given.probe:
        case "limits":
            limits(device, save, small=given.small)
        case "weights":
            save_weights(given.folder, given.shapes, small=given.small)
        case "decode":
            policy = load_policy(ModelConfig(path=given.model), device, Precision.auto)
            decode(policy, given.batches, given.max_new_tokens, save)
        case "start":
            start(given.folder, given.data, given.seconds, given.options, save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
