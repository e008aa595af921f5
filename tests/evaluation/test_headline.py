"""Headline keys that got worse: by direction, by Holm's correction, by rows and by games."""

from math import inf

import pytest

from rookworld_rlvr.evaluation import Measure, Row
from rookworld_rlvr.evaluation.headline import HEADLINE, Changes, changes, gain_over_seeds, holm, shown_first
from rookworld_rlvr.evaluation.intervals import seeds_interval
from rookworld_rlvr.evaluation.keys import is_better, is_worse, lower_is_better, scale_of
from rookworld_rlvr.evaluation.paired import wilcoxon_p

VALID, LOSS = "policy/valid", "policy/win_probability_loss"


def rows(**values: list[float]) -> list[Row]:
    count = len(next(iter(values.values())))
    names = {"valid": VALID, "loss": LOSS, "other": "policy/top5_overlap"}
    return [Row(i, i, {names[name]: column[i] for name, column in values.items()}) for i in range(count)]


def named(before: list[Row], after: list[Row]) -> tuple[list[str], list[str]]:
    moved = changes(before, after, {})
    return moved.better, moved.worse


def test_a_fall_that_chance_does_not_explain_is_worse_and_a_rise_is_not() -> None:
    ones, zeros = [1.0] * 40, [0.0] * 40
    assert changes(rows(valid=ones), rows(valid=zeros), {}).worse == [VALID]
    assert named(rows(valid=zeros), rows(valid=ones)) == ([VALID], [])
    assert named(rows(valid=ones), rows(valid=[0.0, *ones[1:]])) == ([], [])


def test_of_a_loss_the_rise_is_worse() -> None:
    low, high = [0.1] * 40, [0.3] * 40
    assert named(rows(loss=low), rows(loss=high)) == ([], [LOSS])
    assert named(rows(loss=high), rows(loss=low)) == ([LOSS], [])


def test_keys_that_are_no_headline_are_not_named_and_do_not_count_for_the_correction() -> None:
    assert changes(rows(other=[1.0] * 40), rows(other=[0.0] * 40), {}) == Changes([], [])


def test_a_lost_match_is_worse_where_its_interval_leaves_out_zero() -> None:
    nothing = rows(valid=[1.0] * 4)
    for elo, expected in (
        (Measure(-60.0, -90.0, -30.0, 400), ["match/elo"]),
        (Measure(-60.0, -130.0, 5.0, 400), []),
        (Measure(-inf, -inf, -127.0, 16), ["match/elo"]),
        (Measure(60.0, 30.0, 90.0, 400), []),
    ):
        assert changes(nothing, nothing, {"match/elo": elo}).worse == expected
    assert changes(nothing, nothing, {"match/elo": Measure(60.0, 30.0, 90.0, 400)}).better == ["match/elo"]


def test_a_match_that_material_alone_decided_is_not_tested() -> None:
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


def test_a_key_is_named_only_if_ranks_and_mean_agree() -> None:
    # Many small gains and few large losses: the ranks say lower, the mean of the loss rises.
    after = [0.49] * 614 + [0.55] * 126 + [0.5] * 1308
    before = rows(loss=[0.5] * 2048)
    assert wilcoxon_p([value - 0.5 for value in after]) < 1e-9
    assert named(before, rows(loss=after)) == ([], [])


def test_a_loss_below_holm_s_bound_is_perhaps_worse_with_what_could_be_seen() -> None:
    ones, fallen = [1.0] * 400, [0.0] * 6 + [1.0] * 394
    other = [0.2] * 400
    moved = changes(rows(valid=ones, loss=other), rows(valid=fallen, loss=other), {})
    # One-sided p of 6 falls and no rise is 1/64; Holm asks for 1/40 of the two-sided 1/32 over two keys.
    assert (moved.better, moved.worse, moved.perhaps_worse) == ([], [], [VALID])
    error = (0.015 * 0.985 / 399) ** 0.5
    assert moved.detectable[VALID] == pytest.approx(2.487 * error, rel=1e-3)
    assert changes(rows(valid=fallen), rows(valid=ones), {}).perhaps_worse == []


def test_keys_of_few_rows_are_not_tested() -> None:
    few = changes(rows(valid=[1.0] * 29), rows(valid=[0.0] * 29), {})
    assert few == Changes([], [], [], {})


def test_the_interval_over_seeds_is_never_narrower_than_that_over_rows() -> None:
    gain = {"value": 0.02, "low": 0.003, "high": 0.037}
    assert gain_over_seeds(VALID, [gain] * 3) == pytest.approx((0.02, 0.003, 0.037))
    # Games are played anew in each run: their error falls with the number of runs.
    assert gain_over_seeds("match/elo", [gain] * 4) == pytest.approx((0.02, 0.0115, 0.0285))
    other = gain | {"value": 0.03}
    mean, _, high = gain_over_seeds(VALID, [gain, other])
    assert high - mean == pytest.approx((0.017**2 + (12.706 * 0.005) ** 2) ** 0.5, rel=1e-3)


def test_holm_steps_down_and_stops_at_the_first_that_passes() -> None:
    # Of three: 0.05/3, 0.05/2, 0.05.
    assert holm({"a": 0.016, "b": 0.024, "c": 0.049}) == {"a", "b", "c"}
    assert holm({"a": 0.017, "b": 0.001, "c": 0.0001}) == {"a", "b", "c"}
    assert holm({"a": 0.02, "b": 0.02, "c": 0.02}) == set()
    assert holm({}) == set()


def test_the_tables_show_all_headline_keys_and_whatever_got_worse_in_one_order() -> None:
    gains = dict.fromkeys([LOSS, VALID, "sampled/policy/valid", "policy/top5_overlap"], 0)
    assert shown_first(gains, ["match/elo"]) == [VALID, LOSS, "sampled/policy/valid", "match/elo"]
    assert len(HEADLINE) == 2 * 15 + 2 == len(set(HEADLINE))


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


def test_a_seed_that_lost_every_game_leaves_the_whole_scale() -> None:
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
        "engine_match/lost",
    ],
)
def test_errors_and_lost_games_get_worse_when_they_rise(key: str) -> None:
    assert is_worse(key, 0.1) and is_better(key, -0.1) and not is_better(key, 0.1)


@pytest.mark.parametrize("key", ["match/cut", "match/opponent_illegal", "selfplay/ended/checkmate", "match/drawn"])
def test_neutral_keys_get_neither_better_nor_worse(key: str) -> None:
    assert not is_better(key, 0.1) and not is_worse(key, 0.1)
