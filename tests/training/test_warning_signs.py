"""Warning signs: the metrics that raise each, and their display in console, trackers and report."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.training import evaluations, loop
from rookworld_rlvr.training.health import Sign, SignWatch

SCORE = "validation/environment/next_state_accuracy"
CALM = {"kl/reference": 0.02, "group/zero_variance_fraction": 0.1}
WINDOW = 6


def shown(steps: list[Mapping[str, float]]) -> set[Sign]:
    watch = SignWatch(WINDOW)
    for step in steps:
        watch.observe(step)
    return set(watch.shown)


def calm(count: int = 3 * WINDOW, **others: Callable[[int], float]) -> list[Mapping[str, float]]:
    """Return the metrics of a healthy run, except for those given; `__` in their names stands for a slash."""
    changed = {key.replace("__", "/"): value for key, value in others.items()}
    return [CALM | {key: value(step) for key, value in changed.items()} for step in range(count)]


def test_calm_run_shows_no_warning_sign() -> None:
    assert shown(calm()) == set()


@pytest.mark.parametrize(("kl", "steps", "expected"), [
    (0.2, WINDOW - 1, set()), (0.2, WINDOW, {Sign.kl}), (0.09, WINDOW, set()),
    # KL is 0 at the start of a run, and may stay low for two windows.
    (0.0, 2 * WINDOW, set()), (0.0, 2 * WINDOW + 1, {Sign.kl}),
])  # fmt: skip
def test_window_mean_of_kl_outside_its_range_is_a_sign(kl: float, steps: int, expected: set[Sign]) -> None:
    assert shown(calm(steps, kl__reference=lambda _: kl)) == expected


def test_mostly_zero_variance_groups_are_a_sign() -> None:
    assert shown(calm(group__zero_variance_fraction=lambda _: 0.6)) == {Sign.no_variance}


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, {Sign.no_legal_moves}), (0.4, {Sign.no_legal_moves}), (0.5, set())]
)
def test_prompts_with_values_but_no_term_are_a_sign(fraction: float, expected: set[Sign]) -> None:
    assert shown(calm(reward__expected_value_prompts=lambda _: fraction)) == expected


def test_falling_validation_score_of_one_task_is_forgetting() -> None:
    steps = calm()
    scores = iter([0.9, 0.92, 0.8, 0.8])
    validated = [
        step | ({"validation/score": 0.9, SCORE: next(scores)} if place % 4 == 3 else {})
        for place, step in enumerate(steps)
    ]
    assert shown(validated[:12]) == set(), "three validations: the mean of the last two has not fallen so far"
    assert shown(validated) == {Sign.forgetting}


def test_sign_is_returned_once_and_again_after_it_disappeared() -> None:
    watch = SignWatch(4)
    high = [value for value in (0.2, 0.01, 0.2) for _ in range(8)]
    signs = [bool(watch.observe(CALM | {"kl/reference": value})) for value in high]
    assert signs.count(True) == 2


def test_warning_signs_appear_in_console_tracker_and_report(
    train: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.step_metrics
    scores = iter([0.9, *[0.5] * 20])

    def injected(report: Any, context: Any) -> dict[str, float]:
        raised = {"kl/reference": 0.5, "group/zero_variance_fraction": 0.9, "reward/expected_value_prompts": 0.25}
        return real(report, context) | raised

    def forgetting(_rows: Any) -> Mapping[str, float]:
        return {"validation/score": 0.9, SCORE: next(scores)}

    monkeypatch.setattr(loop, "step_metrics", injected)
    monkeypatch.setattr(evaluations, "validation_metrics", forgetting)
    monkeypatch.setattr(SignWatch.__init__, "__defaults__", (4,))
    given = ("evaluation.curve_every=2", "evaluation.curve_rows=2", "evaluation.rows=0", "logging.tracker=tensorboard")
    folder = train(*given, "steps=9")
    said = capsys.readouterr().out
    for sentence in ("kl/reference 0.5000 in the mean of 4 steps", "90% of the groups",
                     "25% of the prompts", "next_state_accuracy 0.500 in the mean"):  # fmt: skip
        assert said.count(sentence) == 1, sentence
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {sign for sign in Sign if last[f"warning/{sign}"] == 1} == set(Sign)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert all(events.Scalars(f"warning/{sign}")[-1].value == 1 for sign in Sign)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f"<b>Warning</b> {sign}, shown after" in page for sign in Sign)
    # The resumed run replays the earlier metrics and prints no sign a second time, though its steps fill a window.
    train(f"resume={folder}", "evaluation.rows=0", "steps=14")
    assert "warning at step" not in capsys.readouterr().out
    resumed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[-5:]]
    assert all(step[f"warning/{sign}"] == 1 for step in resumed for sign in Sign)
