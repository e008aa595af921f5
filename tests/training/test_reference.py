"""Reference models: when they are refreshed, and which weights stay unchanged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.stability.reference import ReferenceConfig, References
from rookworld_rlvr.training.checkpoint import STATE_FILE

Train = Callable[..., Path]
GIVEN = ("evaluation.rows=0", "generator.max_new_tokens=8", "checkpoint_every=1")


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


def test_frozen_reference_stays_the_starting_model(policy: Policy) -> None:
    references, start = References(policy, ReferenceConfig()), weight(policy)
    move(policy, 1.0)
    for step in range(1, 5):
        references.maybe_refresh(policy, step=step)
    assert weight(references.current) == start and not references.moves and references.refreshes == 0


def test_reference_is_refreshed_every_n_steps_and_original_is_kept(policy: Policy) -> None:
    references = References(policy, ReferenceConfig(refresh_every=3))
    start, refreshes = weight(policy), []
    for step in range(1, 8):
        move(policy, 1.0)
        references.maybe_refresh(policy, step=step)
        refreshes.append(references.refreshes)
    assert refreshes == [0, 0, 1, 1, 1, 2, 2]
    # The policy has moved by 7; at the last refresh it had moved by 6.
    assert weight(references.current) == pytest.approx(start + 6)
    assert weight(references.original) == start and references.moves
    for reference in (references.current, references.original):
        assert not any(parameter.requires_grad for parameter in reference.model.parameters())


def test_refresh_copies_tied_weights(policy: Policy) -> None:
    model = policy.model
    assert model.lm_head.weight is model.transformer.wte.weight
    references = References(policy, ReferenceConfig(refresh_every=1))
    move(policy, 1.0)
    references.maybe_refresh(policy, step=1)
    ours = references.current.model
    assert ours.lm_head.weight is ours.transformer.wte.weight
    for name, theirs in model.named_parameters():
        assert torch.equal(ours.get_parameter(name), theirs), name


def test_state_restores_both_references_even_from_a_frozen_run(policy: Policy) -> None:
    refreshed = ReferenceConfig(refresh_every=2)
    references, start = References(policy, refreshed), weight(policy)
    move(policy, 1.0)
    references.maybe_refresh(policy, step=2)
    resumed = References(policy, refreshed)
    resumed.load_state_dict(references.state_dict())
    assert (weight(resumed.current), weight(resumed.original)) == pytest.approx((start + 1, start))
    assert resumed.refreshes == 1
    frozen, moving = References(policy, ReferenceConfig()), References(policy, refreshed)
    move(frozen.current, 5.0)
    moving.load_state_dict(frozen.state_dict())
    assert weight(moving.original) == weight(moving.current) == weight(frozen.current)


def test_moved_reference_keeps_its_original_when_resumed_as_frozen(policy: Policy) -> None:
    moved, start = References(policy, ReferenceConfig(refresh_every=1)), weight(policy)
    move(policy, 1.0)
    moved.maybe_refresh(policy, step=1)
    frozen = References(policy, ReferenceConfig())
    frozen.load_state_dict(moved.state_dict())
    assert (weight(frozen.current), weight(frozen.original)) == pytest.approx((start + 1, start))
    assert frozen.state_dict()["original"] is not None
    move(policy, 1.0)
    frozen.maybe_refresh(policy, step=2)
    assert weight(frozen.current) == pytest.approx(start + 1)


def test_negative_refresh_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="refresh_every"):
        ReferenceConfig(refresh_every=-1)


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(folder: Path, step: int) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(folder / "checkpoints" / f"step-{step}" / STATE_FILE, weights_only=True)
    return saved


def test_kl_to_the_original_shows_the_drift_that_a_refresh_hides(train: Train, set_limits: Callable[..., None]) -> None:
    set_limits(KEEP_CHECKPOINTS=99)
    folder = train("steps=4", "reference.refresh_every=50", "reference.refresh_every=2", *GIVEN)
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
