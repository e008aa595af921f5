"""An untrusted run folder (a stranger's) starts no program, contacts no server and reads no file of the user."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from omegaconf import OmegaConf

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.batch import Batch
from rookworld_rlvr.training.diagnosis import FAULT_KEYS, FAULTS

SECRET = "hf_s3cr3t"
# Seconds between two looks for an end. The default, 0.5, is longer than most tests.
POLL_S = 0.01
# Escape sequence that sets the clipboard in many terminals, then one that begins with the C1 character 0x9b.
CLIPBOARD = "\x1b]52;c;cHduZWQ=\x07\x9b2J"


@pytest.fixture(scope="module")
def finished(train_once: Callable[..., Path]) -> Path:
    return train_once("steps=2", "evaluation.rows=0")


@pytest.fixture
def strangers_run(finished: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a run, changes its configuration and adds a program that records its start."""

    def make(**changed: object) -> Path:
        run = tmp_path / "strangers_run"
        shutil.copytree(finished, run, symlinks=True)
        program = run / "stockfish"
        program.write_text(f"#!/bin/sh\ntouch {run}/started\n")
        program.chmod(0o755)
        config = OmegaConf.load(run / "config.yaml")
        for key, value in changed.items():
            OmegaConf.update(config, key.replace("__", "."), value)
        (run / "config.yaml").write_text(OmegaConf.to_yaml(config).replace("HERE", str(run)))
        return run

    return make


@pytest.fixture
def requests_heard() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that the run may name, and the list of paths requested there."""
    paths: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


def refusal(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one line with which the command is refused; its exit code is 2."""
    capfd.readouterr()
    code, error = main(arguments), capfd.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    return error


@pytest.mark.parametrize("command", ["rescore {run}", "train resume={run} steps=4", "smoke resume={run}"])
def test_program_that_only_the_run_names_is_never_started(
    command: str, strangers_run: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run = strangers_run(rubric__stockfish__path="HERE/stockfish")
    arguments = command.format(run=run).split()
    assert main(arguments) == 0
    line = f"rubric.stockfish.path={run}/stockfish in {run}/config.yaml is not used; give it again if it is yours"
    assert line in capfd.readouterr().err.splitlines() and not (run / "started").exists()
    # A program that the user names starts, and is refused because it does not speak UCI.
    given = [f"rubric.stockfish.path={run}/stockfish", "rubric.source=engine"]
    refusal([*arguments, *given], capfd)
    assert (run / "started").exists()


def test_server_that_only_the_run_names_is_not_contacted(
    strangers_run: Callable[..., Path],
    requests_heard: tuple[str, list[str]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    address, heard = requests_heard
    named = {"generator__kind": "vllm_server", "generator__vllm__url": address}
    assert main(["train", f"resume={strangers_run(**named)}", "steps=4"]) == 2
    error = capfd.readouterr().err
    assert f"generator.vllm.url={address} in " in error and "generator.vllm.url: expected" in error and not heard


def saved_fault(run: Path, **changed: object) -> Path:
    """Write a fault file to the run's folder, in the form that `inspect` reads, and return its path."""
    tensors = {field.name: torch.zeros(1, 2) for field in fields(Batch)}
    saved = dict.fromkeys(FAULT_KEYS) | {"step": 1, "fault": dict.fromkeys(("kind", "tensor", "detail"), "")}
    path = run / FAULTS / "step-1.pt"
    path.parent.mkdir()
    torch.save(saved | {"samples": [], "batch": tensors} | changed, path)
    return path


@pytest.mark.parametrize("command", ["train resume={run}", "rescore {run}", "inspect {batch}"])
def test_interpolation_in_an_untrusted_run_is_never_resolved(
    command: str,
    strangers_run: Callable[..., Path],
    requests_heard: tuple[str, list[str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, heard = requests_heard
    monkeypatch.setenv("HF_TOKEN", SECRET)
    url = f"{address}/${{oc.env:HF_TOKEN}}"
    run = strangers_run(generator__kind="vllm_server", generator__vllm__url=url, model__path="a/${oc.env:HF_TOKEN}")
    batch = saved_fault(run)
    error = refusal(command.format(run=run, batch=batch).split(), capfd)
    assert "got an interpolation: 'path: a/${oc.env:HF_TOKEN}'" in error
    assert SECRET not in error and not heard and os.environ["HF_TOKEN"] == SECRET


def test_terminal_control_codes_in_transcripts_are_escaped(
    strangers_run: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run = strangers_run()
    rows = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"completion": f"M: e2e4{CLIPBOARD} E: 0.1 B: e2e4", "failure": CLIPBOARD}
    (run / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sample = {"reward": 0.0, "prompt": CLIPBOARD, "completion": "x"}
    batch = saved_fault(run, fault=dict.fromkeys(("kind", "tensor", "detail"), CLIPBOARD), samples=[sample], batch=None)
    for command in (["rollouts", run], ["rescore", run], ["inspect", batch]):
        capfd.readouterr()
        assert main([str(word) for word in command]) == 0
        shown = capfd.readouterr().out
        assert "\\x1b]52;c;cHduZWQ=" in shown and "\x1b" not in shown and "\x9b" not in shown


def test_export_of_an_untrusted_run_follows_no_symlinks(
    strangers_run: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, secret = strangers_run(), tmp_path / "secret"
    secret.mkdir()
    (secret / "config.json").write_text("{}")
    checkpoints = run / "checkpoints"
    newest = max(checkpoints.glob("step-*"))
    (newest / "notes.txt").symlink_to(secret / "config.json")
    (checkpoints / "step-99").symlink_to(secret)
    assert main(["export", str(run), "--to", str(tmp_path / "out"), "--checkpoint", newest.name]) == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in names and "notes.txt" not in names
    for name in ("last", "step-99", "../../secret"):
        arguments = ["export", str(run), "--to", str(tmp_path / "no"), "--checkpoint", name]
        assert "expected a checkpoint of" in refusal(arguments, capfd)


def test_remote_code_of_a_model_is_not_run(
    strangers_run: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run = strangers_run(model__path="HERE/model")
    model = run / "model"
    model.mkdir()
    (model / "code.py").write_text(f"open({str(run / 'started')!r}, 'w')\nclass Config: ...\n")
    settings = {"model_type": "a_stranger_s", "auto_map": {"AutoConfig": "code.Config"}}
    (model / "config.json").write_text(json.dumps(settings))
    with patch.object(sys, "stdin", StringIO("y\n" * 9)):
        assert "model.path: expected a causal language model" in refusal(["train", f"resume={run}", "steps=4"], capfd)
    assert not (run / "started").exists()
