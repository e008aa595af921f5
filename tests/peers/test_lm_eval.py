"""lm-evaluation-harness gives the same scores as `rookworld evaluate` on 200 rows of each task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rookworld_rlvr.model.loading import tiny_model_folder

ROOT = Path(__file__).parents[2]
ROWS = 200


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    pytest.importorskip("lm_eval")
    folder = tmp_path_factory.mktemp("lm_eval")
    model = f"pretrained={tiny_model_folder()},dtype=float32"
    _run(
        *("lm_eval", "run", "--model", "hf", "--model_args", model, "--device", "cpu", "--batch_size", "50"),
        *("--tasks", "rookworld_policy,rookworld_environment", "--include_path", "benchmarks/lm_eval_tasks"),
        *("--limit", str(ROWS), "--output_path", str(folder / "result.json")),
    )
    [result] = folder.glob("**/*.json")
    return json.loads(result.read_text(encoding="utf-8"))["results"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, float]]]:
    output = tmp_path_factory.mktemp("ours") / "result.json"
    _run("rookworld", "evaluate", f"evaluation.rows={ROWS}", "precision=fp32", "device=cpu", f"output={output}")
    return json.loads(output.read_text(encoding="utf-8"))["suites"]


@pytest.mark.parametrize("task", ["policy", "environment"])
def test_lm_eval_scores_equal_rookworld_evaluate(
    task: str, harness: dict[str, dict[str, float]], ours: dict[str, dict[str, dict[str, float]]]
) -> None:
    values = {key.removesuffix(",none"): value for key, value in harness[f"rookworld_{task}"].items() if ",none" in key}
    theirs = {key: value for key, value in values.items() if not key.endswith("_stderr")}
    table = {key: row["value"] for key, row in ours[task]["table"].items() if key.count("/") == 1}
    expected = {key.partition("/")[2]: value for key, value in table.items()}
    assert theirs == pytest.approx({key: expected[key] for key in theirs}, abs=1e-9)
    assert len(theirs) >= 8


def _run(program: str, *arguments: str) -> None:
    command = [str(Path(sys.executable).parent / program), *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=900)
