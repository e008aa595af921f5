"""Normalised Elo, likelihood of superiority and pentanomial counts, against values computed by hand."""

import math
from statistics import NormalDist

import pytest

from rookworld_rlvr.evaluation.elo import elo_measures, likelihood_of_superiority, match_facts
from rookworld_rlvr.evaluation.suite import SuiteName
from rookworld_rlvr.evaluation.table import Row


def rows(*scores: float) -> list[Row]:
    return [Row(index, index, {"match/score": score}) for index, score in enumerate(scores)]


def test_pentanomial_counts_pairs_by_their_points() -> None:
    facts = match_facts(SuiteName.match, rows(0.0, 0.25, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0))
    assert facts["pentanomial"] == [1, 2, 1, 1, 3]
    assert match_facts(SuiteName.match, []) == {}


def test_normalised_elo_is_lead_over_standard_deviation_of_a_game() -> None:
    # Mean 0.6; squared deviations 0.01 + 0.0225 + 0.1225 + 0.16 + 0.01 = 0.325, variance 0.08125.
    found = elo_measures(SuiteName.match, rows(0.5, 0.75, 0.25, 1.0, 0.5))["match/normalised_elo"]
    scale = 800 / math.log(10)
    assert found.value == pytest.approx(0.1 / math.sqrt(2 * 0.08125) * scale)
    # The error depends only on the number of pairs: fastchess gives 34 for 200 pairs.
    assert found.high - found.value == found.value - found.low == pytest.approx(1.959964 * scale / math.sqrt(10))
    assert 1.959964 * scale / math.sqrt(400) == pytest.approx(34.05, abs=0.01)


def test_normalised_elo_equals_elo_near_even_score_without_draws() -> None:
    # Pairs of two independent games without draws, won with a probability of 0.51.
    scores = [1.0] * 2601 + [0.5] * 4998 + [0.0] * 2401
    found = elo_measures(SuiteName.match, rows(*scores))
    assert found["match/normalised_elo"].value == pytest.approx(found["match/elo"].value, rel=0.01)


def test_drawn_games_change_elo_but_not_normalised_elo() -> None:
    some, more = rows(*[0.5, 0.75, 0.25, 1.0] * 5), rows(*[0.5, 0.625, 0.375, 0.75] * 5)
    one, two = (elo_measures(SuiteName.match, each) for each in (some, more))
    assert one["match/elo"].value > 1.9 * two["match/elo"].value
    assert one["match/normalised_elo"].value == pytest.approx(two["match/normalised_elo"].value)


def test_equal_pairs_have_no_normalised_elo() -> None:
    assert set(elo_measures(SuiteName.match, rows(0.5, 0.5, 0.5))) == {"match/elo"}


def test_likelihood_of_superiority_is_normal_probability_of_a_lead() -> None:
    scores = [0.5, 0.75, 0.25, 1.0, 0.5]
    expected = NormalDist().cdf(0.1 / math.sqrt(0.08125 / 5))
    assert likelihood_of_superiority(scores) == pytest.approx(expected)
    assert likelihood_of_superiority([1 - score for score in scores]) == pytest.approx(1 - expected)
    assert likelihood_of_superiority([0.5, 0.5]) == 0.5
    assert 0.9 < likelihood_of_superiority([1.0] * 4) < 1.0
