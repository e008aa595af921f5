"""Statistics of a match from its pairs of games: Elo, normalised Elo, likelihood of superiority, pentanomial counts.

All of them use the variance of the pairs' scores, so that an opening's advantage for one colour cancels. A pair's score
is the mean of its two games: 0, ¼, ½, ¾ or 1. The pentanomial counts are the numbers of pairs with each score.
Source: Vandenbergh, Normalised Elo (cantate.be/Fishtest/normalized_elo_practical.pdf); fastchess, `pentanomial`.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, stdev
from typing import Any

from .intervals import EQUALITY_TOLERANCE, Z_95, mean_interval
from .suite import SuiteName
from .table import Measure, Row

ELO_SCALE = 400.0
# Normalised Elo per standard deviation of one game. Near an even score it equals Elo if no game is drawn.
NORMALISED_SCALE = 2 * ELO_SCALE / math.log(10)
PAIR_SCORES = (0.0, 0.25, 0.5, 0.75, 1.0)


def elo(score: float) -> float:
    """Return the Elo difference that corresponds to an expected score; infinite at 0 and 1.

    >>> elo(0.5), round(elo(0.75), 1), elo(0.0)
    (0.0, 190.8, -inf)
    """
    if score in (0.0, 1.0):
        return math.copysign(math.inf, score - 0.5)
    return ELO_SCALE * math.log10(score / (1 - score))


def elo_measures(suite: SuiteName, rows: Sequence[Row]) -> dict[str, Measure]:
    """Return `<suite>/elo` and `<suite>/normalised_elo`, the player's lead over the opponent; empty without rows.

    Elo is the logistic difference of the mean score, and its interval is the interval of that score, converted in the
    same way. If every game was lost the difference is minus infinity, and if every game was won it is infinity. The
    other end is then that of Wilson's interval with a pair as one trial (see `mean_interval`).

    Normalised Elo divides the lead by the standard deviation of one game, which is √2 times that of a pair's score. Its
    error then depends on the number of games but not on the share of draws. The key is left out if all pairs have the
    same score.
    """
    scores = _pair_scores(suite, rows)
    if not scores:
        return {}
    value, low, high = map(elo, mean_interval(scores, 0.0, 1.0))
    measures = {f"{suite}/elo": Measure(value, low, high, len(scores))}
    if max(scores) - min(scores) > EQUALITY_TOLERANCE:
        lead = NORMALISED_SCALE * (math.fsum(scores) / len(scores) - 0.5) / (math.sqrt(2) * stdev(scores))
        spread = Z_95 * NORMALISED_SCALE / math.sqrt(2 * len(scores))
        measures[f"{suite}/normalised_elo"] = Measure(lead, lead - spread, lead + spread, len(scores))
    return measures


def match_facts(suite: SuiteName, rows: Sequence[Row]) -> dict[str, Any]:
    """Return `pentanomial`, the numbers of pairs with 0, ½, 1, 1½ and 2 points, and `likelihood_of_superiority`."""
    scores = _pair_scores(suite, rows)
    if not scores:
        return {}
    return {
        "pentanomial": [scores.count(score) for score in PAIR_SCORES],
        "likelihood_of_superiority": likelihood_of_superiority(scores),
    }


def likelihood_of_superiority(scores: Sequence[float]) -> float:
    """Return the probability that the player is stronger, by the normal approximation of the pairs' mean score.

    >>> likelihood_of_superiority([0.25, 0.75]), round(likelihood_of_superiority([0.5, 0.75, 0.5, 0.75]), 3)
    (0.5, 0.958)
    """
    mean, low, high = mean_interval(scores, 0.0, 1.0)
    nearer = low if mean > 0.5 else high
    return NormalDist().cdf((mean - 0.5) * Z_95 / abs(mean - nearer)) if mean != 0.5 else 0.5


def _pair_scores(suite: SuiteName, rows: Sequence[Row]) -> list[float]:
    return [row.values[f"{suite}/score"] for row in rows]
