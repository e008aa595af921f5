"""Headline keys that got better or worse: directions, Holm's correction, and intervals over rows and seeds."""

from math import inf, sqrt
from random import Random

import pytest

from rookworld_rlvr.evaluation.headline import Changes, changes, gain_over_seeds, headline_keys, holm
from rookworld_rlvr.evaluation.intervals import mean_interval, seeds_interval
from rookworld_rlvr.evaluation.keys import is_better, is_worse, lower_is_better, scale_of
from rookworld_rlvr.evaluation.paired import wilcoxon_p
from rookworld_rlvr.evaluation.table import Measure, Row
from rookworld_rlvr.tasks import all_tasks

VALID, LOSS = "policy/valid", "policy/win_probability_loss"


def rows(**values: list[float]) -> list[Row]:
    count = len(next(iter(values.values())))
    names = {"valid": VALID, "loss": LOSS, "other": "policy/top5_overlap"}
    return [Row(i, i, {names[name]: column[i] for name, column in values.items()}) for i in range(count)]


def named(before: list[Row], after: list[Row]) -> tuple[list[str], list[str]]:
    moved = changes(before, after, {})
    return moved.better, moved.worse


def test_only_significant_changes_are_better_or_worse() -> None:
    ones, zeros = [1.0] * 40, [0.0] * 40
    assert changes(rows(valid=ones), rows(valid=zeros), {}).worse == [VALID]
    assert named(rows(valid=zeros), rows(valid=ones)) == ([VALID], [])
    assert named(rows(valid=ones), rows(valid=[0.0, *ones[1:]])) == ([], [])


def test_rising_loss_is_worse_and_falling_loss_is_better() -> None:
    low, high = [0.1] * 40, [0.3] * 40
    assert named(rows(loss=low), rows(loss=high)) == ([], [LOSS])
    assert named(rows(loss=high), rows(loss=low)) == ([LOSS], [])


def test_keys_outside_the_headline_are_not_reported_as_changes() -> None:
    assert changes(rows(other=[1.0] * 40), rows(other=[0.0] * 40), {}) == Changes([], [])


def test_holm_corrects_over_headline_keys_only() -> None:
    ones, fallen, other = [1.0] * 400, [0.0] * 6 + [1.0] * 394, [0.2] * 400
    # The two-sided p of 6 falls is 1/32. Holm's bound over one key is 1/20, over two 1/40.
    assert changes(rows(valid=ones, other=other), rows(valid=fallen, other=other), {}).worse == [VALID]


def test_match_is_better_or_worse_only_if_its_interval_excludes_zero() -> None:
    nothing = rows(valid=[1.0] * 4)
    for elo, expected in (
        (Measure(-60.0, -90.0, -30.0, 400), ["match/elo"]),
        (Measure(-60.0, -130.0, 5.0, 400), []),
        (Measure(-inf, -inf, -127.0, 32), ["match/elo"]),
        (Measure(60.0, 30.0, 90.0, 400), []),
    ):
        assert changes(nothing, nothing, {"match/elo": elo}).worse == expected
    assert changes(nothing, nothing, {"match/elo": Measure(60.0, 30.0, 90.0, 400)}).better == ["match/elo"]


def test_match_decided_mostly_by_material_is_not_tested() -> None:
    nothing = rows(valid=[1.0] * 4)
    won = {"match/elo": Measure(60.0, 30.0, 90.0, 400)}
    for share, better in ((0.4, ["match/elo"]), (0.6, [])):
        by_material = Measure(share, share - 0.1, share + 0.1, 400)
        moved = changes(nothing, nothing, won | {"match/ended/adjudicated_material": by_material})
        assert (moved.better, moved.worse, moved.perhaps_worse) == (better, [], [])
        by_engine = {"match/ended/adjudicated_engine": by_material}
        assert changes(nothing, nothing, won | by_engine).better == ["match/elo"]


def test_mates_in_one_are_headline_keys() -> None:
    for key in ("policy/mate_in_one", "mate_in_one/accuracy"):
        one, two = ([Row(i, i, {key: value}) for i in range(40)] for value in (1.0, 0.0))
        assert changes(one, two, {}).worse == [key] and changes(two, one, {}).better == [key]


def test_change_is_reported_only_if_ranks_and_mean_agree() -> None:
    # Many small falls and few large rises: the loss is lower by its ranks and higher by its mean.
    after = [0.49] * 614 + [0.55] * 126 + [0.5] * 1308
    before = rows(loss=[0.5] * 2048)
    assert wilcoxon_p([value - 0.5 for value in after]) < 1e-9
    assert named(before, rows(loss=after)) == ([], [])


def test_fall_significant_only_without_holm_is_perhaps_worse() -> None:
    ones, fallen = [1.0] * 400, [0.0] * 6 + [1.0] * 394
    other = [0.2] * 400
    moved = changes(rows(valid=ones, loss=other), rows(valid=fallen, loss=other), {})
    # The one-sided p of 6 falls and no rise is 1/64, the two-sided 1/32. Holm's bound over two keys is 1/40.
    assert (moved.better, moved.worse, moved.perhaps_worse) == ([], [], [VALID])
    error = (0.015 * 0.985 / 399) ** 0.5
    assert moved.detectable[VALID] == pytest.approx(2.487 * error, rel=1e-3)
    assert changes(rows(valid=fallen), rows(valid=ones), {}).perhaps_worse == []


def test_keys_of_few_rows_are_not_tested() -> None:
    few = changes(rows(valid=[1.0] * 29), rows(valid=[0.0] * 29), {})
    assert few == Changes([], [], [], {})
    assert changes([], [], {"match/elo": Measure(338.0, 92.0, inf, 28)}) == Changes([], [], [], {})


def test_interval_over_seeds_is_at_least_as_wide_as_over_rows() -> None:
    gain = {"value": 0.02, "low": 0.003, "high": 0.037}
    assert gain_over_seeds(VALID, [gain] * 3) == pytest.approx((0.02, 0.003, 0.037))
    # Each run plays its own games: their error falls with the number of runs, and is not added to the spread.
    assert gain_over_seeds("match/elo", [gain] * 4) == pytest.approx((0.02, 0.0115, 0.0285))
    other = {name: value + 0.01 for name, value in gain.items()}
    assert gain_over_seeds("match/elo", [gain, other]) == seeds_interval([0.02, 0.03])
    mean, _, high = gain_over_seeds(VALID, [gain, other])
    assert high - mean == pytest.approx((0.017**2 + (12.706 * 0.005) ** 2) ** 0.5, rel=1e-3)


def drawn(random: Random, runs: int, rows: int, own: float) -> list[dict[int, float]]:
    """Draw the gains of each row in each run: 0, plus an error of the row, of the run, and of the row in this run.

    The rows' errors cause a variance of 1/rows in a run's mean, of which a share `own` differs between the runs.
    """
    of_rows = [random.gauss(0, sqrt(1 - own)) for _ in range(rows)]
    made = []
    for _ in range(runs):
        of_run = random.gauss(0, 0.5 / sqrt(rows))
        made.append({i: of_run + row + random.gauss(0, sqrt(own)) for i, row in enumerate(of_rows)})
    return made


def entries(runs: list[dict[int, float]]) -> list[dict[str, float]]:
    means = [mean_interval(list(gains.values()), -100.0, 100.0) for gains in runs]
    return [dict(zip(("value", "low", "high"), interval, strict=True)) for interval in means]


@pytest.mark.parametrize(
    ("own", "least", "most"),
    [
        # All runs fail on the same rows, half of the variance is their own, or all of it.
        (0.0, 0.92, 0.985),
        (0.5, 0.93, 0.985),
        (1.0, 0.93, 0.985),
    ],
)
def test_interval_over_seeds_covers_the_truth_where_rows_and_seeds_vary(own: float, least: float, most: float) -> None:
    random, sets, covered = Random(4), 400, 0
    for _ in range(sets):
        runs = drawn(random, runs=5, rows=30, own=own)
        _, low, high = gain_over_seeds(LOSS, entries(runs), runs)
        _, low_without, high_without = gain_over_seeds(LOSS, entries(runs))
        covered += low <= 0 <= high
        assert high - low <= (high_without - low_without) * (1 + 1e-9)
    assert least <= covered / sets <= most


def test_error_of_few_rows_is_not_that_of_a_clipped_interval() -> None:
    # Gains of 1, 1 and 0 have a mean of 2/3 and a standard error of 1/3, and the interval ends at 1.
    value, low, high = mean_interval([1.0, 1.0, 0.0], -1.0, 1.0)
    assert high == 1.0
    found = gain_over_seeds(VALID, [{"value": value, "low": low, "high": high}] * 2)
    assert found == pytest.approx((2 / 3, 2 / 3 - 1.959964 / 3, 2 / 3 + 1.959964 / 3))


def test_error_of_rows_counts_once_and_only_for_the_same_rows() -> None:
    one, two = {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}, {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}
    # The variance of a run's mean is 1/12, and that of the rows' means, 0.5, 1, 0 and 0.5, is 1/24: nothing is shared.
    mean, low, high = gain_over_seeds(LOSS, entries([one, two]), [one, two])
    assert (mean, high - low) == pytest.approx((0.5, 2 * 1.959964 * sqrt(1 / 24)), rel=1e-6)
    # Runs that agree in each row share all of it.
    agreeing = entries([one, one])
    assert gain_over_seeds(LOSS, agreeing, [one, one]) == pytest.approx(gain_over_seeds(LOSS, agreeing))
    whole = gain_over_seeds(LOSS, entries([one, two]))
    other = {**one, 4: 0.5}
    for rows_of_runs in ([one, other], [one], [one, dict.fromkeys(one, 0.5)], [{}, {}], [one, {**two, 0: inf}]):
        assert gain_over_seeds(LOSS, entries([one, two]), rows_of_runs) == whole


def test_holm_rejects_smallest_p_first_and_stops_at_first_acceptance() -> None:
    # The bounds for three keys are 0.05/3, 0.05/2 and 0.05.
    assert holm({"a": 0.016, "b": 0.024, "c": 0.049}) == {"a", "b", "c"}
    assert holm({"a": 0.017, "b": 0.001, "c": 0.0001}) == {"a", "b", "c"}
    assert holm({"a": 0.02, "b": 0.02, "c": 0.02}) == set()
    assert holm({}) == set()


def test_headline_has_each_key_once() -> None:
    of_tasks = [key for task in all_tasks() for key in task.headline]
    assert len(headline_keys()) == 2 * len(of_tasks) + 2 == len(set(headline_keys())) > 2 * 15 + 2


def test_directions_and_scales_apply_to_sampled_and_sliced_keys() -> None:
    assert lower_is_better("sampled/policy/win_probability_loss/black") and lower_is_better("match/illegal")
    assert not lower_is_better("environment/recall_illegal")
    assert scale_of("sampled/policy/valid") == scale_of("policy/legal_candidates") == scale_of("spread/distinct/policy")
    wide = scale_of("spread/best/environment/reward_mae")
    assert wide is not None and wide.highest == 2.0 and scale_of("policy/valid") is None


@pytest.mark.parametrize(
    ("values", "mean", "half"),
    [
        # The first standard error is 1. The quantiles of Student's t are from printed tables.
        ([1.0, 3.0], 2.0, 12.706),
        ([*[0.0, 2.0] * 5, 1.0, 1.0], 1.0, 2.201 * (10 / 11 / 12) ** 0.5),
        ([*[0.0, 2.0] * 15, 1.0], 1.0, 2.042 * (30 / 30 / 31) ** 0.5),
    ],
)
def test_intervals_over_seeds_use_students_t(values: list[float], mean: float, half: float) -> None:
    assert seeds_interval(values) == pytest.approx((mean, mean - half, mean + half), rel=1e-3)


def test_seed_that_lost_every_game_gives_unbounded_elo_interval() -> None:
    lost, won = {"value": "-inf", "low": "-inf", "high": -127.0}, {"value": 5.0, "low": -9.0, "high": 19.0}
    assert gain_over_seeds("match/elo", [lost, won]) == (-inf, -inf, inf)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two runs"):
        seeds_interval([1.0])


@pytest.mark.parametrize(
    "key",
    [
        "environment/fen_error_placement",
        "selfplay/illegal_rate",
        "selfplay/ended/illegal_move",
        "match/lost",
    ],
)
def test_errors_and_lost_games_get_worse_when_they_rise(key: str) -> None:
    assert is_worse(key, 0.1) and is_better(key, -0.1) and not is_better(key, 0.1)


@pytest.mark.parametrize("key", ["match/ply_limit", "match/opponent_illegal", "selfplay/ended/checkmate"])
def test_neutral_keys_get_neither_better_nor_worse(key: str) -> None:
    assert not is_better(key, 0.1) and not is_worse(key, 0.1)
