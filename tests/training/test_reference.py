"""Reference models: when they are refreshed, by how much, and which weights stay unchanged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.stability.reference import ReferenceConfig, ReferenceMode, References
from rookworld_rlvr.training.checkpoint import STATE_FILE
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Moment, StepContext, StepReport
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
MakeRun = Callable[..., Run]
GIVEN = ("evaluation_rows=0", "generator.max_new_tokens=8", "checkpoint_every=1", "keep_checkpoints=99")


@pytest.fixture
def policy(small_model: Path) -> Policy:
    return load_policy(ModelConfig(path=str(small_model)), torch.device("cpu"), Precision.fp32)


def weight(policy: Policy) -> float:
    """Return one weight, which represents all of them, because these tests move all weights together."""
    return float(policy.model.transformer.ln_f.weight[0].item())


def move(policy: Policy, by: float) -> None:
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += by


def no_score() -> float:
    raise AssertionError("a score was requested")


def test_frozen_reference_stays_the_starting_model(policy: Policy) -> None:
    references, start = References(policy, ReferenceConfig(refresh_every=1)), weight(policy)
    move(policy, 1.0)
    assert not any(references.maybe_refresh(policy, step=step, score=no_score) for step in range(1, 5))
    assert weight(references.current) == start and not references.moves and references.refreshes == 0


def test_reference_is_refreshed_every_n_steps_and_original_is_kept(policy: Policy) -> None:
    references = References(policy, ReferenceConfig(ReferenceMode.every, refresh_every=3))
    start, refreshed = weight(policy), []
    for step in range(1, 8):
        move(policy, 1.0)
        refreshed.append(references.maybe_refresh(policy, step=step, score=no_score))
    assert refreshed == [False, False, True, False, False, True, False] and references.refreshes == 2
    # The policy has moved by 7; at the last refresh it had moved by 6.
    assert weight(references.current) == pytest.approx(start + 6)
    assert weight(references.original) == start and references.moves
    for reference in (references.current, references.original):
        assert not any(parameter.requires_grad for parameter in reference.model.parameters())


def test_ema_reference_moves_by_its_fraction(policy: Policy) -> None:
    references = References(policy, ReferenceConfig(ReferenceMode.ema, refresh_every=1))
    start = weight(policy)
    move(policy, 1.0)
    references.maybe_refresh(policy, step=1, score=no_score)
    assert weight(references.current) == pytest.approx(start + 0.6)
    # The second refresh moves by 0.6 of the remaining 0.4.
    references.maybe_refresh(policy, step=2, score=no_score)
    assert weight(references.current) == pytest.approx(start + 0.84)
    assert weight(references.original) == start


def test_ema_moves_tied_weights_once(policy: Policy) -> None:
    model = policy.model
    assert model.lm_head.weight is model.transformer.wte.weight
    references = References(policy, ReferenceConfig(ReferenceMode.ema, refresh_every=1))
    start = {name: weight.clone() for name, weight in references.current.model.named_parameters()}
    move(policy, 1.0)
    references.maybe_refresh(policy, step=1, score=no_score)
    for name, weight_now in references.current.model.named_parameters():
        torch.testing.assert_close(weight_now - start[name], torch.full_like(weight_now, 0.6), msg=name)


def on_improvement(policy: Policy) -> References:
    references = References(policy, ReferenceConfig(ReferenceMode.on_improvement, refresh_every=2))
    references.begin(0.5)
    return references


def test_lower_validation_score_prevents_refresh(policy: Policy) -> None:
    references, start = on_improvement(policy), weight(policy)
    move(policy, 1.0)
    assert not references.maybe_refresh(policy, step=1, score=no_score)
    assert not references.maybe_refresh(policy, step=2, score=lambda: 0.49)
    assert weight(references.current) == start
    assert references.maybe_refresh(policy, step=4, score=lambda: 0.5)
    assert weight(references.current) == pytest.approx(start + 1)
    assert references.maybe_refresh(policy, step=6, score=lambda: 0.7)
    # The score is compared with that of the last refresh, not of the first.
    assert not references.maybe_refresh(policy, step=8, score=lambda: 0.6)


def test_state_restores_both_references_even_into_another_mode(policy: Policy) -> None:
    references, start = on_improvement(policy), weight(policy)
    move(policy, 1.0)
    references.maybe_refresh(policy, step=2, score=lambda: 0.9)
    resumed = on_improvement(policy)
    resumed.load_state_dict(references.state_dict())
    assert (weight(resumed.current), weight(resumed.original)) == pytest.approx((start + 1, start))
    assert resumed.refreshes == 1
    assert not resumed.maybe_refresh(policy, step=2, score=lambda: 0.8)
    frozen = References(policy, ReferenceConfig())
    moving = References(policy, ReferenceConfig(ReferenceMode.every))
    move(frozen.current, 5.0)
    moving.load_state_dict(frozen.state_dict())
    assert weight(moving.original) == weight(moving.current) == weight(frozen.current)


def test_moved_reference_keeps_its_original_when_resumed_as_frozen(policy: Policy) -> None:
    moved, start = References(policy, ReferenceConfig(ReferenceMode.every, refresh_every=1)), weight(policy)
    move(policy, 1.0)
    moved.maybe_refresh(policy, step=1, score=no_score)
    frozen = References(policy, ReferenceConfig())
    frozen.load_state_dict(moved.state_dict())
    assert (weight(frozen.current), weight(frozen.original)) == pytest.approx((start + 1, start))
    assert frozen.state_dict()["original"] is not None
    move(policy, 1.0)
    assert not frozen.maybe_refresh(policy, step=2, score=no_score)
    assert weight(frozen.current) == pytest.approx(start + 1)


def test_refresh_interval_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="refresh_every"):
        ReferenceConfig(refresh_every=0)


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(folder: Path, step: int) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(folder / "checkpoints" / f"step-{step}" / STATE_FILE, weights_only=True)
    return saved


def test_kl_to_the_original_shows_the_drift_that_a_refresh_hides(train: Train) -> None:
    folder = train("steps=4", "reference=refreshed", "reference.refresh_every=2", *GIVEN)
    lines = rows(folder)
    assert [row["kl/reference"] > 0 for row in lines] == [False, True, False, True]
    assert [row["kl/original"] > 0 for row in lines] == [False, True, True, True]
    assert lines[1]["kl/original"] == pytest.approx(lines[1]["kl/reference"], rel=1e-5)
    assert lines[3]["kl/original"] != pytest.approx(lines[3]["kl/reference"], rel=1e-2)
    assert [row["reference/refreshes"] for row in lines] == [0, 1, 1, 2]
    references, policy = state(folder, 2)["references"], state(folder, 2)["policy"]
    assert all(torch.equal(references["current"][name], policy[name]) for name in policy)
    start = state(folder, 0)["policy"]
    assert all(torch.equal(state(folder, 4)["references"]["original"][name], start[name]) for name in start)


def test_frozen_run_saves_one_reference_and_reports_equal_kls(train: Train) -> None:
    folder = train("steps=2", *GIVEN)
    assert all(row["kl/original"] == row["kl/reference"] for row in rows(folder))
    assert rows(folder)[1]["kl/original"] > 0 and state(folder, 2)["references"]["original"] is None


@pytest.mark.parametrize("spoilt", [False, True])
def test_run_refreshes_reference_unless_validation_score_falls(make_saved_run: MakeRun, spoilt: bool) -> None:
    # The small model scores 0 on these rows, so its score falls only if the hook sets an earlier score above 1.
    given = ("reference.mode=on_improvement", "reference.refresh_every=1", "validation.rows=2")
    run = make_saved_run("steps=2", *given, *GIVEN)
    assert len(run.data.validation) == 4
    keys = {example.prompt for example in run.data.validation}
    assert not keys & {example.prompt for example in run.data.train}

    def raise_the_bar(moment: Moment, context: StepContext, _report: StepReport) -> None:
        if spoilt and moment is Moment.begun:
            context.references.begin(1.1)

    run.context.hooks.append(raise_the_bar)
    train_run(run)
    assert [row["reference/refreshes"] for row in rows(run.folder)] == ([0, 0] if spoilt else [1, 2])
