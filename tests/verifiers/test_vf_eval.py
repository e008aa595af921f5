"""`vf-eval`, as the README of the environment shows it, scores models behind a server of OpenAI's protocol.

The server samples for real with our generator (chat_server.py). The harness `null` is a program that verifiers installs
with uv from the package index when it first runs.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="verifiers is not installed: bash scripts/setup.sh verifiers")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "environments/rookworld_chess"
# It has torch, which the environment of verifiers has not.
PYTHON = ROOT / ".venv/bin/python"
PATIENCE_S = 300
HERE = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
HERE["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("src", "recipes", "tests"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment with torch: bash scripts/setup.sh test"),
]


@pytest.fixture
def serve() -> Iterator[Callable[[str], str]]:
    """Return a function that starts a server of a model and returns its address."""
    started: list[subprocess.Popen[str]] = []

    def start(model: str) -> str:
        command = [str(PYTHON), str(Path(__file__).with_name("chat_server.py")), model]
        server = subprocess.Popen(command, env=HERE, stdout=subprocess.PIPE, text=True)
        started.append(server)
        killer = threading.Timer(PATIENCE_S, server.kill)
        killer.start()
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        killer.cancel()
        assert port, "the server did not start"
        return f"http://127.0.0.1:{port}/v1"

    yield start
    for server in started:
        server.kill()
        server.wait()


def rewards(address: str, output: Path, *given: str) -> list[float]:
    """Run the documented command with other options added; return the reward of each answer."""
    readme = (FOLDER / "README.md").read_text("utf-8").replace("\\\n", " ")
    [shown] = re.findall(r"^vf-eval .*$", readme, re.M)
    filled = {"ADDRESS": address, "MODEL": "small"}
    words = [filled.get(word, word) for word in shlex.split(shown)]
    environment = HERE | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(FOLDER)])}
    # uv, which verifiers looks for, is beside the interpreter.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:], *given, "--no-rich", "-o", str(output)]
    done = subprocess.run(command, env=environment, cwd=output, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [file] = output.glob("*/traces.jsonl")
    episodes: list[dict[str, Any]] = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [trace["rewards"]["reward"]["score"] for episode in episodes for trace in episode["traces"]]


def test_vf_eval_scores_the_shipped_model_as_highly_as_a_run_does(serve: Any, tmp_path: Path) -> None:
    found = rewards(serve("tiny"), tmp_path, "--env.taskset.task", "both", "-n", "8")
    assert len(found) == 8 and sum(found) / 8 > 0.5 and max(found) <= 1


def test_vf_eval_scores_a_chat_model_by_the_documented_command(serve: Any, tmp_path: Path) -> None:
    model, output = tmp_path / "model", tmp_path / "out"
    output.mkdir()
    made = "import conftest, pathlib, sys; conftest.save_new_chat_model(pathlib.Path(sys.argv[1]))"
    subprocess.run([str(PYTHON), "-c", made, str(model)], env=HERE, check=True)
    found = rewards(serve(str(model)), output, "-n", "8")
    # A random model writes words that look like moves at best.
    assert len(found) == 8 and all(-0.3 <= reward < 0 for reward in found)
