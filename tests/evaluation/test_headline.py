"""Which headline keys got worse: by direction, by Holm's correction, by rows and by games."""

from math import inf

import pytest

from rookworld_rlvr.evaluation import Measure, Row
from rookworld_rlvr.evaluation.headline import HEADLINE, Changes, changes, holm, shown_first
from rookworld_rlvr.evaluation.intervals import seeds_interval
from rookworld_rlvr.evaluation.keys import lower_is_better, scale_of

VALID, LOSS = "policy/valid", "policy/win_probability_loss"


def rows(**values: list[float]) -> list[Row]:
    count = len(next(iter(values.values())))
    names = {"valid": VALID, "loss": LOSS, "other": "policy/top5_overlap"}
    return [Row(i, i, {names[name]: column[i] for name, column in values.items()}) for i in range(count)]


def test_a_fall_that_chance_does_not_explain_is_worse_and_a_rise_is_not() -> None:
    ones, zeros = [1.0] * 20, [0.0] * 20
    assert changes(rows(valid=ones), rows(valid=zeros), {}).worse == [VALID]
    assert changes(rows(valid=zeros), rows(valid=ones), {}) == Changes([VALID], [])
    assert changes(rows(valid=ones), rows(valid=[0.0, *ones[1:]]), {}) == Changes([], [])


def test_of_a_loss_the_rise_is_worse() -> None:
    low, high = [0.1] * 20, [0.3] * 20
    assert changes(rows(loss=low), rows(loss=high), {}) == Changes([], [LOSS])
    assert changes(rows(loss=high), rows(loss=low), {}) == Changes([LOSS], [])


def test_keys_that_are_no_headline_are_not_named_and_do_not_count_for_the_correction() -> None:
    assert changes(rows(other=[1.0] * 20), rows(other=[0.0] * 20), {}) == Changes([], [])


def test_a_lost_match_is_worse_where_its_interval_leaves_out_zero() -> None:
    nothing = rows(valid=[1.0] * 4)
    for elo, expected in (
        (Measure(-60.0, -90.0, -30.0, 400), ["match/elo"]),
        (Measure(-60.0, -130.0, 5.0, 400), []),
        (Measure(-inf, -inf, -127.0, 16), ["match/elo"]),
        (Measure(60.0, 30.0, 90.0, 400), []),
    ):
        assert changes(nothing, nothing, {"match/elo": elo}).worse == expected
    won = changes(nothing, nothing, {"match/elo": Measure(60.0, 30.0, 90.0, 400)})
    assert won == Changes(["match/elo"], [])


def test_holm_steps_down_and_stops_at_the_first_that_passes() -> None:
    # Of three: 0.05/3, 0.05/2, 0.05.
    assert holm({"a": 0.016, "b": 0.024, "c": 0.049}) == {"a", "b", "c"}
    assert holm({"a": 0.017, "b": 0.001, "c": 0.0001}) == {"a", "b", "c"}
    assert holm({"a": 0.02, "b": 0.02, "c": 0.02}) == set()
    assert holm({}) == set()


def test_the_tables_show_all_headline_keys_and_whatever_got_worse_in_one_order() -> None:
    gains = dict.fromkeys([LOSS, VALID, "sampled/policy/valid", "policy/top5_overlap"], 0)
    assert shown_first(gains, ["match/elo"]) == [VALID, LOSS, "sampled/policy/valid", "match/elo"]
    assert len(HEADLINE) == 2 * 14 + 1 == len(set(HEADLINE))


def test_directions_and_scales_hold_for_sampled_and_refined_keys() -> None:
    assert lower_is_better("sampled/policy/win_probability_loss/black") and lower_is_better("match/illegal")
    assert not lower_is_better("environment/recall_illegal")
    assert scale_of("sampled/policy/valid") == scale_of("policy/legal_candidates") == scale_of("spread/distinct/policy")
    wide = scale_of("spread/best/environment/reward_mae")
    assert wide is not None and wide.highest == 2.0 and scale_of("policy/valid") is None


@pytest.mark.parametrize(
    ("values", "mean", "half"),
    [
        # The standard error is 1. The quantiles of Student's t are those of printed tables.
        ([1.0, 3.0], 2.0, 12.706),
        ([*[0.0, 2.0] * 5, 1.0, 1.0], 1.0, 2.201 * (10 / 11 / 12) ** 0.5),
        ([*[0.0, 2.0] * 15, 1.0], 1.0, 2.042 * (30 / 30 / 31) ** 0.5),
    ],
)
def test_intervals_over_seeds_use_student_s_t_at_any_number(values: list[float], mean: float, half: float) -> None:
    assert seeds_interval(values) == pytest.approx((mean, mean - half, mean + half), rel=1e-3)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two runs"):
        seeds_interval([1.0])
