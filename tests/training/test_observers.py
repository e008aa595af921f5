"""Trackers, console, adjudicating engine and report: a run goes on without them, and says so once."""

import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.progress import ConsoleStream
from rookworld_rlvr.rollout.generator import Generator, GeneratorError
from rookworld_rlvr.training import sinks
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.sinks import Observer, Sink, TensorBoardSink
from rookworld_rlvr.training.state import Event, Moment, StepContext
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
MakeRun = Callable[..., Run]
SOURCE = Path(__file__).resolve().parents[2] / "src"
SHORT = ("evaluation.rows=0", "generator.max_new_tokens=8")
MATCH = ("evaluation.rows=1", "evaluation.match_pairs=1", "evaluation.match_plies=2", "generator.max_new_tokens=8")
needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def kill_wandb() -> None:
    """Kill this process's children whose name begins with wandb."""
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="], capture_output=True, text=True)
    pids = [int(line.split()[0]) for line in children.stdout.splitlines() if line.split()[1].startswith("wandb")]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@needs_wandb
def test_run_whose_wandb_process_dies_keeps_all_steps_and_the_next_run_is_tracked(
    make_saved_run: MakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_saved_run("steps=4", "logging.tracker=wandb", *SHORT)

    def kill(moment: Moment, _: StepContext, event: Event) -> None:
        if moment is Moment.begun and event.step == 2:
            kill_wandb()

    run.context.hooks.append(kill)
    assert train_run(run)["stopped"] == "finished"
    assert steps(run.folder) == [1, 2, 3, 4]
    shown = capfd.readouterr().out
    assert shown.count("logging.tracker=wandb is left out from here on, metrics.jsonl has all steps: ") == 1
    after = make_saved_run("steps=1", "logging.tracker=wandb", *SHORT)
    train_run(after)
    assert "left out" not in capfd.readouterr().out and list(after.folder.glob("wandb/offline-run-*/run-*.wandb"))


@pytest.fixture
def no_wandb_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No account, and a server's address at which nobody listens."""
    import wandb

    # It reads the environment once per process.
    wandb.teardown()
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    given = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_BASE_URL": "http://127.0.0.1:9"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    yield
    wandb.teardown()


@needs_wandb
@pytest.mark.parametrize(
    ("mode", "key", "reason"),
    [
        ("online", "", "No API key configured"),
        ("online", "0" * 40, "connect: connection refused"),
        ("onlin", "", "Input should be 'online', 'offline'"),
    ],
)
def test_wandb_that_cannot_start_is_refused_in_one_line_before_training(
    mode: str,
    key: str,
    reason: str,
    no_wandb_server: None,
    small_overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setitem(sinks.WANDB_LIMITS, "init_timeout", 1.0)
    root = tmp_path / "outputs"
    assert main(["train", *small_overrides, f"output_root={root}", "logging.tracker=wandb", "steps=1", *SHORT]) == 2
    [line] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rookworld: ")]
    assert line.startswith("rookworld: logging.tracker=wandb: expected it to start, got: ") and reason in line
    assert line.endswith("; WANDB_MODE=offline needs no account and no network")
    assert not list(root.glob("*/*")) and not (root / "latest").exists()


@needs_wandb
def test_resumed_run_continues_its_wandb_run_and_empty_variables_count_as_unset(
    train: Train, monkeypatch: pytest.MonkeyPatch, wandb_records: Callable[[Path], list[Any]]
) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_ENTITY"):
        monkeypatch.setenv(name, "")
    folder = train("logging.tracker=wandb", "steps=1", *SHORT)
    known = (folder / "wandb_id").read_text().strip()
    assert main(["train", f"resume={folder}", "steps=2"]) == 0
    logs = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert [log.name for log in logs] == [f"run-{known}.wandb"] * 2
    for log in logs:
        [run] = [record.run for record in wandb_records(log) if record.WhichOneof("record_type") == "run"]
        assert (run.run_id, run.project) == (known, "rookworld-rlvr")


class FailingSink(Sink):
    """A sink that fails in every method, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        raise RuntimeError("no more\nroom")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._fail()

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        self._fail()

    def conclude(self, summary: Mapping[str, Any]) -> None:
        self._fail()

    def close(self) -> None:
        self._fail()


@pytest.mark.parametrize("first", ["write", "show", "conclude", "close"])
def test_observer_that_fails_is_named_once_and_gets_nothing_more(first: str) -> None:
    said: list[str] = []
    failing = FailingSink()
    observer = Observer("it", failing, said.append)
    arguments: dict[str, tuple[Any, ...]] = {"write": (1, {}), "show": (1, []), "conclude": ({},), "close": ()}
    for name in (first, *arguments):
        getattr(observer, name)(*arguments[name])
    assert said == ["it is left out from here on, metrics.jsonl has all steps: RuntimeError: no more"]
    # The call that failed, and the release of its resources.
    assert failing.calls == 2


@needs_tensorboard
def test_tensorboard_on_a_full_disk_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    # Its thread ends by the error.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    before = threading.enumerate()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    observer = Observer("logging.tracker=tensorboard", TensorBoardSink(tmp_path), said.append)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        for step in range(1, 200):
            observer.write(step, {f"key/{number}": 1.0 for number in range(20)})
        observer.conclude({"better": [], "worse": [], "gain": {}})
        observer.close()
        for thread in set(threading.enumerate()) - set(before):
            thread.join(timeout=20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(said) == 1 and "File too large" in said[0]


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_run_goes_on_without_tensorboard_whose_disk_is_full(
    make_saved_run: MakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_saved_run("steps=4", "logging.tracker=tensorboard", *SHORT)

    def fill(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.begun and event.step == 1:
            [events] = (run.folder / "tensorboard").iterdir()
            events.unlink()
            events.symlink_to("/dev/full")

    run.context.hooks.append(fill)
    assert train_run(run)["stopped"] == "finished"
    assert capfd.readouterr().out.count("No space left on device") == 1
    assert steps(run.folder) == [1, 2, 3, 4] and summary(run.folder)["stopped"] == "finished"


@pytest.mark.parametrize("place", ["full disk", "closed pipe"])
def test_run_goes_on_without_its_console(
    place: str,
    small_overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if place == "full disk":
        stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1)
    else:
        read, write = os.pipe()
        os.close(read)
        stream = os.fdopen(write, "w", buffering=1)
    root = tmp_path / "outputs"
    with stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert main(["train", *small_overrides, f"output_root={root}", "steps=2", *SHORT]) == 0
    assert steps(root / "latest") == [1, 2] and (root / "latest/report.html").is_file()
    reason = "No space left on device" if place == "full disk" else "Broken pipe"
    line = f"rookworld: the console is left out from here on, metrics.jsonl has all steps: {reason}\n"
    assert capfd.readouterr().err == line


def test_closed_console_and_errors_end_the_process_without_a_complaint() -> None:
    # The buffers of both must not be written at the end of the process, which would then have exit code 120.
    code = "import sys; from rookworld_rlvr.progress import ConsoleStream as S; s = S(sys.stdout)"
    code += "; [(s.write('x' * 9000), s.flush()) for _ in range(3)]"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=write,
        stderr=write,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    os.close(write)
    assert done.returncode == 0


def test_character_that_the_console_lacks_becomes_a_question_mark() -> None:
    raw = io.BytesIO()
    stream = ConsoleStream(io.TextIOWrapper(raw, encoding="latin-1"))
    assert stream.write("rate × 0.5 ≥ 1\n") == 15 and stream.encoding == "latin-1"
    stream.flush()
    assert raw.getvalue() == b"rate \xd7 0.5 ? 1\n"


def test_report_that_cannot_be_written_leaves_a_finished_run(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    folder = train("steps=1", *SHORT)
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    assert main(["train", f"resume={folder}", "steps=2"]) == 0
    shown = capfd.readouterr().out
    assert "the report is left out: IsADirectoryError: " in shown and "to play against it: " in shown
    assert summary(folder)["stopped"] == "finished" and steps(folder) == [1, 2]


def test_match_goes_on_by_material_if_the_engine_dies_in_its_first_search(
    train: Train, fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(fake_stockfish))
    monkeypatch.setenv("FAKE_DIES", "/")
    folder = train("steps=1", *MATCH)
    shown = capfd.readouterr().out
    line = "match: the engine failed, so further games are adjudicated by material: the engine failed 3 times on "
    assert shown.count(line) == 1
    match = summary(folder)["match"]
    assert (match["adjudicator"], match["ended/adjudicated_material"]["value"]) == ("material", 1.0)
    assert summary(folder)["stopped"] == "finished" and (folder / "report.html").is_file()


def test_match_is_left_out_if_a_generator_fails(make_saved_run: MakeRun, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_saved_run("steps=1", *MATCH)

    def gone(_: Any) -> Generator:
        raise GeneratorError("vllm_server: no answer")

    run.make_generator = gone
    assert train_run(run)["stopped"] == "finished"
    assert "match: it is left out: vllm_server: no answer\n" in capfd.readouterr().out
    assert summary(run.folder)["match"] == {} and summary(run.folder)["after"]
