"""Several ranks sample from the same server: rank 0 gives it the weights, and no rank samples from older ones."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")
SOURCE = Path(__file__).resolve().parents[2] / "src"
STEPS = 3


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_train_on_what_one_server_samples(
    server: Any, tiny_overrides: list[str], tmp_path: Path, kind: str
) -> None:
    given = [*tiny_overrides, "generator=vllm_server", f"generator.vllm.urls=[{server.url}]", "precision=fp32"]
    given += [f"distributed={kind}", "processes=2", f"steps={STEPS}", "optim.lr=1e-3", "optim.warmup_steps=0"]
    given += ["objective.prompts_per_step=4", "evaluation_rows=4", "match_pairs=0", f"output_root={tmp_path}"]
    command = [sys.executable, "-m", "rookworld_rlvr", "train", *given]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = tmp_path / "latest"
    assert json.loads((run / "summary.json").read_text())["ranks"] == 2
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row.get("optim/update_norm", 0) > 0]
    assert len(trained) == STEPS
    # Each step's weights were the server's before either rank sampled.
    assert all(abs(row["sampler/ratio_raw_max"] - 1) < 1e-3 for row in trained)
