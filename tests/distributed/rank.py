"""One rank of the processes that train together in these tests. It makes steps and writes a report of each.

    python rank.py '{"cases": [["kl=…"]], "steps": 10, "out": "…", "replayed": "…"}'

`cases` are overrides of a run. `replayed` is a file of completions: a single process samples each prompt separately
and writes it; several processes read it, so that all train on the same completions. Each `harm` affects one rank.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from rookworld_rlvr.app.build import build_run, build_unsaved_run
from rookworld_rlvr.app.process import run_process
from rookworld_rlvr.model import ranks
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout.generator import Generator, SampledCompletion
from rookworld_rlvr.stockfish.analysis import EngineCounts
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.state import Event, Hook, Moment, StepContext
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import train

RANK = int(os.environ.get("RANK", "0"))
ALONE = "RANK" not in os.environ


class Replayed:
    """A generator that reads completions from a file by prompt and seed. A single process samples and writes them."""

    def __init__(self, real: Generator, path: Path) -> None:
        self._real, self._path = real, path
        self._known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def sync(self, model: nn.Module) -> None:
        self._real.sync(model)  # type: ignore[arg-type]

    def weights_checksum(self) -> str:
        return self._real.weights_checksum()

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, seeds: Sequence[int] = (), **settings: Any
    ) -> list[list[SampledCompletion]]:
        return [self._group(prompt, seed, settings) for prompt, seed in zip(prompts, seeds, strict=True)]

    def _group(self, prompt: tuple[int, ...], seed: int, settings: dict[str, Any]) -> list[SampledCompletion]:
        key = f"{prompt} {seed}"
        if ALONE:
            [group] = self._real.generate([prompt], seeds=[seed], **settings)
            self._known[key] = [asdict(done) for done in group]
            self._path.write_text(json.dumps(self._known))
        return [
            SampledCompletion(tuple(done["tokens"]), tuple(done["logprobs"]), done["finished"])
            for done in self._known[key]
        ]


def harmful(harm: dict[str, Any]) -> Hook:
    """Return a hook that injects a fault on one rank in one step."""

    def hook(moment: Moment, context: StepContext, event: Event) -> None:
        if harm["rank"] != RANK or event.step != harm["step"] or moment is not Moment(harm["moment"]):
            return
        match harm["kind"]:
            case "nan":
                context.policy.head.register_forward_hook(_spoil_once())
            case "engines":
                # Engines start only on this rank, as if its share had a position that is missing in the cache.
                context.sampler.scorer.engine_counts = EngineCounts  # type: ignore[method-assign]
            case "memory for the gradients":
                vector = SimpleNamespace(**vars(torch) | {"cat": _out_of_memory_once(torch.cat)})
                ranks.torch = vector  # type: ignore[attr-defined]
            case "memory for the update":
                context.optimizer.step = _out_of_memory_once(context.optimizer.step)  # type: ignore[method-assign]
            case "error":
                raise RuntimeError("a hook that is broken")
            case "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            case "other weights":
                with torch.no_grad():
                    next(context.policy.model.parameters()).add_(1.0)

    return hook


def _spoil_once() -> Any:
    spoilt: list[bool] = []

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        if spoilt:
            return None
        spoilt.append(True)
        return output * torch.nan

    return hook


def _out_of_memory_once(function: Any) -> Any:
    called: list[bool] = []

    def call(*arguments: Any) -> Any:
        called.append(True)
        if len(called) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return function(*arguments)

    return call


def held_bytes(context: StepContext) -> int:
    """Return the bytes of the policy's weights and moments that this rank holds between two steps."""
    moments = [value for state in context.optimizer.state.values() for value in state.values()]
    return sum(share.nbytes for share in map(own_share, [*context.policy.model.parameters(), *moments]))


def own_share(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def case(
    overrides: list[str], steps: int, replayed: str, harm: list[dict[str, Any]], whole: bool
) -> list[dict[str, Any]]:
    """Run a case and return the report of each step on this rank."""
    given = OmegaConf.from_dotlist(overrides)
    config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), given))
    run = build_run(config, OmegaConf.structured(config)) if whole else build_unsaved_run(config)
    context = run.context
    if replayed:
        context.sampler.generator = Replayed(context.sampler.generator, Path(replayed))
    context.hooks += map(harmful, harm)
    if whole:
        return [train(run)]
    context.config.steps = steps
    reports = []
    for step in range(steps):
        report = grpo_step(context, step)
        reports.append(
            {
                "loss": report.loss,
                "grad_norm": report.grad_norm,
                "logprobs": report.tokens.logprob_sum,
                "kl": report.tokens.kl_sum,
                "reward": float(report.rewards_PG.mean()) if report.rewards_PG.numel() else 0.0,
                "groups": len(report.groups),
                "updates": report.updates,
                "fault": str(report.fault or ""),
                "weights": checksum(context.policy.model),
                "held_bytes": held_bytes(context),
            }
        )
    return reports


def main() -> int:
    spec = json.loads(sys.argv[1])
    replayed = spec.get("replayed", "")
    reports = [
        case(overrides, spec["steps"], replayed and f"{replayed}.{number}", spec["harm"], spec.get("whole", False))
        for number, overrides in enumerate(spec["cases"])
    ]
    Path(f"{spec['out']}.{RANK}").write_text(json.dumps(reports))
    return 0


if __name__ == "__main__":
    run_process(main)
