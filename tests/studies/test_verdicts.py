"""Verdicts for numbers that were checked by hand. Lower is better for the primary key, higher for the guards."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rookworld_rlvr.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
KEY, GUARDS = "policy/win_probability_loss", ("policy/mate_in_one", "environment/recall_legal")


@pytest.fixture
def verdict(studies: SimpleNamespace) -> Callable[..., tuple[str, str]]:
    """Return a function that gives the verdict on an arm from its loss differences to the control, one per seed."""

    def judge(
        differences: Sequence[float], mates: Sequence[float] = (), others: Sequence[float] = (), removed: int = 0
    ) -> Any:
        arms = {"control": [], "new": []} | ({"other": []} if others else {})
        seeds = len(differences) if len(differences) > 1 else 5
        study = studies.study.Study(
            "Is it so?", "nobody", arms, "new", 0.003, seeds=2, comparison_seeds=seeds, removed_arms=removed
        )
        losses = enumerate(differences)

        def record(loss: float, mates: float) -> Any:
            after = {KEY: loss, GUARDS[0]: mates, GUARDS[1]: 0.9}
            return studies.results.Result([], [], 0.0, before={}, after=after, gain={}, kl=None, reward=0.0)

        runs = {
            "control": {seed: record(0.1, 0.5) for seed in range(9)},
            "new": {seed: record(0.1 + loss, 0.5 + (mates[seed] if mates else 0)) for seed, loss in losses},
            "other": {seed: record(0.1 + loss, 0.5) for seed, loss in enumerate(others)},
        }
        return studies.page.Results(study, runs).verdict("new")

    return judge


def test_significant_gain_above_the_smallest_effect_is_yes(verdict: Callable[..., tuple[str, str]]) -> None:
    word, why = verdict([-0.004, -0.005, -0.006])
    # t(0.975, 2) = 4.303, standard error 0.001/√3.
    assert word == "Yes" and "-0.0050 [-0.0075, -0.0025]" in why and "3 paired seeds" in why


def test_interval_excluding_the_smallest_effect_is_no(verdict: Callable[..., tuple[str, str]]) -> None:
    assert verdict([0.0001, -0.0001, 0.0])[0] == "No"
    # A significant gain, but too small to matter: the whole interval is above -0.003.
    assert verdict([-0.0009, -0.001, -0.0011])[0] == "No"


def test_significant_loss_is_no_and_is_called_worse(verdict: Callable[..., tuple[str, str]]) -> None:
    word, why = verdict([0.004, 0.005, 0.006])
    assert word == "No" and "worse" in why


def test_removed_arms_still_count_in_the_correction(verdict: Callable[..., tuple[str, str]]) -> None:
    # t = 8.66 with two degrees of freedom: p = 0.013, so five arms need 0.01.
    assert verdict([0.004, 0.005, 0.006], removed=2)[1].startswith("`new` is worse")
    assert "worse" not in verdict([0.004, 0.005, 0.006], removed=4)[1]


def test_wide_interval_is_undecided_and_estimates_needed_seeds(verdict: Callable[..., tuple[str, str]]) -> None:
    word, why = verdict([-0.010, 0.004, 0.0])
    # 1.99 · 0.00721 / √n ≤ 0.0015 from n = 92 on.
    assert word == "Undecided" and "about 92 seeds would decide" in why


def test_large_gain_needs_few_seeds_despite_a_small_effect(verdict: Callable[..., tuple[str, str]]) -> None:
    # Two arms need p ≤ 0.025. With mean 0.291 and spread 0.220, five seeds give 0.042 and six 0.023.
    word, why = verdict([-0.449, -0.050, -0.456, -0.050, -0.449], others=[0.001, -0.001, 0.002])
    assert word == "Undecided" and "about 6 seeds would decide" in why


def test_p_value_and_needed_seeds_of_three_differences(studies: SimpleNamespace) -> None:
    differences = [0.096, 0.085, 0.060]
    assert round(studies.page.seeds_p(differences), 3) == 0.017
    assert studies.page.seeds_p([0.0, 0.0]) == 1.0 and studies.page.seeds_p([0.1] * 5) == 0.0625
    assert studies.page.seeds_needed(differences, half=0.02) == 6


def test_significant_gain_that_may_be_too_small_is_undecided(verdict: Callable[..., tuple[str, str]]) -> None:
    assert verdict([-0.0027, -0.0028, -0.0031])[0] == "Undecided"


def test_gain_that_worsens_a_guard_metric_is_no(verdict: Callable[..., tuple[str, str]]) -> None:
    word, why = verdict([-0.004, -0.005, -0.006], mates=[-0.10, -0.11, -0.12])
    assert word == "No" and GUARDS[0] in why and GUARDS[1] not in why
    assert verdict([-0.004, -0.005, -0.006], mates=[0.10, 0.11, 0.12])[0] == "Yes"


def test_equal_losses_of_a_guard_count_no_more_than_unequal_ones(verdict: Callable[..., tuple[str, str]]) -> None:
    gains, row = [-0.004, -0.005, -0.006], 1 / 49
    assert verdict(gains, mates=[-row, -row, -row]) == verdict(gains, mates=[0.0, -row, -2 * row])


def test_results_of_two_starting_models_are_refused(studies: SimpleNamespace) -> None:
    study = studies.study.declaration("all_moves")
    first, second = studies.study.members("all_moves", study)[:2]

    def result(before: float) -> Any:
        keys = (study.key, *study.guards)
        values = dict.fromkeys(keys, before)
        return studies.results.Result(
            [], [], 0.0, before=values, after=values, gain=dict.fromkeys(keys), kl=None, reward=0
        )

    finished = {first.run_key: result(0.102), second.run_key: result(0.095)}
    with pytest.raises(UserError, match=r"began from one model, got 0\.0950 to 0\.1020 in policy/win_probability_loss"):
        studies.page.write_page("all_moves", study, [first, second], finished)


def test_single_seed_pair_is_undecided(verdict: Callable[..., tuple[str, str]]) -> None:
    assert verdict([-0.05]) == ("Undecided", "1 of 5 paired seeds have finished.")


def test_second_arm_makes_holm_correction_stricter(verdict: Callable[..., tuple[str, str]]) -> None:
    # Without correction p is 0.035: below 0.05, but above the 0.025 that Holm's correction requires with two arms.
    gains = [-0.004, -0.006, -0.009]
    assert verdict(gains)[0] == "Yes"
    assert verdict(gains, others=[0.001, -0.001, 0.002])[0] == "Undecided"
    # Also before the second arm has run.
    assert verdict(gains, others=[0.001])[0] == "Undecided"


def test_committed_pages_agree_with_the_committed_results(
    studies: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "docs/studies", tmp_path / "docs/studies")
    monkeypatch.chdir(tmp_path)
    finished = studies.results.read_results()
    for name in studies.study.names():
        study = studies.study.declaration(name)
        studies.page.write_page(name, study, studies.study.members(name, study), finished)
    studies.page.write_index()
    made, committed = (sorted((folder / "docs/studies").glob("*.*")) for folder in (tmp_path, ROOT))
    assert [path.name for path in made] == [path.name for path in committed]
    for new, old in zip(made, committed, strict=True):
        # Failed members are known only where they ran.
        lines = [line for line in old.read_text().splitlines() if ", failed: " not in line]
        assert new.read_text().splitlines() == lines, f"write {old.name} again: studies/run.py {old.stem} --limit 0"


def test_a_new_study_finds_the_results_of_an_arm_of_another(
    studies: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "studies", tmp_path / "studies", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs/studies", tmp_path / "docs/studies")
    monkeypatch.chdir(tmp_path)
    name, finished = "kl_coefficient", studies.results.read_results()

    def found() -> set[Any]:
        return {one.run_key for one in studies.study.members(name, studies.study.declaration(name))} & finished.keys()

    before = found()
    # Its first arm is the control of the other studies, and its name comes first.
    declared = "{question: new, source: nobody, comparison: b, smallest_effect: 1, arms: {a: [], b: [kl.coef=2]}"
    Path("studies/a_new_one.yaml").write_text(f"{declared}, repeatable_at: 354d25a}}")
    assert len(before) > 9 and found() == before


def test_a_study_with_another_key_runs_its_members_again(studies: SimpleNamespace, monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    study = studies.study.declaration("all_moves")
    member, finished = studies.study.members("all_moves", study)[0], studies.results.read_results()
    assert studies.results.is_finished(study, member, finished)
    assert not studies.results.is_finished(replace(study, key="policy/legal_best_move"), member, finished)
