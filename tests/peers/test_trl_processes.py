"""The documented command starts examples/trl_chat.py in two processes on a CPU, and TRL trains with the chat reward."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rookworld_rlvr.interop import chat_examples

ROOT = Path(__file__).resolve().parents[2]
PROCESSES, GROUP, STEPS = 2, 8, 2


def documented() -> list[str]:
    """Return the words of the command for two processes without a GPU."""
    [command] = re.findall(r"^accelerate launch .*--use_cpu.*$", (ROOT / "docs/libraries.md").read_text("utf-8"), re.M)
    return shlex.split(command)


@pytest.mark.slow
def test_documented_command_trains_a_chat_model_in_two_processes(chat_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    words = [str(chat_model) if word == "MODEL" else word for word in documented()]
    assert words[words.index("--num_processes") + 1] == str(PROCESSES)
    # Any free port, since tests run side by side.
    command = [str(Path(sys.executable).with_name(words[0])), words[1], "--main_process_port", "0", *words[2:]]
    command += ["--max_steps", str(STEPS), "--max_completion_length", "16", "--report_to", "none"]
    command += ["--output_dir", str(tmp_path / "out"), "--save_steps", str(STEPS)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / f"out/checkpoint-{STEPS}/trainer_state.json").read_text())
    logs = [log for log in state["log_history"] if "reward" in log]
    assert [log["step"] for log in logs] == [1, STEPS]
    # A group in each process: so many prompts of all rows in a step.
    assert logs[0]["epoch"] * len(chat_examples()) == pytest.approx(PROCESSES, rel=1e-3)
    assert all(-0.3 <= log["rewards/chat_reward/mean"] <= 1 and "chat/correctness/legal" in log for log in logs)
    before, after = (load_file(folder / "model.safetensors") for folder in (chat_model, tmp_path / "out"))
    assert max(float((after[name] - weight).abs().max()) for name, weight in before.items()) > 0
