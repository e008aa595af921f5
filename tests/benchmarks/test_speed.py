"""Benchmark scripts can be imported, and their sides take turns on the same work. No time is asserted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rookworld_rlvr.training.optim import BETAS

SCRIPTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))
# This script needs TRL, which is not installed in this environment.
ELSEWHERE = {"trl_side"}


@pytest.fixture(scope="module")
def benchmarks(load_benchmark: Callable[[str], ModuleType]) -> dict[str, ModuleType]:
    return {name: load_benchmark(name) for name in ("sides", "peers")}


@pytest.fixture
def settings(benchmarks: dict[str, ModuleType]) -> Any:
    return benchmarks["peers"].Settings(
        prompts=2,
        group_size=4,
        max_new_tokens=16,
        micro_batch=4,
        kl_coef=0.02,
        lr=1e-6,
        seed=0,
        threads=1,
        model="tiny",
        total_steps=7,
        trl_attention="sdpa",
        trl_checkpointing=False,
        same_process=False,
        device="cpu",
        precision="fp32",
    )


@pytest.mark.parametrize("name", [path.stem for path in SCRIPTS if path.stem not in ELSEWHERE])
def test_a_benchmark_can_be_imported(load_benchmark: Callable[[str], ModuleType], name: str) -> None:
    assert load_benchmark(name).__doc__


class FakeEnd:
    """A fake end of a pipe that records each request and returns the number of its turn."""

    def __init__(self, name: str, log: list[tuple[str, int]]) -> None:
        self.name, self.log, self.turns = name, log, 0

    def send(self, steps: int) -> None:
        self.log.append((self.name, steps))

    def recv(self) -> dict[str, float]:
        self.turns += 1
        return {"turn": float(self.turns)}


def test_sides_take_turns_in_rotating_order(benchmarks: dict[str, ModuleType]) -> None:
    log: list[tuple[str, int]] = []
    ends = [FakeEnd("a", log), FakeEnd("b", log), FakeEnd("c", log)]
    rounds = benchmarks["sides"].take_turns(ends, rounds=3, steps=5, warmup_steps=1)
    assert log[:3] == [("a", 1), ("b", 1), ("c", 1)]
    assert [name for name, _ in log[3:]] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert {steps for _, steps in log[3:]} == {5}
    # The first turn was the warm-up.
    assert rounds == [[{"turn": 2.0}, {"turn": 3.0}, {"turn": 4.0}]] * 3


def test_without_a_warm_up_the_first_round_counts(benchmarks: dict[str, ModuleType]) -> None:
    log: list[tuple[str, int]] = []
    assert benchmarks["sides"].take_turns([FakeEnd("a", log)], rounds=1, steps=2, warmup_steps=0) == [[{"turn": 1.0}]]
    assert log == [("a", 2)]


def test_figures_are_medians_and_peaks_are_maxima(benchmarks: dict[str, ModuleType]) -> None:
    rounds = [{"wall_s": wall_s, "peak_gib": peak} for wall_s, peak in ((1.0, 2.0), (9.0, 3.0), (2.0, 1.0))]
    assert benchmarks["sides"].medians(rounds) == {"wall_s": 2.0, "peak_gib": 3.0}


def test_ratio_is_computed_per_round(benchmarks: dict[str, ModuleType]) -> None:
    ours, theirs = [[{"rate": rate} for rate in rates] for rates in ((2.0, 9.0, 4.0), (1.0, 3.0, 4.0))]
    assert benchmarks["sides"].ratio(ours, theirs, "rate") == (2.0, 1.0, 3.0)


def test_round_counts_completions_rewards_and_updates(benchmarks: dict[str, ModuleType]) -> None:
    counted = benchmarks["sides"].Counted()
    counted.add_step([3, 5], [0.0, 1.0])
    counted.updates, counted.generate_s, counted.score_s = 1, 0.5, 0.25
    row = counted.round(grown_gib=0.5)
    assert [row[key] for key in ("completions", "length", "reward", "updates", "grown_gib")] == [2, 4.0, 0.5, 1, 0.5]
    assert row["decode_steps"] == 5 and row["train_s"] == pytest.approx(row["wall_s"] - 0.75)
    assert row["completions_per_s"] == pytest.approx(2 / row["wall_s"])
    counted.begin()
    assert (counted.lengths, counted.updates) == ([], 0)


def test_both_sides_get_the_same_settings(benchmarks: dict[str, ModuleType], settings: Any) -> None:
    theirs = benchmarks["peers"].trl_settings(settings)
    ours = benchmarks["sides"].configured(settings.overrides())
    assert theirs["per_device_train_batch_size"] == ours.optim.micro_batch_size == 4
    assert theirs["per_device_train_batch_size"] * theirs["gradient_accumulation_steps"] == settings.completions == 8
    assert theirs["num_generations"] == ours.objective.group_size
    assert theirs["max_completion_length"] == ours.generator.max_new_tokens
    assert (theirs["temperature"], theirs["top_p"], theirs["top_k"]) == (ours.generator.temperature, 1.0, 0)
    assert theirs["beta"] == ours.kl.coef > 0 and ours.kl.form != "off"
    assert theirs["learning_rate"] == ours.optim.lr and theirs["max_grad_norm"] == ours.optim.max_grad_norm
    assert (theirs["adam_beta1"], theirs["adam_beta2"]) == BETAS
    assert theirs["weight_decay"] == ours.optim.weight_decay
    assert theirs["loss_type"] == ours.objective.loss and theirs["num_iterations"] == ours.objective.updates
    assert (theirs["epsilon"], theirs["epsilon_high"]) == (
        ours.objective.clip.low,
        ours.objective.clip.high,
    )
    assert theirs["scale_rewards"] == ours.objective.advantage.scale
    assert theirs["bf16"] is (ours.precision == "bf16")
    assert ours.generator.kind == type(ours.generator)().kind


def test_sides_with_unequal_work_are_refused(benchmarks: dict[str, ModuleType], settings: Any) -> None:
    check = benchmarks["peers"].check_work
    done = {"completions": 16, "updates": 2, "length": 40.0}
    check([[done], [done | {"length": 43.0}]], settings, 2)
    for other in ({"completions": 8}, {"updates": 1}):
        with pytest.raises(SystemExit, match="expected 2 steps of 8 completions"):
            check([[done], [done | other]], settings, 2)
    with pytest.raises(SystemExit, match="about equal length"):
        check([[done], [done | {"length": 30.0}]], settings, 2)
    with pytest.raises(SystemExit):
        check([[done], [done]], replace(settings, prompts=3), 2)
