"""One-step-off-policy sampling: during training, from weights one step older; a resumed run samples the batch again."""

import json
import math
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model import device
from rookworld_rlvr.model.batch import Batch
from rookworld_rlvr.model.device import cores, map_on_cores
from rookworld_rlvr.objective import KLConfig, KLForm, LossSizes, MismatchConfig, TokenStatistics
from rookworld_rlvr.training import step
from rookworld_rlvr.training.config import RunConfig, StepConfig
from rookworld_rlvr.training.diagnosis import load_fault
from rookworld_rlvr.training.loss import LossPlan, grpo_loss
from rookworld_rlvr.training.prefetch import Prefetch
from rookworld_rlvr.training.state import Moment
from rookworld_rlvr.training.step import grpo_step

Train = Callable[..., Path]
EARLY = ("max_staleness=1", "evaluation_rows=0")
OF_THE_MACHINE = ("time/", "throughput/", "memory/")


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def test_prefetched_batches_are_one_step_stale_and_marked_for_the_loss(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = build_unsaved_run(make_config(*EARLY, "steps=4", "optim.lr=0.01")).context
    pending = []
    context.hooks.append(
        lambda moment, context, _report: (
            pending.append(context.prefetch.pending) if moment is Moment.micro_batch else None
        )
    )
    plans: list[LossPlan] = []
    monkeypatch.setattr(
        step, "grpo_loss", lambda policy, micro, plan: plans.append(plan) or grpo_loss(policy, micro, plan)
    )
    reports = [grpo_step(context, number) for number in range(4)]
    assert [report.collection.staleness for report in reports] == [0, 1, 1, 1]
    assert reports[0].tokens.sampler_ratio_max < 1.001 < max(r.tokens.sampler_ratio_max for r in reports[1:])
    assert [plan.stale for plan in plans] == [False, True, True, True]
    # The next batch is pending while a step is trained, except during the last step.
    assert pending == [True, True, True, False]
    assert all(len(report.groups) == 2 and report.times_s["generate"] > 0 for report in reports)
    context.prefetch.close()


def test_prefetch_changes_nothing_if_weights_do_not_move(train: Train) -> None:
    still = ("optim.lr=0", "steps=3", "evaluation_rows=0")
    early, on_time = train(*EARLY, *still, root="early"), train(*still, root="on_time")
    ours, theirs = metrics(early), metrics(on_time)
    assert [row.pop("sampler/staleness") for row in ours] == [0, 1, 1]
    assert [row.pop("sampler/staleness") for row in theirs] == [0, 0, 0] and ours == theirs


def test_a_fault_of_a_stale_batch_is_saved_as_stale(train: Train) -> None:
    given = ("steps=2", "optim.lr=0.05", "recovery.guard.kl_limit=1e-9")
    saved = [load_fault(path)["stale"] for path in sorted((train(*EARLY, *given) / "faults").glob("step-*.pt"))]
    assert saved == [True]


def test_resume_resamples_prefetched_batch_to_same_bits(train: Train, tmp_path: Path) -> None:
    given = ("steps=6", "checkpoint_every=3", "keep_checkpoints=9", "validation.every=2", "validation.rows=2")
    whole = train(*EARLY, *given)
    killed = tmp_path / "outputs" / whole.parent.name / "killed"
    shutil.copytree(whole, killed, symlinks=True)
    assert main(["train", f"resume={killed}/checkpoints/step-3"]) == 0
    assert metrics(killed) == metrics(whole)
    ours, theirs = ((run / "checkpoints/step-6/model.safetensors").read_bytes() for run in (killed, whole))
    assert ours == theirs


def test_restore_discards_batch_sampled_from_damaged_weights(train: Train) -> None:
    # KL exceeds its limit at once, and each time the last good checkpoint is restored.
    given = ("steps=5", "optim.lr=0.05", "recovery.guard.kl_limit=0.05", "recovery.max_restores=9")
    rows = metrics(train(*EARLY, *given))
    restored = next(i for i, row in enumerate(rows) if row["recovery/restores"])
    # The batch after the restore is sampled from the restored weights.
    assert [row["sampler/staleness"] for row in rows[restored : restored + 2]][-1] == 0


def test_no_core_is_still_working_after_an_exception() -> None:
    before, begun, ended = torch.get_num_threads(), threading.Event(), list[int]()

    def work(item: int) -> None:
        if item == 0:
            begun.wait(60)
            raise ValueError
        begun.set()
        time.sleep(0.2)
        ended.append(item)

    try:
        torch.set_num_threads(2)
        with pytest.raises(ValueError):
            list(map_on_cores(work, [0, 1], torch.device("cpu")))
        assert ended == [1]
    finally:
        torch.set_num_threads(before)


def test_prefetch_thread_uses_as_many_cores_as_the_run() -> None:
    before, cpu = torch.get_num_threads(), torch.device("cpu")
    try:
        torch.set_num_threads(2)
        # Start a pool of two threads with one core each. A thread that starts later would have one core too.
        device._pool.cache_clear()
        assert list(map_on_cores(lambda item: item + 1, [1, 2, 3], cpu)) == [2, 3, 4]
        prefetch: Prefetch[int] = Prefetch(SimpleNamespace(model=torch.nn.Linear(1, 1)))  # type: ignore[arg-type]
        prefetch.begin(lambda: cores(cpu), SimpleNamespace(state_dict=dict))  # type: ignore[arg-type]
        assert prefetch.take() == 2
        prefetch.close()
    finally:
        torch.set_num_threads(before)


@dataclass
class OneToken:
    """A policy that samples a single token, with logits (V,)."""

    logits: Tensor
    reference: Tensor

    def statistics(self, micro: Batch, **_: object) -> TokenStatistics:
        logprobs, ref_logprobs = self.logits.log_softmax(-1), self.reference.log_softmax(-1)
        tokens = micro.tokens_BT[:, 1]
        exact = self.kl().expand(len(tokens))
        return TokenStatistics(logprobs[tokens], torch.zeros(len(tokens)), ref_logprobs[tokens], exact)

    def kl(self) -> Tensor:
        """Return KL(policy‖reference), in nats."""
        logprobs, ref_logprobs = self.logits.log_softmax(-1), self.reference.log_softmax(-1)
        return (logprobs.exp() * (logprobs - ref_logprobs)).sum()


def kl_gradient(policy: OneToken, sampler_logprobs: Tensor, form: KLForm, *, stale: bool) -> Tensor:
    """Return the expected gradient of the KL term with respect to the logits, over the sampler's tokens."""
    tokens = torch.arange(len(sampler_logprobs))
    zeros, places = torch.zeros(len(tokens)), torch.tensor([True, False])
    plan = LossPlan(
        objective=StepConfig(mismatch=MismatchConfig(cap=math.inf)),
        kl=KLConfig(form=form),
        temperature=1.0,
        sizes=LossSizes(completions=1, tokens=1, step_tokens=1, max_tokens=1),
        kl_coef=1.0,
        reference=policy,  # type: ignore[arg-type]
        original=None,
        stale=stale,
    )
    batch = Batch(
        tokens_BT=torch.stack([torch.zeros_like(tokens), tokens], 1),
        attention_BT=torch.ones(len(tokens), 2),
        positions_BT=torch.arange(2).expand(len(tokens), 2),
        loss_mask_BT=places.expand(len(tokens), 2),
        sampler_logprobs_BT=torch.stack([sampler_logprobs, zeros], 1),
        advantages_B=zeros,
        prompts_B=tokens,
    )
    each = [grpo_loss(policy, batch.select(tokens[i : i + 1]), plan).loss for i in tokens]  # type: ignore[arg-type]
    [gradient] = torch.autograd.grad((sampler_logprobs.exp() * torch.stack(each)).sum(), policy.logits)
    return gradient


def test_kl_gradient_on_stale_batch_equals_gradient_of_true_kl() -> None:
    draw = torch.Generator().manual_seed(3)
    policy = OneToken(torch.randn(5, generator=draw).requires_grad_(), torch.randn(5, generator=draw))
    sampler_logprobs = (policy.logits.detach() + 0.3 * torch.randn(5, generator=draw)).log_softmax(-1)
    true = torch.autograd.grad(policy.kl(), policy.logits)[0]
    for form, stale, right in (
        (KLForm.k2_straight_through, True, True),
        (KLForm.k2_straight_through, False, False),
        (KLForm.exact, True, True),
    ):
        gradient = kl_gradient(policy, sampler_logprobs, form, stale=stale)
        assert torch.allclose(gradient, true, atol=1e-6) is right


def test_max_staleness_above_1_is_refused_in_one_line(
    small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *small_overrides, *EARLY, "max_staleness=2"]) == 2
    error = capfd.readouterr().err
    assert "max_staleness: expected 0 or 1, got 2" in error and error.count("\n") == 1
