"""Records of runs made by hand, and the folders of such runs."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.report.run_record import RunRecord
from rookworld_rlvr.report.transcripts import Transcript

POLICY = "P: r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5Q2/PPPP1PPP/RNB1K1NR w KQkq - 4 4"
MATE = "M: f3f7 c4f7 f3f7 e1e3 b1c3 E: 9.9 1.0 0.5 0.4 -0.1 B: f3f7"
ENVIRONMENT = "A: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1+e2e4+e2e4+"
BELIEVED = "rnbqkbnr/pppppppp/8/8/3P4/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0"


def said(step: int, prompt: str, completion: str, reward: float, failure: str | None = None) -> Transcript:
    task = "policy" if prompt.startswith("P:") else "environment"
    return Transcript(task, prompt, completion, None, failure, step, reward, {"structure/markers": 1.0})


def measure(value: float, half: float = 0.01) -> dict[str, Any]:
    return {"value": value, "low": value - half, "high": value + half, "n": 2048}


def write_run(folder: Path, run: RunRecord) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(run.config)
    (folder / "summary.json").write_text(json.dumps(run.summary))
    said_there = [asdict(one) | {"finished": True} for one in run.transcripts]
    for name, rows in (("metrics", run.metrics), ("rollouts", said_there)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def record() -> Callable[..., RunRecord]:
    """Return a function that makes a run with a better, a worse and an unchanged key, and a lost match."""

    def make(name: str = "2026-11-22/10-00-00-run", steps: int = 60, seed: int = 0) -> RunRecord:
        rng = random.Random(seed)
        keys = ("policy/valid", "policy/legal_best_move", "environment/recall_draw", "policy/valid/white")
        before = {key: measure(0.9) for key in keys}
        gains = dict(zip(keys, (0.05, -0.04, 0.0, 0.01), strict=True))
        summary = {
            "steps": steps, "stopped": "finished", "before": before,
            "after": {key: measure(0.9 + gain) for key, gain in gains.items()},
            "gain": {key: measure(gain) for key, gain in gains.items()},
            "match": {"score": {"value": 0.415}, "elo": {"value": -60.0, "low": -90.0, "high": -30.0, "n": 400}},
            "better": ["policy/valid"], "worse": ["policy/legal_best_move", "match/elo"],
            "wall_s": 100.0, "completions_per_s": 10.0, "peak_rss_gib": 1.0,
            "preflight": {"kl_step_0": {"measured": 0.0, "bound": 1e-6}},
            "recovery": {"faults": 1, "restores": 1}, "software": {"python": "3.11.2"},
            "hashes": {"model before": "ab"},
        }  # fmt: skip
        metrics = [
            {
                "step": step, "reward/mean": 0.5 + step / steps / 5 + rng.random() / 50, "kl/reference": 0.02,
                "recovery/skipped": float(step > 30), "recovery/restores": float(step > 30),
                "warning/kl": float(40 < step < 45), **({"reward/failure/bad_move": 0.1} if step % 2 else {}),
            }
            for step in range(1, steps + 1)
        ]  # fmt: skip
        transcripts = [
            row
            for step in (1, 10, 20)
            for row in (
                said(step, POLICY, MATE, 0.9),
                said(step, POLICY, "M: a1a9 <b>&", -0.3, "missing_field: E B"),
                said(step, POLICY, "M: f3f6 E: 0.1 B: f3g6", 0.2),
                said(step, ENVIRONMENT, BELIEVED, 0.4),
                said(step, ENVIRONMENT, "no board+0.001+0+0", -0.2, "bad_fen: no board"),
            )
        ]
        return RunRecord(name, "seed: 0\n", summary, metrics, transcripts)

    return make
