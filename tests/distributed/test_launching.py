"""A command that starts several processes has one run, one folder and one line for an error."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.weights import checksum

SOURCE = Path(__file__).resolve().parents[2] / "src"
TWO = ["processes=2"]
SHORT = ["steps=6", "checkpoint_every=2", "evaluation.rows=0", "generator.max_new_tokens=16"]
PATIENCE_S = 300


@pytest.fixture
def command(small_overrides: list[str], tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts `rookworld train`, or another command, on the small model."""

    def start(*overrides: str, root: str = "outputs", name: str = "train") -> subprocess.Popen[str]:
        given = [*small_overrides, *SHORT, f"output_root={tmp_path / root}", *overrides]
        return subprocess.Popen(
            [sys.executable, "-m", "rookworld_rlvr", name, *given],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, error = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, out, error


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "throughput/", "memory/"))} for row in rows]


def ranks_of(parent: int) -> Iterator[int]:
    """Yield the ids of the processes that torchrun has started, in the order of their ranks."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(
                entry.split("=", 1) for entry in (folder / "environ").read_text().split("\0") if entry.count("=")
            )
            words = (folder / "cmdline").read_text().split("\0")
            group = os.getpgid(int(folder.name))
        except (OSError, ValueError):
            continue
        if group == parent and "RANK" in environment and words[1:3] == ["-m", "rookworld_rlvr"]:
            pids[environment["RANK"]] = int(folder.name)
    yield from (pid for _, pid in sorted(pids.items()))


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def steps_done(root: Path) -> int:
    [path] = root.glob("*/*/metrics.jsonl") if list(root.glob("*/*/metrics.jsonl")) else [None]
    return 0 if path is None else len(path.read_text().splitlines())


@pytest.mark.slow
def test_run_of_two_processes_resumes_on_one_process(command: Callable[..., Any], tmp_path: Path) -> None:
    code, out, error = ended(command(*TWO))
    assert code == 0, out + error
    folder = (tmp_path / "outputs" / "latest").resolve()
    assert [row["step"] for row in metrics(folder)] == [1, 2, 3, 4, 5, 6]
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 2
    assert out.count("step    6/6") == out.count("report: ") == 1 and (folder / "report.html").is_file()
    assert main(["train", f"resume={folder / 'checkpoints' / 'step-4'}", "processes=1"]) == 0
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 1


@pytest.mark.slow(minutes=2)
def test_sharded_run_saves_a_loadable_model_and_resumes_unsharded(command: Callable[..., Any], tmp_path: Path) -> None:
    shards = ("distributed=fsdp2", "processes=2", "threads=2")
    whole = ["evaluation.rows=4", "evaluation.match_pairs=2", "evaluation.match_plies=4", "evaluation.sampled_rows=2"]
    for name in ("smoke", "train"):
        code, out, error = ended(command(*shards, *whole, name=name))
        assert code == 0, out + error
    folder = (tmp_path / "outputs" / "latest").resolve()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["ranks"] == 2 and summary["match"]["score"]["n"] == 4 and summary["after"]
    saved = folder / "checkpoints" / "step-6"
    loaded = AutoModelForCausalLM.from_pretrained(saved)
    assert checksum(loaded) == summary["hashes"]["model after"]
    assert json.loads((saved / "config.json").read_text())["architectures"] == [type(loaded).__name__]
    for kind in (("processes=1",), (*shards, "generator.kind=hf")):
        code, out, error = ended(command(f"resume={folder / 'checkpoints' / 'step-4'}", *kind, *whole))
        assert code == 0, out + error
        assert [row["step"] for row in metrics(folder)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_error_of_several_ranks_is_printed_once_with_exit_code_2(command: Callable[..., Any]) -> None:
    code, _, error = ended(command(*TWO, "model.path=/nope"))
    assert code == 2 and error.count("\n") == 1 and "model.path: expected a folder" in error


@pytest.mark.slow
def test_resume_auto_continues_an_interrupted_run_on_one_process(command: Callable[..., Any], tmp_path: Path) -> None:
    process = command(*TWO, "steps=400")
    wait_for(lambda: steps_done(tmp_path / "outputs") > 2)
    process.send_signal(signal.SIGINT)
    code, out, error = ended(process)
    assert code == 130, out + error
    [folder] = (tmp_path / "outputs").glob("*/*-grpo")
    done = steps_done(tmp_path / "outputs")
    assert json.loads((folder / "summary.json").read_text())["stopped"] == "interrupted" and done < 400
    # Another configuration starts a new run.
    assert ended(command("resume=auto"))[0] == 0
    assert len(list((tmp_path / "outputs").glob("*/*-grpo"))) == 2
    process = command("resume=auto", "steps=400", "max_minutes=0.01")
    code, out, error = ended(process)
    assert code == 0 and str(folder) in out, out + error


@pytest.mark.slow(minutes=2)
def test_resume_with_other_process_counts_matches_unbroken_run(command: Callable[..., Any], tmp_path: Path) -> None:
    four = ["processes=4", "objective.prompts_per_step=4", "optim.micro_batch_size=4"]
    assert ended(command(*four, root="whole"))[0] == 0
    two, alone = [*four, "processes=2"], [*four, "processes=1"]
    # A run whose time limit is over ends after one step.
    for kind, *limit in ((two, "max_minutes=1e-9"), (alone, "max_minutes=1e-9"), (four,)):
        code, out, error = ended(command(*kind, *limit, "resume=auto", root="parts"))
        assert code == 0, out + error
    whole, parts = (metrics((tmp_path / root / "latest").resolve()) for root in ("whole", "parts"))
    assert [row["step"] for row in parts] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(parts, whole, strict=True):
        for key in ("loss", "optim/grad_norm", "policy/logprob_mean", "reward/mean"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-5), (key, ours["step"])


def killed_and_resumed(command: Callable[..., Any], root: Path, rng: random.Random) -> None:
    """Kill a rank at a random moment, then resume the run until it is finished."""
    process = command(*TWO, root=root.name)
    after = rng.randrange(6)
    wait_for(lambda: steps_done(root) >= after)
    time.sleep(rng.random())
    pids = list(ranks_of(process.pid))
    if pids:
        os.kill(rng.choice(pids), signal.SIGKILL)
    code = ended(process)[0]
    assert code in (0, 128 + signal.SIGKILL)
    code, out, error = ended(command(*TWO, "resume=auto", root=root.name))
    assert code == 0, out + error


@pytest.mark.slow(minutes=2)
def test_runs_with_a_killed_rank_resume_to_the_same_metrics(command: Callable[..., Any], tmp_path: Path) -> None:
    assert ended(command(*TWO, root="alone"))[0] == 0
    alone = metrics((tmp_path / "alone" / "latest").resolve())
    rng = random.Random(0)
    for number in range(2):
        root = tmp_path / f"killed-{number}"
        killed_and_resumed(command, root, rng)
        assert metrics((root / "latest").resolve()) == alone
