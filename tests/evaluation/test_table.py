"""Tables and paired gains, against hand computation and recomputation, and refused inputs."""

import json
import math
import random
import statistics
from dataclasses import replace

import chess
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookworld_rlvr.evaluation.table import Gain, Measure, Row, paired_gain, score_examples, summarise, to_json
from rookworld_rlvr.tasks.types import Example

Z = 1.959963984540054
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
WHITE = Example("policy", "P: " + chess.STARTING_FEN, "M: e2e4 d2d4 E: 0.3 0.2 B: e2e4")
BLACK = Example("policy", "P: " + AFTER_E4, "M: e7e5 c7c5 E: 0.1 0.0 B: e7e5")
STEP = Example("environment", f"A: {chess.STARTING_FEN}+e2e4+e2e4+", f"{AFTER_E4}+0.001+0+0")
MATE = Example(
    "environment",
    "A: 7k/5Q2/6K1/8/8/8/8/8 w - - 0 1+f7g7+f7g7+",
    "7k/6Q1/6K1/8/8/8/8/8 b - - 1 1+1.0+1+0",
)
EXAMPLES = [WHITE, BLACK, STEP, MATE]
PERFECT = [
    "M: e2e4 d2d4 g1f3 c2c4 g2g3 E: 0.3 0.2 0.1 0 0 B: e2e4",
    "M: e7e5 c7c5 e7e6 c7c6 d7d5 E: 0.1 0 0 0 0 B: e7e5",
    *(example.completion or "" for example in (STEP, MATE)),
]
WORSE = [
    "M: e2e5 E: 0.3 B: e2e5",
    "",
    f"{chess.STARTING_FEN}+0.001+0+0",
    "7k/6Q1/6K1/8/8/8/8/8 b - - 1 1+0.5+1+0",
    "junk",
]


def row(index: int, value: float, key: str = "environment/valid") -> Row:
    return Row(index, STEP, {key: value})


def test_perfect_answers_score_1_with_no_error() -> None:
    table = summarise(score_examples(EXAMPLES, PERFECT))
    errors = {key: entry.value for key, entry in table.items() if key.endswith("_mae")}
    assert errors == {"environment/reward_mae": 0.0}
    assert {entry.value for key, entry in table.items() if key not in errors} == {1.0}


def test_table_has_published_keys_with_colours_only_for_policy() -> None:
    policy = ["valid", "legal_best_move", "legal_candidates", "best_move_accuracy", "top5_accuracy"]
    policy += ["top5_overlap"]
    environment = ["valid", "next_state_accuracy", "next_state_nls", "reward_accuracy", "reward_mae"]
    environment += ["terminated_accuracy", "truncated_accuracy"]
    environment += ["recall_legal", "recall_win", "recall_terminated"]
    keys = {f"policy/{name}{color}" for name in policy for color in ("", "/white", "/black")}
    keys |= {f"environment/{name}" for name in environment}
    assert summarise(score_examples(EXAMPLES, PERFECT)).keys() == keys


def test_policy_values_are_split_by_side_to_move() -> None:
    table = summarise(score_examples([WHITE, BLACK, BLACK], [PERFECT[0], PERFECT[1], "junk"]))
    assert [table[f"policy/valid{color}"].n for color in ("", "/white", "/black")] == [3, 1, 2]
    assert [table[f"policy/valid{color}"].value for color in ("", "/white", "/black")] == [2 / 3, 1.0, 0.5]


def test_binary_values_get_wilson_and_graded_values_normal_intervals() -> None:
    rows = [Row(i, STEP, {"a/valid": float(i < 81), "policy/legal_candidates": 0.2}) for i in range(263)]
    table = summarise([*rows, Row(263, STEP, {"policy/legal_candidates": 0.6})])
    wilson = table["a/valid"]
    assert (wilson.low, wilson.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson.n == 263
    graded, values = table["policy/legal_candidates"], [0.2] * 263 + [0.6]
    error = statistics.stdev(values) / math.sqrt(264)
    assert graded.value == pytest.approx(statistics.fmean(values))
    assert graded.high - graded.value == pytest.approx(Z * error)


def test_single_graded_row_has_whole_scale_as_interval() -> None:
    for key, width in (("policy/legal_candidates/black", 1.0), ("environment/reward_mae", 2.0)):
        assert summarise([row(0, 0.4, key)]) == {key: Measure(0.4, 0.0, width, 1)}


def test_no_rows_give_no_keys() -> None:
    assert summarise([]) == summarise(score_examples([], [])) == {}
    assert paired_gain([], []) == {}


@given(
    st.lists(st.tuples(st.sampled_from(EXAMPLES), st.sampled_from(PERFECT + WORSE)), max_size=12),
    st.randoms(),
)
def test_table_and_gain_are_independent_of_row_order(pairs: list[tuple[Example, str]], rng: random.Random) -> None:
    examples = [example for example, _ in pairs]
    before = score_examples(examples, [text for _, text in pairs])
    after = score_examples(examples, ["junk"] * len(pairs))
    shuffled = rng.sample(before, len(before))
    assert list(summarise(before).items()) == list(summarise(shuffled).items())
    assert list(paired_gain(before, after).items()) == list(paired_gain(shuffled, after).items())


def test_means_equal_a_recount_of_the_rows() -> None:
    rng = random.Random(1)
    examples = rng.choices(EXAMPLES, k=200)
    rows = score_examples(examples, rng.choices(PERFECT + WORSE, k=200))
    for key, entry in summarise(rows).items():
        values = [one.values[key] for one in rows if key in one.values]
        assert entry.n == len(values)
        assert entry.value == pytest.approx(statistics.fmean(values))
        assert 0.0 <= entry.low <= entry.value <= entry.high <= 2.0


def test_paired_gain_equals_a_computation_by_hand() -> None:
    before = [row(i, value) for i, value in enumerate([0.0, 0.0, 1.0, 1.0])]
    after = [row(i, value) for i, value in enumerate([1.0, 1.0, 1.0, 0.0])]
    # Differences 1, 1, 0, -1: mean 1/4, squared deviations 11/4 over 3, standard error sqrt(11/48).
    expected = (0.25, 0.25 - Z * math.sqrt(11 / 48), 1.0)
    gain = paired_gain(before, after)["environment/valid"]
    assert (gain.value, gain.low, gain.high) == pytest.approx(expected)


def test_paired_gain_is_significant_where_single_intervals_overlap() -> None:
    before = [row(i, float(i < 50)) for i in range(100)]
    after = [row(i, float(i < 60)) for i in range(100)]
    assert summarise(before)["environment/valid"].high > summarise(after)["environment/valid"].low
    assert paired_gain(before, after)["environment/valid"].low > 0.0


def test_equal_differences_have_nonzero_width_and_one_pair_whole_scale() -> None:
    worse, better = [row(i, 0.0) for i in range(9)], [row(i, 1.0) for i in range(9)]
    unseen = Z**2 / (9 + Z**2)
    assert paired_gain(worse, better) == {"environment/valid": Gain(1.0, pytest.approx(1.0 - 2 * unseen), 1.0)}
    [same] = paired_gain(worse, worse).values()
    assert (same.value, same.low, same.high) == pytest.approx((0.0, -unseen, unseen))
    assert paired_gain(worse[:1], better[:1]) == {"environment/valid": Gain(1.0, -1.0, 1.0)}


def test_gain_of_reward_error_uses_its_wider_scale() -> None:
    key = "environment/reward_mae"
    gain = paired_gain([row(0, 2.0, key), row(1, 2.0, key)], [row(0, 0.0, key), row(1, 0.0, key)])
    assert gain == {key: Gain(-2.0, -2.0, pytest.approx(-2.0 + 4.0 * Z**2 / (2 + Z**2)))}


def test_key_missing_on_one_side_has_no_gain() -> None:
    assert paired_gain([row(0, 1.0)], [row(0, 1.0, "environment/other")]) == {}


def test_paired_gain_equals_difference_of_the_two_tables() -> None:
    before, after = score_examples(EXAMPLES * 5, WORSE[:4] * 5), score_examples(EXAMPLES * 5, PERFECT * 5)
    first, second = summarise(before), summarise(after)
    gains = paired_gain(before, after)
    assert gains.keys() == first.keys() == second.keys()
    for key, gain in gains.items():
        assert gain.value == pytest.approx(second[key].value - first[key].value)


def test_pairing_rows_of_different_examples_is_refused() -> None:
    rows = score_examples(EXAMPLES, PERFECT)
    relabelled = [replace(rows[0], item=replace(WHITE, completion=None)), *rows[1:]]
    for other in (rows[:-1], score_examples(EXAMPLES[::-1], PERFECT[::-1]), relabelled):
        with pytest.raises(ValueError, match="expected rows of the same examples"):
            paired_gain(rows, other)


def test_duplicate_row_index_is_refused() -> None:
    rows = score_examples(EXAMPLES, PERFECT)
    for call in (lambda: summarise(rows + rows[:1]), lambda: paired_gain(rows + rows[:1], rows)):
        with pytest.raises(ValueError, match="a second one of index 0"):
            call()


def test_missing_completion_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        score_examples(EXAMPLES, PERFECT[:3])


def test_json_is_flat_and_survives_a_round_trip() -> None:
    table = {"policy/valid": Measure(0.5, 0.25, 0.75, 8)}
    assert to_json(table) == {"policy/valid": {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}}
    assert to_json({"k": Gain(0.1, 0.0, 0.2)}) == {"k": {"value": 0.1, "low": 0.0, "high": 0.2}}
    assert to_json({"k": Measure(-math.inf, -math.inf, math.inf, 1)})["k"] == {
        "value": "-inf",
        "low": "-inf",
        "high": "inf",
        "n": 1,
    }
    real = to_json(summarise(score_examples(EXAMPLES, PERFECT)))
    assert json.loads(json.dumps(real)) == real
