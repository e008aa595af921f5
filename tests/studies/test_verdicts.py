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
Judge = Callable[..., tuple[str, str]]
KEY, GUARDS = "policy/win_probability_loss", ("policy/mate_in_one", "environment/recall_legal")


@pytest.fixture
def verdict(studies: SimpleNamespace) -> Judge:
    """Return a function that gives the verdict on an arm from its loss differences to the control, one per seed."""

    def judge(
        differences: Sequence[float],
        mates: Sequence[float] = (),
        *,
        others: Sequence[float] = (),
        removed: int = 0,
        arm: str = "new",
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
        results = studies.verdicts.Results(study, runs)
        return results.verdict(arm), results.reason(arm)

    return judge


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        # Between worse and no better: 0 is the better end.
        (-0.010, -1e-9, "worse"),
        (-0.010, 0.0, "no better"),
        # Between no better and open: the better end reaches the smallest effect.
        (-0.010, 0.00299, "no better"),
        (-0.010, 0.003, "open"),
        # Between open and better: 0 is the worse end.
        (0.0, 0.010, "open"),
        (1e-9, 0.010, "better"),
        # Between better and no better: a gain, but not as large as the smallest effect.
        (0.001, 0.003, "better"),
        (0.001, 0.00299, "no better"),
    ],
)
def test_interval_is_read_against_0_and_the_smallest_effect(
    low: float, high: float, word: str, studies: SimpleNamespace
) -> None:
    """The intervals are those of a key of which more is better; of a loss, those with the other sign."""
    assert studies.verdicts.read_interval("policy/mate_in_one", low, high, 0.003) == word
    assert studies.verdicts.read_interval(KEY, -high, -low, 0.003) == word


def test_gain_whose_interval_excludes_0_is_better(verdict: Judge) -> None:
    word, why = verdict([-0.004, -0.005, -0.006])
    # t(0.975, 2) = 4.303, standard error 0.001/√3.
    assert word == "better" and "-0.0050 [-0.0075, -0.0025]" in why and "3 paired seeds" in why


def test_interval_excluding_the_smallest_effect_is_no_better(verdict: Judge) -> None:
    assert verdict([0.0001, -0.0001, 0.0])[0] == "no better"
    # A significant gain, but too small to matter: the whole interval is above -0.003.
    assert verdict([-0.0009, -0.001, -0.0011])[0] == "no better"


def test_loss_whose_interval_excludes_0_is_worse_however_small(verdict: Judge) -> None:
    word, why = verdict([0.004, 0.005, 0.006])
    assert word == "worse" and why.startswith("`new` is worse than `control`: ")
    word, why = verdict([0.0009, 0.001, 0.0011])
    assert word == "worse" and why.startswith("`new` is worse than `control`, by less than 0.003: ")


def test_removed_arms_count_in_the_correction_of_the_other_arms(verdict: Judge) -> None:
    # t = 8.66 with two degrees of freedom: p = 0.013, so four arms need 0.0125 and three 0.017.
    losses = [0.004, 0.005, 0.006]
    assert verdict([0.0] * 3, others=losses, removed=2, arm="other")[0] == "worse"
    assert verdict([0.0] * 3, others=losses, removed=3, arm="other")[0] == "no better"
    assert verdict([0.0] * 3, others=[-loss for loss in losses], removed=3, arm="other")[0] == "open"
    # The declared comparison is one test.
    assert verdict(losses, removed=9)[0] == "worse"


def test_wide_interval_is_open_and_estimates_needed_seeds(verdict: Judge) -> None:
    word, why = verdict([-0.010, 0.004, 0.0])
    # The mean is -0.002, so 0 is easier to exclude than -0.003: 1.972 · 0.00721 / √n ≤ 0.002 from n = 53 on.
    assert word == "open" and "about 53 seeds would decide" in why
    # The mean is 0.001, and -0.003 is easier to exclude: 2.145 · 0.00721 / √n ≤ 0.004 from n = 15 on.
    assert "about 15 seeds would decide" in verdict([-0.007, 0.007, 0.003])[1]


def test_p_value_and_needed_seeds_of_three_differences(studies: SimpleNamespace) -> None:
    differences = [0.096, 0.085, 0.060]
    assert round(studies.verdicts.seeds_p(differences), 3) == 0.017
    assert studies.verdicts.seeds_p([0.0, 0.0]) == 1.0 and studies.verdicts.seeds_p([0.1] * 5) == 0.0625
    assert studies.verdicts.seeds_needed(differences, half=0.02) == 6


def test_gain_that_worsens_a_guard_metric_is_no_better(verdict: Judge) -> None:
    word, why = verdict([-0.004, -0.005, -0.006], mates=[-0.10, -0.11, -0.12])
    assert word == "no better" and GUARDS[0] in why and GUARDS[1] not in why
    assert verdict([-0.004, -0.005, -0.006], mates=[0.10, 0.11, 0.12])[0] == "better"


def test_equal_losses_of_a_guard_count_no_more_than_unequal_ones(verdict: Judge) -> None:
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


def test_start_may_differ_by_a_tenth_of_the_smallest_effect(studies: SimpleNamespace) -> None:
    study = studies.study.declaration("off_the_ground")

    def results(*before: float) -> list[Any]:
        return [SimpleNamespace(before={study.key: value}) for value in before]

    studies.page._check_one_start(study, results(0.0391, 0.0430))
    with pytest.raises(UserError, match="began from one model"):
        studies.page._check_one_start(study, results(0.0391, 0.0450))


def test_single_seed_pair_is_open(verdict: Judge) -> None:
    assert verdict([-0.05]) == ("open", "1 of 5 paired seeds have finished.")


def test_equal_differences_of_few_seeds_are_not_significant(verdict: Judge) -> None:
    assert verdict([-0.004, -0.004, -0.004])[0] == "open" and verdict([-0.004] * 6)[0] == "better"


def test_page_names_arms_that_the_correction_makes_open(studies: SimpleNamespace) -> None:
    text = (ROOT / "docs/studies/narrow_start.md").read_text(encoding="utf-8")
    assert "-0.0029 [-0.0051, -0.0008] | open |" in text
    assert "Not significant after the correction over the other arms: `group_0.05`." in text


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
