"""A run that was stopped and resumed equals an uninterrupted run."""

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn

from rookworld_rlvr.app import build
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.train import _unfinished
from rookworld_rlvr.model.loading import load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.training import trainer
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.run_files import is_unfinished, locked, unfinished
from rookworld_rlvr.training.state import Event, Hook, Moment, StepContext
from rookworld_rlvr.training.trainer import _stop_on_signal
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
MakeRun = Callable[..., Run]
SOURCE = Path(__file__).resolve().parents[2] / "src"
OF_THE_MACHINE = ("time/", "throughput/", "memory/")
PATIENCE_S = 120
# Small and short, because the tests compare runs and need no learning.
TWENTY = (
    "steps=20",
    "checkpoint_every=7",
    "objective.group_size=3",
    "generator.max_new_tokens=16",
    "optim.lr=0.001",
    "evaluation.rows=0",
)


@pytest.fixture(autouse=True)
def keep_all(set_limits: Callable[..., None]) -> None:
    """Keep all checkpoints, and the transcripts of steps before and after a kill."""
    set_limits(KEEP_CHECKPOINTS=9, TRANSCRIPTS_EVERY=4)


# The kill is in the middle of the tenth step, two finished steps after the newest checkpoint.
KILLED_IN_STEP, RESUMED_FROM = 10, 7


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoints(folder: Path) -> list[str]:
    """The names of the checkpoints in a run's folder, without the links `best` and `last_good`."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir() if not path.is_symlink())


def state(folder: Path, step: int) -> dict[str, Any]:
    path = folder / f"checkpoints/step-{step}/trainer_state.pt"
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def assert_equal_bits(ours: Any, theirs: Any) -> None:
    """Compare nested containers of tensors and plain values bit by bit."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal_bits(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal_bits(one, other)
    else:
        assert ours == theirs


def assert_equal_runs(folder: Path, whole: Path, step: int) -> None:
    """Compare metrics, transcripts, the state and weights of `step`, links, and the tables of the summary."""
    assert metrics(folder) == metrics(whole)
    assert (folder / "rollouts.jsonl").read_bytes() == (whole / "rollouts.jsonl").read_bytes()
    assert_equal_bits(state(folder, step), state(whole, step))
    for name in ("model.safetensors", "config.json"):
        ours, theirs = (path / f"checkpoints/step-{step}/{name}" for path in (folder, whole))
        assert ours.read_bytes() == theirs.read_bytes()
    for link in ("best", "last_good"):
        assert (folder / "checkpoints" / link).readlink() == (whole / "checkpoints" / link).readlink()
    mine, other = (json.loads((path / "summary.json").read_text()) for path in (folder, whole))
    for key in ("steps", "stopped", "before", "after", "gain", "preflight", "recovery"):
        assert mine[key] == other[key]


def whole_and_killed(make_saved_run: MakeRun, overrides: Sequence[str], hooks: Sequence[Hook] = ()) -> list[Path]:
    """Return the folder of a run of twenty steps, and a copy made in its tenth step, as a kill would leave it."""
    run = make_saved_run(*TWENTY, *overrides)
    killed = run.folder.with_name("killed")

    def copy_the_disk(moment: Moment, _: StepContext, event: Event) -> None:
        if moment is Moment.updated and event.step + 1 == KILLED_IN_STEP and not killed.exists():
            shutil.copytree(run.folder, killed, symlinks=True)

    run.context.hooks += [*hooks, copy_the_disk]
    train_run(run)
    assert [row["step"] for row in metrics(killed) if row["step"]] == list(range(1, KILLED_IN_STEP))
    assert checkpoints(killed) == ["step-0", "step-7"]
    return [run.folder, killed]


# Overrides of each case, and the metrics that must change both before the kill and after the resume.
# `test.sh all` also runs the cases that are not in QUICK.
QUICK = ("kl fixed, with tables",)
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kl fixed, with tables": (("kl.coef=0.5", "evaluation.rows=1"), ()),
    "kl off, reference refreshed, validation": (
        ("kl.coef=0", "reference.refresh_every=5", "evaluation.curve_rows=1", "evaluation.curve_every=3"),
        ("reference/refreshes",),
    ),
    "kl behind its warm-up, reference refreshed": (
        ("kl.warmup_steps=9", "reference.refresh_every=5"),
        ("kl/coef", "reference/refreshes"),
    ),
    "several updates, cispo": (
        (
            "objective.epochs=2",
            "objective.minibatches=2",
            "objective.loss=cispo",
        ),
        ("policy/ratio_max",),
    ),
    "refill": (
        (
            "objective.collection.zero_variance=refill",
            "objective.group_size=2",
            "generator.temperature=0.8",
        ),
        ("group/replaced_fraction",),
    ),
    "kl in the reward": (
        (
            "kl.form=in_reward",
            "kl.coef=0.5",
            "generator.max_new_tokens=64",
            "rubric.source=rules",
        ),
        (),
    ),
}


@pytest.mark.parametrize(
    ("overrides", "moving"),
    [pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, case in CASES.items()],
)
def test_run_resumed_from_step_7_equals_uninterrupted_run_bit_for_bit(
    make_saved_run: MakeRun, overrides: tuple[str, ...], moving: tuple[str, ...]
) -> None:
    whole, killed = whole_and_killed(make_saved_run, overrides)
    assert main(["train", f"resume={killed}"]) == 0
    rows = [row for row in metrics(whole) if row["step"]]
    for key in moving:
        assert len({row[key] for row in rows[:RESUMED_FROM]}) > 1
        assert len({row[key] for row in rows[RESUMED_FROM:]}) > 1
    # No two updates are equal. A step without any accepted completion has an update norm of 0.
    norms = [row["optim/update_norm"] for row in rows if row["optim/update_norm"]]
    assert len(set(norms)) == len(norms) >= 12
    assert_equal_runs(killed, whole, 14)
    assert_equal_runs(killed, whole, 20)


def test_resume_inside_kl_warm_up_continues_the_schedule(make_saved_run: MakeRun) -> None:
    given = ("kl.coef=0.24", "kl.warmup_steps=12", "objective.entropy_coef=0.01")
    whole, killed = whole_and_killed(make_saved_run, given)
    assert main(["train", f"resume={killed}"]) == 0
    assert [row["kl/coef"] for row in metrics(killed)] == pytest.approx(
        [0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.14, 0.16, 0.18, 0.20, 0.22] + [0.24] * 8
    )
    assert_equal_runs(killed, whole, 20)


def nan_gradients(*steps: int) -> Hook:
    """Return a hook that makes the gradients of these steps NaN, counted from 1, also in a resumed run."""

    def poison(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.accumulated and event.step + 1 in steps:
            next(context.policy.model.parameters()).grad.fill_(torch.nan)

    return poison


def test_resume_during_learning_rate_ramp_continues_the_ramp(
    make_saved_run: MakeRun, set_limits: Callable[..., None]
) -> None:
    set_limits(GOOD_STEPS=2, RAMP_STEPS=10)
    faults = nan_gradients(3, 4, 12, 13)
    whole, killed = whole_and_killed(make_saved_run, (), [faults])
    run = make_saved_run(*TWENTY, f"resume={killed}")
    run.context.hooks.append(faults)
    train_run(run)
    rows = metrics(whole)
    assert [row["recovery/restores"] for row in rows] == [0] * 3 + [1] * 9 + [2] * 8
    scales = [row["recovery/lr_scale"] for row in rows]
    assert scales[:6] == [1, 1, 1, 0.5, 0.5, 0.5]
    # The scale rises by 2 ** (1 / 10) per step. The second restore halves it, from at most the new ceiling of 0.5.
    ramp = [2 ** (-1 + n / 10) for n in range(1, 6)]
    assert scales[6:11] == pytest.approx(ramp)
    assert scales[12] == pytest.approx(min(ramp[-1], 0.5) / 2)
    assert scales[11] == scales[10] and scales[13] == scales[12] < scales[19] < 0.5
    assert_equal_runs(killed, whole, 14)
    assert_equal_runs(killed, whole, 20)


def test_saved_reference_is_refreshed_policy_or_starting_model(train: Train) -> None:
    given = ("steps=3", "checkpoint_every=1", "evaluation.rows=0")
    refreshed = train(*given, "reference.refresh_every=2", root="refreshed")
    assert_equal_bits(state(refreshed, 3)["references"]["current"], state(refreshed, 2)["policy"])
    assert_equal_bits(state(refreshed, 3)["references"]["original"], state(refreshed, 0)["policy"])
    assert [row["kl/reference"] > 0 for row in metrics(refreshed)] == [False, True, False]
    assert [row["kl/original"] > 0 for row in metrics(refreshed)] == [False, True, True]
    frozen = train(*given, root="frozen")
    assert_equal_bits(state(frozen, 3)["references"]["current"], state(frozen, 0)["policy"])
    assert [row["kl/reference"] > 0 for row in metrics(frozen)] == [False, True, True]


def test_overrides_given_with_resume_replace_saved_options(train: Train) -> None:
    folder = train("steps=2", "evaluation.rows=0", "kl.coef=0.5")
    given = ["steps=4", "optim.lr=0.001", "optim.min_lr_fraction=1", "optim.weight_decay=0.25"]
    assert main(["train", f"resume={folder}", *given]) == 0
    rows = metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["kl/coef"] for row in rows] == [0.5] * 4
    assert rows[3]["optim/lr"] == 0.001
    assert state(folder, 2)["optimizer"]["param_groups"][0]["weight_decay"] == 0
    assert state(folder, 4)["optimizer"]["param_groups"][0]["weight_decay"] == 0.25
    assert main(["train", f"resume={folder}", "steps=5", "kl.form=off"]) == 0
    assert [row["kl/coef"] for row in metrics(folder)] == [0.5] * 4 + [0.0]


def test_resume_from_earlier_checkpoint_drops_and_repeats_later_steps(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train("steps=5", "checkpoint_every=2", "evaluation.rows=0")
    folder = whole.with_name("again")
    shutil.copytree(whole, folder, symlinks=True)
    (folder / "diagnosis.txt").write_text("of a run that gave up\n")
    seen: list[tuple[list[str], list[int]]] = []

    def look(*arguments: Any) -> Policy:
        policy = load_policy(*arguments)
        policy.model.transformer.register_forward_pre_hook(
            lambda *_: seen.append((checkpoints(folder), [row["step"] for row in metrics(folder)]))
        )
        return policy

    monkeypatch.setattr(build, "load_policy", look)
    assert main(["train", f"resume={folder / 'checkpoints/step-2'}"]) == 0
    # Later files are removed after the preflight checks have passed and before the first step.
    assert seen[0] == (["step-0", "step-2", "step-4", "step-5"], [1, 2, 3, 4, 5])
    assert next((names, steps) for names, steps in seen if (names, steps) != seen[0]) == (["step-0", "step-2"], [1, 2])
    assert_equal_runs(folder, whole, 5)
    assert not (folder / "diagnosis.txt").exists()


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["resume=/nope"], "resume: expected a run's folder with checkpoints"),
        (["resume={folder}", "debug=short"], "resume: expected overrides of single values, got debug=short"),
        (["resume={folder}", "seed=5"], "resume: expected a checkpoint of this model and data"),
        (["resume={folder}", "model.path=tiny"], "resume: expected a checkpoint of this model and data"),
        (["resume={folder}", "evaluation.rows=2"], "resume: expected 4 evaluated rows"),
        (["resume={folder}", "generator.temperature=0.5"], "resume: expected the evaluation after training to measure"),
        (["resume={folder}", "rubric.source=rules"], "resume: expected the evaluation after training to measure"),
        (["resume={folder}", "start_share=0.25"], "resume: expected start_share=0.5, as the run's checkpoints have it"),
    ],
)
def test_refused_resume_prints_one_line_and_leaves_run_unchanged(
    train: Train, capfd: pytest.CaptureFixture[str], overrides: list[str], complaint: str
) -> None:
    folder = train("steps=1", "evaluation.rows=1")
    before = everything(folder)
    capfd.readouterr()
    assert main(["train", *(override.format(folder=folder) for override in overrides)]) == 2
    error = capfd.readouterr().err
    assert complaint in error and error.count("\n") == 1
    assert everything(folder) == before


def test_resumed_run_has_no_summary_until_it_ends_again(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = train("steps=1", "evaluation.rows=0")
    assert not is_unfinished(folder)

    def killed(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "run_steps", killed)
        with pytest.raises(RuntimeError, match="killed"):
            main(["train", f"resume={folder}", "steps=2"])
    assert is_unfinished(folder)
    assert main(["train", f"resume={folder}"]) == 0 and not is_unfinished(folder)


def test_run_is_not_resumed_while_another_process_trains_it(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    folder = train("steps=1", "evaluation.rows=1")
    before = everything(folder)
    reads, writes = os.pipe()
    if not (holder := os.fork()):
        # This process is a copy of the test runner: it holds the lock until it is killed, and must not continue here.
        try:
            with locked(folder):
                os.write(writes, b"h")
                signal.pause()
        finally:
            os._exit(1)
    os.close(writes)
    try:
        assert os.read(reads, 1) == b"h"
        capfd.readouterr()
        assert main(["train", f"resume={folder}", "steps=2"]) == 2
        assert capfd.readouterr().err == (
            f"rookworld: resume: expected a run that no other process trains, got {folder}\n"
        )
        assert everything(folder) == before
    finally:
        # A killed process cannot release the lock itself.
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(reads)
    assert main(["train", f"resume={folder}", "steps=2"]) == 0
    assert [row["step"] for row in metrics(folder)] == [1, 2]


@pytest.mark.slow
def test_sigterm_ends_run_with_a_checkpoint_and_run_resumes(small_overrides: list[str], tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    command = [sys.executable, "-m", "rookworld_rlvr", "train", *small_overrides, f"output_root={root}", "steps=9999"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    log = root / "latest" / "metrics.jsonl"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + PATIENCE_S
        while not (log.is_file() and log.read_text().count("\n") >= 3):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=PATIENCE_S)
    assert (run.returncode, err) == (130, "")
    assert "SIGTERM: stopping after this step, then saving" in out
    folder = (root / "latest").resolve()
    summary = json.loads((folder / "summary.json").read_text())
    done = summary["steps"]
    assert summary["stopped"] == "interrupted" and done >= 3 and summary["after"] == {}
    assert checkpoints(folder) == ["step-0", f"step-{done}"]
    assert main(["train", f"resume={folder}", f"steps={done + 2}"]) == 0
    assert [row["step"] for row in metrics(folder)] == list(range(1, done + 3))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped"], summary["steps"]) == ("finished", done + 2) and summary["after"]


EIGHT = (
    "steps=8",
    "checkpoint_every=3",
    "generator.max_new_tokens=16",
    "optim.lr=0.001",
    "optim.micro_batch_size=2",
)
# With these limits, one additional checkpoint would change the last good one and the best.
EIGHT_LIMITS = {"GOOD_STEPS": 1, "HISTORY": 2}


def child(arguments: Sequence[str], log: Path, *, moment: Callable[[Path, bool], bool], signals: Sequence[int]) -> int:
    """Run the command line in a process that sends itself signals at a forward pass; return its exit code.

    `moment` is called before each pass, with the run's folder and whether the model is in training mode. The signals
    are sent again when a checkpoint is about to get its name. If a signal kills the process, the result is minus its
    number. The process is forked, because it then has torch in memory already.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        sys.stdout = sys.stderr = log.open("w", buffering=1)
        root = Path(next(word.split("=", 1)[1] for word in arguments if word.startswith("output_root=")))
        sent: list[int] = []

        def send() -> None:
            for number in signals:
                sent.append(number)
                os.kill(os.getpid(), number)

        def load(*given: Any) -> Policy:
            policy = load_policy(*given)

            def before(module: nn.Module, *_: Any) -> None:
                if not sent and moment(root / "latest", module.training):
                    send()

            policy.model.transformer.register_forward_pre_hook(before)
            return policy

        def again(event: str, details: tuple[Any, ...]) -> None:
            if event == "os.rename" and ".writing-" in str(details[0]) and sent:
                send()

        build.load_policy = load
        sys.addaudithook(again)
        code = main(["train", *arguments])
    finally:
        # This process is a copy of the test runner, which must not continue here.
        os._exit(code)


def nth_pass(n: int, *, steps_done: int, training: bool) -> Callable[[Path, bool], bool]:
    """Return a moment: the n-th forward pass in (or outside) training mode after `steps_done` steps."""
    seen = iter(range(1, 10**6))

    def moment(folder: Path, is_training: bool) -> bool:
        log = folder / "metrics.jsonl"
        done = log.read_text().count("\n") if log.is_file() else 0
        return done == steps_done and is_training is training and next(seen) == n

    return moment


@pytest.mark.parametrize(
    ("overrides", "moment", "signals", "done"),
    [
        pytest.param((), nth_pass(5, steps_done=4, training=False), [signal.SIGTERM], 5, marks=pytest.mark.slow),
        pytest.param((), nth_pass(2, steps_done=4, training=True), [signal.SIGINT], 5, marks=pytest.mark.slow),
        # Four passes compute the old log-probs and four make an epoch, so this is between two updates.
        (("objective.epochs=2",), nth_pass(10, steps_done=4, training=True), [signal.SIGTERM, signal.SIGINT], 5),
        pytest.param((), nth_pass(3, steps_done=8, training=False), [signal.SIGTERM], 8, marks=pytest.mark.slow),
    ],
    ids=["while generating", "between micro-batches", "between updates", "while making the table after"],
)
def test_signal_lets_the_step_end_and_run_resumes_to_same_bits(
    train: Train,
    small_overrides: list[str],
    tmp_path: Path,
    overrides: tuple[str, ...],
    moment: Callable[[Path, bool], bool],
    signals: list[int],
    done: int,
    set_limits: Callable[..., None],
) -> None:
    set_limits(**EIGHT_LIMITS)
    whole = train(*EIGHT, *overrides, root="whole")
    root, log = tmp_path / "outputs", tmp_path / "log.txt"
    arguments = [*small_overrides, *EIGHT, *overrides, f"output_root={root}"]
    assert child(arguments, log, moment=moment, signals=signals) == 130
    said = log.read_text().splitlines()
    assert sum(line.startswith(f"stopped after {done} steps") for line in said) == 1
    assert said[-2].startswith("report: ")
    assert said[-1] == f"to resume: bash train.sh resume={(root / 'latest').resolve()}"
    # The signals are sent at the pass and, if there is something left to save, when the checkpoint gets its name.
    times = 1 if done == 8 else 2
    assert sum("stopping after this step" in line for line in said) == times * len(signals)
    folder = (root / "latest").resolve()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped"], summary["steps"], summary["after"]) == ("interrupted", done, {})
    assert [row["step"] for row in metrics(folder)] == list(range(1, done + 1))
    assert checkpoints(folder)[-1] == f"step-{done}"
    assert main(["train", f"resume={folder}"]) == 0
    assert_equal_runs(folder, whole, 8)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_run_without_checkpoint_starts_again_in_its_folder(
    train: Train, small_overrides: list[str], tmp_path: Path, number: int, code: int
) -> None:
    given = ("steps=2", "generator.max_new_tokens=16")
    whole = train(*given, root="whole")
    root, log = tmp_path / "outputs", tmp_path / "log.txt"

    def in_the_table_before(_folder: Path, _training: bool) -> bool:
        return "preflight: all 6 checks passed" in log.read_text()

    arguments = [*small_overrides, *given, f"output_root={root}"]
    assert child(arguments, log, moment=in_the_table_before, signals=[number]) == code
    [folder] = root.glob("*/*-grpo")
    # If the run was killed, `latest` does not exist yet.
    assert (root / "latest").is_symlink() == (code == 130)
    assert not (folder / "checkpoints").exists() and not (folder / "before_rows.jsonl").exists()
    if code == 130:
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["stopped"], summary["steps"], summary["before"]) == ("interrupted", 0, {})
    # A kill between the first point of the learning curve and the first checkpoint leaves this line.
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    assert main(["train", f"resume={folder}"]) == 0
    assert_equal_runs(folder, whole, 2)


class Interrupting(io.StringIO):
    """Terminal on which Ctrl-C is pressed in the middle of the first line."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.startswith("step 1") and "SIGINT" not in self.getvalue():
            os.kill(os.getpid(), signal.SIGINT)
        return written


def test_signal_inside_a_console_line_prints_it_once() -> None:
    file = Interrupting()
    run: Any = SimpleNamespace(console=Console(file=file, width=80), stop_requested=False)
    with _stop_on_signal(run):
        run.console.print("step 1 of 2")
        run.console.print("step 2 of 2")
    assert file.getvalue().count("step 1 of 2") == 1 and run.stop_requested
    assert "SIGINT: stopping" in file.getvalue()


def test_shared_lock_does_not_hide_an_unfinished_run(tmp_path: Path) -> None:
    run = tmp_path / "2026-01-01" / "00-00-00-grpo"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    other = os.open(run, os.O_RDONLY)
    try:
        # Another rank is searching at this moment.
        fcntl.flock(other, fcntl.LOCK_SH)
        assert list(unfinished(tmp_path)) == [run]
    finally:
        os.close(other)
    with locked(run):
        assert list(unfinished(tmp_path)) == []


def test_resume_auto_continues_the_run_of_a_preset(train: Train) -> None:
    given = ["debug=short", "steps=2", "checkpoint_every=1", "evaluation.rows=0"]
    folder = train(*given)
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoints/step-2")
    assert train(*given, "resume=auto") == folder
    assert [row["step"] for row in metrics(folder)] == [1, 2]


def test_resume_auto_skips_damaged_run_folders(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    for name, config, summary in (("04", "a: [", None), ("03", "- 1", None), ("02", "\xff", None), ("01", "{}", "[]")):
        folder = root / "2026-01-01" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config, encoding="latin-1")
        if summary is not None:
            (folder / "summary.json").write_text(summary)
    config = make_config("resume=auto")
    raw = OmegaConf.structured(config)
    assert _unfinished(root, raw) == ""
    mine = root / "2026-01-01" / "00"
    mine.mkdir()
    (mine / "config.yaml").write_text(OmegaConf.to_yaml(raw))
    assert _unfinished(root, raw) == str(mine)
