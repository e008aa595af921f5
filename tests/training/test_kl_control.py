"""KL controllers, compared with values computed by hand, and the coefficient in force in a run."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.stability.kl_control import KLConfig, KLControl, KLController

Train = Callable[..., Path]


def bases(config: KLConfig, kls: list[float], step: int = 0) -> list[float]:
    controller, values = KLController(config), []
    for i, kl in enumerate(kls, step):
        controller.observe(i, kl)
        values.append(controller.base)
    return values


def test_adaptive_coefficient_moves_only_outside_its_band() -> None:
    config = KLConfig(control=KLControl.adaptive, coef=0.1, target=0.1)
    # A KL above 0.15 multiplies the base by 1.5, one below 0.05 by 0.75.
    kls = [0.16, 0.14, 0.06, 0.04, 0.0, 5.0]
    assert bases(config, kls) == pytest.approx([0.15, 0.15, 0.15, 0.1125, 0.084375, 0.1265625])


def test_adaptive_coefficient_stays_within_its_bounds() -> None:
    config = KLConfig(control=KLControl.adaptive, coef=0.8, target=0.1, min_coef=0.5)
    assert bases(config, [1.0, 1.0]) == [1.0, 1.0]
    assert bases(config, [0.0] * 3) == pytest.approx([0.6, 0.5, 0.5])


@pytest.mark.parametrize(("control", "base"), [(KLControl.off, 0.0), (KLControl.fixed, 0.2)])
def test_off_and_fixed_coefficients_never_move(control: KLControl, base: float) -> None:
    controller = KLController(KLConfig(control=control, coef=0.2))
    for kl in (0.0, 9.0):
        controller.observe(100, kl)
        assert controller.base == base == controller.coefficient(100)


def test_base_coefficient_is_constant_during_warm_up() -> None:
    config = KLConfig(control=KLControl.adaptive, coef=0.1, target=0.1, warmup_steps=4)
    controller = KLController(config)
    for step in range(4):
        controller.observe(step, 99.0)
    assert controller.base == 0.1
    # Each step of the warm-up adds a quarter of the base.
    assert [controller.coefficient(step) for step in range(6)] == pytest.approx([0.0, 0.025, 0.05, 0.075, 0.1, 0.1])
    controller.observe(4, 99.0)
    assert controller.base == pytest.approx(0.15) and controller.coefficient(5) == pytest.approx(0.15)
    assert controller.coefficient(2) == pytest.approx(0.5 * 0.15)


def test_saved_base_is_restored_only_by_adaptive_control() -> None:
    adaptive = KLConfig(control=KLControl.adaptive, coef=0.1, warmup_steps=10)
    saved = KLController(adaptive)
    saved.base = 0.3
    assert saved.state_dict() == {"base": 0.3}
    for config, base in (
        (adaptive, 0.3),
        (KLConfig(control=KLControl.fixed, coef=0.1), 0.1),
        (KLConfig(control=KLControl.off, coef=0.1), 0.0),
    ):
        resumed = KLController(config)
        resumed.load_state_dict(saved.state_dict())
        assert resumed.base == base
    # A run without a penalty that is resumed with an adaptive one begins at the configured value.
    resumed = KLController(adaptive)
    resumed.load_state_dict(KLController(KLConfig(control=KLControl.off)).state_dict())
    assert resumed.base == 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"coef": -1.0},
        {"coef": math.inf},
        {"warmup_steps": -1},
        {"target": 0.0},
        {"min_coef": 0.0},
        {"min_coef": 1.1},
    ],
    ids=str,
)
def test_kl_options_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    [name] = changes
    with pytest.raises(ValueError, match=name):
        KLConfig(**changes)


def coefficients(folder: Path) -> list[float]:
    return [json.loads(line)["kl/coef"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_run_adapts_coefficient_to_kl_of_each_step_after_warm_up(train: Train) -> None:
    given = ("steps=5", "evaluation_rows=0", "generator.max_new_tokens=8", "kl.coef=0.1", "kl.target=1e-9")
    # KL is 0 before the first update and above this tiny target after it.
    assert coefficients(train("kl=adaptive", *given)) == pytest.approx([0.1, 0.075, 0.1125, 0.16875, 0.253125])
    warm = train("kl=adaptive", "kl.warmup_steps=2", *given, root="warm")
    # The two steps of the warm-up do not change the base; the KL of the third step is the first that does.
    assert coefficients(warm) == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.225])
    assert coefficients(train("kl=off", *given, root="off")) == [0.0] * 5
