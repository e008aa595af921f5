"""On a simulated accelerator the whole command gives the CPU's numbers and rarely waits for the device."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SIMULATED = Path(__file__).with_name("simulated.py")
STEPS, FIRST = 3, 2
# A step waits once in each sampling pass and about 20 times in the update; earlier it was 7 and 40 times.
MOST_WAITS_A_STEP = 140


@pytest.fixture(scope="module")
def common(small_overrides: list[str]) -> list[str]:
    return [
        *small_overrides,
        "precision=fp32",
        "threads=1",
        "evaluation.rows=2",
        "evaluation.sampled_rows=1",
        "evaluation.match_pairs=0",
    ]


def run(command: list[str], root: Path, *arguments: str) -> tuple[Path, str]:
    """Run the command and return the run's folder and the printed text."""
    done = subprocess.run(
        [*command, "train", f"output_root={root}", *arguments], capture_output=True, text=True, check=False
    )
    if "SKIP" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-2000:]
    return next(root.glob("latest")).resolve(), done.stdout


@pytest.fixture(scope="module")
def simulated(common: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Return a run of two steps, resumed for a third, and how often each of the first two waited for the device."""
    root = tmp_path_factory.mktemp("simulated")
    command = [sys.executable, str(SIMULATED)]
    folder, printed = run(command, root, *common, f"steps={FIRST}", "checkpoint_every=1")
    waits = [int(count) for count in re.findall(r"^a step waited (\d+) times$", printed, re.M)]
    run(command, root, *common, f"steps={STEPS}", "checkpoint_every=1", f"resume={folder}")
    return folder, waits


@pytest.fixture(scope="module")
def on_cpu(common: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = [sys.executable, "-m", "rookworld_rlvr"]
    root = tmp_path_factory.mktemp("cpu")
    folder, _ = run(command, root, *common, f"steps={FIRST}", "checkpoint_every=1")
    run(command, root, *common, f"steps={STEPS}", "checkpoint_every=1", f"resume={folder}")
    return folder


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_simulated_device_gives_the_same_numbers_as_the_cpu(simulated: tuple[Path, list[int]], on_cpu: Path) -> None:
    folder, _ = simulated
    ours, theirs = metrics(folder), metrics(on_cpu)
    assert len(ours) == len(theirs) == STEPS
    for key in ("loss", "reward/mean", "kl/reference", "optim/grad_norm", "optim/update_norm"):
        assert [row[key] for row in ours] == pytest.approx([row[key] for row in theirs], rel=1e-3, abs=1e-6), key
    before, after = (json.loads((run / "summary.json").read_text()) for run in (folder, on_cpu))
    assert before["before"] == after["before"] and before["after"].keys() == after["after"].keys()
    weights = [torch.load(run / "checkpoints" / f"step-{STEPS}" / "trainer_state.pt") for run in (folder, on_cpu)]
    for name, tensor in weights[1]["policy"].items():
        torch.testing.assert_close(weights[0]["policy"][name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_step_waits_for_the_device_at_most_140_times(simulated: tuple[Path, list[int]]) -> None:
    _, waits = simulated
    assert len(waits) == FIRST and all(0 < count <= MOST_WAITS_A_STEP for count in waits), waits


def test_a_decode_step_that_can_be_captured_never_waits() -> None:
    """A CUDA graph cannot contain a value that Python reads, nor a tensor that is left on the CPU."""
    code = (
        f"import sys; sys.path.insert(0, {str(SIMULATED.parent)!r})\n"
        "import torch, simulated\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "from rookworld_rlvr.rollout.decode_graph import GraphBatch, GraphGenerator\n"
        "from rookworld_rlvr.rollout.generator import GeneratorConfig\n"
        "simulated._register()\n"
        "torch.__future__.set_swap_module_params_on_conversion(True)\n"
        "sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)\n"
        "model, step, waits = LlamaForCausalLM(LlamaConfig(**sizes)).eval(), GraphBatch._static_step, []\n"
        "def counted(batch):\n"
        "    before = simulated.Simulated.waits\n"
        "    step(batch)\n"
        "    waits.append(simulated.Simulated.waits - before)\n"
        "GraphBatch._static_step = counted\n"
        "with simulated.Simulated():\n"
        "    generator = GraphGenerator(model.to('sim'), GeneratorConfig(max_new_tokens=9), eos_id=0, pad_id=1)\n"
        "    [group] = generator.generate([(5, 6, 7)], group_size=4, temperature=1.0, seeds=[1])\n"
        "assert waits == [0] * 8 and len(group) == 4, waits\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "lacks the hook" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_a_tensor_left_on_the_cpu_raises() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SIMULATED.parent)!r})\n"
        "import torch, simulated\n"
        "simulated._register()\n"
        "with simulated.Simulated():\n"
        "    there = torch.arange(4.0, device='sim')\n"
        "    assert (there * 2).sum().item() == 12.0 and simulated.Simulated.waits == 1\n"
        "    there + torch.ones(4)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "expected all tensors on one device" in done.stderr
