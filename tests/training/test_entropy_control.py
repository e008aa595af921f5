"""The entropy bonus: its controller by hand, and in a real step."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.rollout.groups import make_batch
from rookworld_rlvr.stability.entropy_control import EntropyConfig, EntropyControl, EntropyController
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import Run


def test_a_fixed_coefficient_never_moves() -> None:
    controller = EntropyController(EntropyConfig(coef=0.01))
    for entropy in (0.0, 9.0):
        controller.observe(entropy)
        assert controller.coefficient() == 0.01


def test_an_adaptive_one_rises_below_its_target_falls_above_and_is_in_force_only_below() -> None:
    config = EntropyConfig(control=EntropyControl.adaptive, coef=0.0, target=0.5, rate=0.01, max_coef=0.025)
    controller, found = EntropyController(config), []
    for entropy in (0.4, 0.4, 0.4, 0.6, 0.4, 0.5, 0.9, 0.9, 0.9):
        controller.observe(entropy)
        found.append(controller.coefficient())
    # Under the hood 0.01, 0.02, 0.025, 0.015, 0.025, 0.015, 0.005, 0, 0; nothing is in force at the target or above.
    assert found == pytest.approx([0.01, 0.02, 0.025, 0.0, 0.025, 0.0, 0.0, 0.0, 0.0])


def test_a_saved_coefficient_goes_on_where_it_adapts() -> None:
    config = EntropyConfig(control=EntropyControl.adaptive, coef=0.0, target=0.5, rate=0.01)
    controller = EntropyController(config)
    controller.observe(0.1)
    controller.observe(0.9)
    state = controller.state_dict()
    assert state == {"coef": 0.0, "below_target": False}
    controller.observe(0.1)
    resumed, fixed = EntropyController(config), EntropyController(EntropyConfig(coef=0.3))
    resumed.load_state_dict(controller.state_dict())
    fixed.load_state_dict(controller.state_dict())
    assert (resumed.coefficient(), fixed.coefficient()) == (0.01, 0.3)


@pytest.mark.parametrize(
    "changes", [{"coef": -0.1}, {"coef": math.nan}, {"target": 0.0}, {"rate": 0.0}, {"max_coef": 0.0}], ids=str
)
def test_an_entropy_bonus_that_makes_no_sense_is_refused_by_name(changes: dict[str, Any]) -> None:
    [name] = changes
    with pytest.raises(ValueError, match=name):
        EntropyConfig(**changes)


def test_a_bonus_raises_the_entropy_at_the_states_it_saw_and_a_step_without_one_does_not(
    make_run: Callable[..., Run],
) -> None:
    def entropy(coef: float) -> float:
        # Equal rewards: the bonus is all there is.
        given = ("generator.temperature=0.7", "kl.coef=0", "generator.max_new_tokens=16")
        context = make_run(f"objective.entropy.coef={coef}", *given).context
        context.hooks.append(lambda _moment, _context, report: report.rewards_PG.fill_(0.5))
        report = grpo_step(context, 0)
        assert (report.update_norm > 0) == (coef > 0)
        batch = make_batch(report.groups, pad_id=context.policy.pad_id, device=context.policy.device)
        return float(context.policy.statistics(batch, temperature=0.7).entropy.mean())

    assert entropy(0.5) > entropy(0.0) + 0.05


def test_an_adaptive_bonus_sees_the_entropy_where_nothing_trains_yet(make_run: Callable[..., Run]) -> None:
    def tokens_of_a_step(control: str) -> int:
        # Without a KL term and with equal rewards no row has a gradient.
        context = make_run("kl.coef=0", "kl.measured=false", f"objective.entropy.control={control}").context
        context.hooks.append(lambda _moment, _context, report: report.rewards_PG.fill_(0.5))
        return grpo_step(context, 0).tokens.count

    assert tokens_of_a_step("adaptive") > 0 == tokens_of_a_step("fixed")


def test_the_metrics_show_the_coefficient_in_force(train: Callable[..., Path]) -> None:
    entropy = "objective.entropy"
    given = (f"{entropy}.control=adaptive", f"{entropy}.target=99", f"{entropy}.rate=0.001", f"{entropy}.coef=0.002")
    folder = train("steps=3", "evaluation_rows=0", "generator.max_new_tokens=8", *given)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["policy/entropy_coef"] for row in rows] == pytest.approx([0.002, 0.003, 0.004])
