"""Files about faults: the batch on which each occurred and, when a run gives up, a diagnosis in plain text."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError, first_line
from ..files import replacing
from ..model.batch import Batch, TokenBatch
from ..objective import KLConfig
from ..shell import command
from ..stability.faults import FaultKind
from .all_moves import MoveBatch
from .state import StepContext, StepReport

FAULTS, DIAGNOSIS = "faults", "diagnosis.txt"
MOST_PROMPTS = 8
# Number of newest faults whose batches are kept, so that a run that fails repeatedly does not fill the disk.
KEEP_FAULTS = 3
FAULT_KEYS = {"step", "fault", "kl_coef", "moves_temperature", "batch", "moves", "samples", "policy"}

SUGGESTIONS: Mapping[FaultKind, str] = {
    FaultKind.generator: "generator.batch_size=16",
    FaultKind.scorer: "rubric.stockfish.nodes=5000",
    FaultKind.reward: "rubric.source=rules",
    FaultKind.logprobs: "precision=fp32 optim.lr={lr:.1e}",
    FaultKind.loss: "optim.lr={lr:.1e}",
    FaultKind.gradient: "precision=fp32 optim.lr={lr:.1e}",
    FaultKind.gradient_spike: "optim.max_grad_norm=0.5 optim.lr={lr:.1e}",
    FaultKind.kl_limit: "kl.coef={kl_coef:.2g} optim.lr={lr:.1e}",
    FaultKind.parameter: "precision=fp32 optim.lr={lr:.1e}",
    FaultKind.memory: "generator.batch_size=16 objective.group_size=4 generator.max_new_tokens=96",
}


def save_fault(run_folder: Path, report: StepReport, *, weights: Mapping[str, Any] | None = None) -> Path:
    """Write `faults/step-N.pt`, with the policy's `training_state` if it is given, and keep the newest KEEP_FAULTS."""
    path = _fault_file(run_folder, report)
    path.parent.mkdir(exist_ok=True)
    assert report.fault is not None
    saved = {
        "step": report.step + 1,
        "fault": {key: str(value) for key, value in asdict(report.fault).items()},
        "kl_coef": report.kl_coef,
        "moves_temperature": report.moves_temperature,
        "batch": _plain(report.fault_batch),
        "moves": isinstance(report.fault_batch, MoveBatch),
        "samples": _samples(report),
        "policy": weights,
    }
    with replacing(path) as writing:
        torch.save(saved, writing)
    # By time: a run that was resumed from an earlier checkpoint has files of later steps.
    oldest_first = sorted(path.parent.glob("step-*.pt"), key=lambda known: known.stat().st_mtime_ns)
    for old in oldest_first[:-KEEP_FAULTS]:
        old.unlink()
    return path


def _fault_file(run_folder: Path, report: StepReport) -> Path:
    return run_folder / FAULTS / f"step-{report.step + 1}.pt"


def load_fault(path: Path) -> dict[str, Any]:
    """Load a file of `save_fault`; its batch becomes a Batch, a MoveBatch or None. Raises UserError."""
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        # Files of earlier versions have no temperature.
        if not isinstance(saved, dict) or saved.keys() | {"moves_temperature"} != FAULT_KEYS:
            raise ValueError("a file of another kind")
        batch = saved["batch"]
        saved["batch"] = None if batch is None else (MoveBatch if saved["moves"] else Batch)(**batch)
    # An unpickler that reads damaged bytes may raise any exception.
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"inspect: expected a batch that a run saved under {FAULTS}/, got {path}: {reason}") from error
    return saved


def write_diagnosis(run_folder: Path, context: StepContext, report: StepReport, *, reason: str) -> None:
    """Write `diagnosis.txt`: the reason, the fault and options to try, the terms of the loss, the batch and prompts."""
    fault, state, config = report.fault, context.recovery, context.config
    tried = {"lr": config.optim.lr / 3, "kl_coef": max(2 * config.kl.coef, KLConfig().coef)}
    lines = [f"step {report.step + 1}: {reason}"]
    if fault is not None:
        lines += [
            f"fault           {fault.kind}",
            f"first bad       {fault.tensor}",
            f"measured        {fault.detail}",
            f"try             {SUGGESTIONS[fault.kind].format(**tried)}",
        ]
    lines += [
        f"recovery        {state.skipped} faults, {state.restores} restores, learning rate × {state.lr_scale:.3g}",
        *(f"{name:<15} {value:.6g}" for name, value in _terms(report).items()),
    ]
    if fault is not None:
        batch = _fault_file(run_folder, report)
        lines.append(f"batch           {batch}; replay it: {command('inspect', batch)}")
    examples = [group.example for group in report.rollout.groups] or report.rollout.unscored
    lines += [f"prompt          {example.prompt}" for example in examples[:MOST_PROMPTS]]
    (run_folder / DIAGNOSIS).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _terms(report: StepReport) -> dict[str, float]:
    """Return the terms of the loss that the step computed before it ended."""
    tokens = report.tokens
    terms = {"learning rate": report.lr, "kl coefficient": report.kl_coef}
    if report.rewards_PG.numel():
        terms["reward mean"] = float(report.rewards_PG.mean())
    if tokens.count:
        terms |= {
            "surrogate mean": tokens.surrogate_sum / tokens.count,
            "kl term mean": tokens.kl_term_sum / tokens.count,
            "entropy mean": tokens.entropy_sum / tokens.count,
            "largest ratio": tokens.ratio_max,
        }
    return terms | {"loss": report.loss, "gradient norm": report.grad_norm, "update norm": report.update_norm}


def _samples(report: StepReport) -> list[dict[str, Any]]:
    return [
        {"prompt": group.example.prompt, "completion": sample.text, "reward": float(reward)}
        for group, rewards in zip(report.groups, report.rewards_PG, strict=True)
        for sample, reward in zip(group.samples, rewards, strict=True)
    ]


def _plain(batch: TokenBatch | None) -> dict[str, Any] | None:
    return None if batch is None else dict(batch.tensors())
