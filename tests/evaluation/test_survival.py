"""Kaplan and Meier's curve against published figures and against plain counting."""

from rookworld_rlvr.evaluation.intervals import Duration, survival_curve, wilson_interval
from rookworld_rlvr.evaluation.world_model import survival_measures

# Weeks in remission under 6-MP; censored ones are negative. Freireich et al., Blood 21 (1963) 699-716.
WEEKS = [6, 6, 6, 7, 10, 13, 16, 22, 23, -6, -9, -10, -11, -17, -19, -20, -25, -32, -32, -34, -35]
REMISSION = [Duration(weeks - 1, True) if weeks > 0 else Duration(-weeks, False) for weeks in WEEKS]


def test_the_curve_of_the_leukemia_trial_is_the_published_one() -> None:
    curve = {point.step: point for point in survival_curve(REMISSION)}
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {step: round(curve[step].share, 3) for step in published} == published
    assert {step: curve[step].at_risk for step in published} == {6: 21, 7: 17, 10: 15, 13: 12, 16: 11, 22: 7, 23: 6 + 0}
    assert [(round(curve[step].low, 3), round(curve[step].high, 3)) for step in (6, 23)] == [
        (0.620, 0.952),
        (0.188, 0.680),
    ]
    assert (curve[5].share, curve[12].share, curve[35].share) == (1.0, curve[10].share, curve[23].share)
    assert max(curve) == 35 and sum(point.broken for point in curve.values()) == 9


def test_without_censoring_the_share_is_counted() -> None:
    curve = survival_curve([Duration(lasted, True) for lasted in (0, 1, 1, 4)])
    assert [point.share for point in curve] == [0.75, 0.25, 0.25, 0.25, 0.0]
    assert (curve[-1].low, curve[-1].high) == (0.0, min(curve[-2].high, wilson_interval(0, 1)[1]))
    assert curve[-2].high < wilson_interval(0, 1)[1]


def test_where_nothing_broke_the_share_is_one_and_its_interval_that_of_those_at_risk() -> None:
    curve = survival_curve([Duration(3, False), Duration(2, False), Duration(0, False)])
    assert [(point.share, point.at_risk, point.low) for point in curve] == [
        (1.0, 2, wilson_interval(2, 2)[0]),
        (1.0, 2, wilson_interval(2, 2)[0]),
        (1.0, 1, wilson_interval(1, 1)[0]),
    ]
    assert survival_curve([]) == survival_curve([Duration(0, False)]) == []


def test_steps_are_reported_until_nothing_took_them_or_all_had_broken() -> None:
    def measured(*durations: Duration) -> dict[str, tuple[float, int]]:
        measures = survival_measures(durations, (2, 4, 8))
        return {key.rpartition("/")[2]: (measure.value, measure.n) for key, measure in measures.items()}

    assert measured(Duration(5, False), Duration(2, True)) == {"002": (1.0, 2), "004": (0.5, 1)}
    # Nothing was there to take the eighth step.
    assert measured(Duration(5, True), Duration(2, True)) == {"002": (1.0, 2), "004": (0.5, 1), "008": (0.0, 0)}
