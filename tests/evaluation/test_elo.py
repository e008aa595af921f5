"""Elo, normalised Elo, likelihood of superiority and pentanomial counts, against values computed by hand."""

import math
from random import Random
from statistics import NormalDist

import pytest

from rookworld_rlvr.evaluation.intervals import Z_95, wilson_interval
from rookworld_rlvr.evaluation.match import PAIR_SCORES, elo, elo_measures, likelihood_of_superiority, match_facts
from rookworld_rlvr.evaluation.table import Row, summarise


def rows(*scores: float) -> list[Row]:
    return [Row(index, index, {"match/score": score}) for index, score in enumerate(scores)]


def test_pentanomial_counts_pairs_by_their_points() -> None:
    facts = match_facts(rows(0.0, 0.25, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0))
    assert facts["pentanomial"] == [1, 2, 1, 1, 3]
    assert match_facts([]) == {}


def test_normalised_elo_is_lead_over_standard_deviation_of_a_game() -> None:
    # Mean 0.6; squared deviations 0.01 + 0.0225 + 0.1225 + 0.16 + 0.01 = 0.325, variance 0.08125.
    found = elo_measures(rows(0.5, 0.75, 0.25, 1.0, 0.5))["match/normalised_elo"]
    scale = 800 / math.log(10)
    assert found.value == pytest.approx(0.1 / math.sqrt(2 * 0.08125) * scale)


def test_error_of_normalised_elo_is_that_of_a_quotient() -> None:
    # Mean 0.875, s = 0.25 and t = 1.5; z is 0.5 three times and -1.5. Then z − t/2·(z² − 1) is 1.0625 and -2.4375.
    found = elo_measures(rows(1.0, 1.0, 1.0, 0.5))["match/normalised_elo"]
    error = math.sqrt((3 * 1.0625**2 + 2.4375**2) / (4 * 3))
    expected = 1.959964 * error * 800 / math.log(10) / math.sqrt(2)
    assert found.high - found.value == pytest.approx(found.value - found.low) == pytest.approx(expected)


def test_normalised_elo_equals_elo_near_even_score_without_draws() -> None:
    # Pairs of two independent games without draws, won with a probability of 0.51.
    scores = [1.0] * 2601 + [0.5] * 4998 + [0.0] * 2401
    found = elo_measures(rows(*scores))
    assert found["match/normalised_elo"].value == pytest.approx(found["match/elo"].value, rel=0.01)


def test_drawn_games_change_elo_but_not_normalised_elo() -> None:
    some, more = rows(*[0.5, 0.75, 0.25, 1.0] * 5), rows(*[0.5, 0.625, 0.375, 0.75] * 5)
    one, two = (elo_measures(each) for each in (some, more))
    assert one["match/elo"].value > 1.9 * two["match/elo"].value
    assert one["match/normalised_elo"].value == pytest.approx(two["match/normalised_elo"].value)


def test_error_of_normalised_elo_at_an_even_score_depends_on_the_number_of_pairs_alone() -> None:
    found = elo_measures(rows(*[0.25, 0.5, 0.75, 0.5] * 50))["match/normalised_elo"]
    # fastchess gives 34 for 200 pairs.
    assert found.high == -found.low == pytest.approx(34.05, abs=0.01)


@pytest.mark.parametrize(
    ("shares", "pairs"),
    [
        # Mean scores of 0.5, 0.61, 0.895, 0.105 and 0.97. The interval for an even score covers 0.46, 0.46 and 0.1 of
        # the last three.
        ((0.1, 0.2, 0.4, 0.2, 0.1), 32),
        ((0.05, 0.15, 0.3, 0.3, 0.2), 32),
        ((0.0, 0.02, 0.08, 0.2, 0.7), 100),
        ((0.7, 0.2, 0.08, 0.02, 0.0), 100),
        ((0.0, 0.0, 0.02, 0.08, 0.9), 32),
    ],
)
def test_interval_of_normalised_elo_covers_the_truth_at_even_and_uneven_scores(
    shares: tuple[float, ...], pairs: int
) -> None:
    random, matches = Random(pairs), 400
    mean = sum(share * score for share, score in zip(shares, PAIR_SCORES, strict=True))
    variance = sum(share * (score - mean) ** 2 for share, score in zip(shares, PAIR_SCORES, strict=True))
    truth = 800 / math.log(10) * (mean - 0.5) / math.sqrt(2 * variance)
    drawn = (elo_measures(rows(*random.choices(PAIR_SCORES, shares, k=pairs))) for _ in range(matches))
    # Pairs that are all equal have no normalised Elo; that happens to 3 % of the matches of the last case.
    found = [table["match/normalised_elo"] for table in drawn if "match/normalised_elo" in table]
    covered = sum(one.low <= truth <= one.high for one in found)
    assert len(found) > 0.95 * matches and 0.91 <= covered / len(found) <= 0.98


def test_match_of_two_scores_has_an_error_of_normalised_elo_that_is_not_near_zero() -> None:
    # At this share the first-order error of mean over standard deviation vanishes, with two scores.
    found = elo_measures(rows(*[0.75] * 20, *[1.0] * 10))["match/normalised_elo"]
    assert found.high - found.value == pytest.approx(1.959964 * 800 / math.log(10) / math.sqrt(60))


def test_likelihood_of_superiority_of_few_pairs_is_not_that_of_a_clipped_interval() -> None:
    # The standard error is 0.375, so the interval would reach below a score of 0.
    assert likelihood_of_superiority([0.25, 1.0]) == pytest.approx(NormalDist().cdf(0.125 / 0.375))
    assert likelihood_of_superiority([0.75, 0.0]) == pytest.approx(NormalDist().cdf(-0.125 / 0.375))


def test_equal_pairs_have_no_normalised_elo() -> None:
    assert set(elo_measures(rows(0.5, 0.5, 0.5))) == {"match/elo"}


def test_likelihood_of_superiority_is_normal_probability_of_a_lead() -> None:
    scores = [0.5, 0.75, 0.25, 1.0, 0.5]
    expected = NormalDist().cdf(0.1 / math.sqrt(0.08125 / 5))
    assert likelihood_of_superiority(scores) == pytest.approx(expected)
    assert likelihood_of_superiority([1 - score for score in scores]) == pytest.approx(1 - expected)
    assert likelihood_of_superiority([0.5, 0.5]) == 0.5
    assert 0.9 < likelihood_of_superiority([1.0] * 4) < 1.0


def test_elo_equals_logistic_formula() -> None:
    # A difference of 100 Elo is a score of 1 / (1 + 10^(-1/4)).
    assert elo(1 / (1 + 10**-0.25)) == pytest.approx(100.0)
    assert elo(0.25) == pytest.approx(-elo(0.75)) and (elo(0.0), elo(1.0)) == (-math.inf, math.inf)


def test_elo_interval_is_score_interval_of_pairs_mapped_to_elo() -> None:
    measures = elo_measures(rows(0.5, 0.75, 0.25, 1.0, 0.5))
    # Mean 0.6; squared deviations 0.01 + 0.0225 + 0.1225 + 0.16 + 0.01 = 0.325, variance 0.08125.
    spread = Z_95 * math.sqrt(0.08125 / 5)
    measure = measures["match/elo"]
    assert (measure.value, measure.low, measure.high, measure.n) == pytest.approx(
        (elo(0.6), elo(0.6 - spread), elo(0.6 + spread), 5)
    )
    # Without pairing the interval would be wider, because a drawn pair may be a win and a loss.
    assert summarise(rows(0.5, 0.75, 0.25, 1.0, 0.5))["match/score"].low == pytest.approx(0.6 - spread)


def test_match_lost_or_won_throughout_has_one_infinite_elo_bound() -> None:
    lost, won = (summarise(each) | elo_measures(each) for each in (rows(*[0.0] * 8), rows(*[1.0] * 8)))
    low, high = wilson_interval(0, 8)
    assert (low, pytest.approx(high)) == (lost["match/score"].low, lost["match/score"].high)
    assert (lost["match/elo"].value, lost["match/elo"].low) == (-math.inf, -math.inf)
    assert lost["match/elo"].high == pytest.approx(elo(high)) == pytest.approx(-won["match/elo"].low)
    assert won["match/elo"].high == math.inf
    assert elo_measures([]) == {}
