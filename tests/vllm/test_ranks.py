"""Several ranks sample with vLLM, from one server or their own engines, and never with older weights."""

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
def test_two_ranks_train_with_one_vllm_server(
    server: Any, tiny_overrides: list[str], tmp_path: Path, kind: str
) -> None:
    given = ["generator.kind=vllm_server", f"generator.vllm.url={server.url}"]
    assert_two_ranks_train_on_samples_of_their_weights([*tiny_overrides, *given, f"distributed={kind}"], tmp_path)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_train_with_their_own_vllm_engines(tiny_overrides: list[str], tmp_path: Path, kind: str) -> None:
    given = ["generator.kind=vllm", "generator.vllm.kv_cache_gib=0.25"]
    assert_two_ranks_train_on_samples_of_their_weights([*tiny_overrides, *given, f"distributed={kind}"], tmp_path)


def assert_two_ranks_train_on_samples_of_their_weights(overrides: list[str], tmp_path: Path) -> None:
    given = [*overrides, "precision=fp32"]
    given += ["processes=2", f"steps={STEPS}", "optim.lr=1e-3", "optim.warmup_steps=0"]
    given += [
        "objective.prompts_per_step=4",
        "evaluation.rows=4",
        "evaluation.match_pairs=0",
        f"output_root={tmp_path}",
    ]
    command = [sys.executable, "-m", "rookworld_rlvr", "train", *given]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = tmp_path / "latest"
    assert json.loads((run / "summary.json").read_text())["ranks"] == 2
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row.get("optim/update_norm", 0) > 0]
    assert len(trained) == STEPS
    # The sampler had each step's weights before either rank sampled.
    assert all(abs(row["sampler/ratio_raw_max"] - 1) < 1e-3 for row in trained)
