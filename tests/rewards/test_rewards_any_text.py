"""Any text at all gives a finite reward in range, and no exception."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.rewards import Rubric, RubricConfig

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

FEN = "rnbqkbnr/ppp1pppp/8/3pP3/8/8/PPPP1PPP/RNBQKBNR w KQkq d6 0 3"
PROMPTS = (f"P: {FEN}", f"A: {FEN}+e5d6+e5d6+", f"A: {FEN}+e5e7+e5e7+")
LABELS = ("M: e5d6 E: 0.5 B: e5d6", None, None)
ANSWERS = (
    "M: e5d6 d2d4 E: 0.5 -999.99 B: e5d6",
    "rnbqkbnr/ppp1pppp/3P4/8/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 3+0.001+0+0",
    f"{FEN}+-1.0+0+1",
)
SPLINTERS = (
    "M:",
    "E:",
    "B:",
    "+",
    "/",
    " ",
    "\t",
    "\n",
    "\xa0",
    "~",
    "\0",
    "9" * 5000,
    "٣",
    "１",
    "nan",
    "-inf",
    "e2e4",
    "\ud800",
    "K" * 99,
)
MANY = settings(derandomize=True, max_examples=300, deadline=None)


def assert_in_range(completion: str) -> None:
    for prompt, label in zip(PROMPTS, LABELS, strict=True):
        judged = score(prompt, completion, label)
        assert math.isfinite(judged.total)
        assert -0.3 <= judged.total <= 1.0
        assert all(0.0 <= value <= 1.0 for value in judged.components.values())


@MANY
@given(
    st.text()
    | st.binary().map(lambda data: data.decode("latin-1"))
    | st.binary().map(lambda data: data.decode(errors="surrogateescape"))
)
def test_any_bytes_are_scored(text: str) -> None:
    assert_in_range(text)


@MANY
@given(
    st.sampled_from(ANSWERS),
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(SPLINTERS) | st.characters(), st.integers(0, 3)),
        max_size=6,
    ),
)
def test_any_randomly_edited_answer_is_scored(answer: str, wounds: list[tuple[float, str, int]]) -> None:
    for where, splinter, cut in wounds:
        place = int(where * len(answer))
        answer = answer[:place] + splinter + answer[place + cut :]
    assert_in_range(answer)


@MANY
@given(st.lists(st.sampled_from(SPLINTERS), max_size=30), st.sampled_from(["", " "]))
def test_any_sequence_of_format_fragments_is_scored(splinters: list[str], joint: str) -> None:
    assert_in_range(joint.join(splinters))


@pytest.mark.parametrize(
    "unit",
    [
        *(s for s in SPLINTERS if len(s) < 9),
        "M: ",
        " +",
        "e2e4 ",
        "8/",
        "1 ",
        "x",
        "M: e2e4 E: 0.1 B: e2e4 ",
        "M",
    ],
)
def test_a_hundred_thousand_characters_are_scored(unit: str) -> None:
    heap = unit * (100_000 // len(unit))
    for text in (
        heap,
        f"M: {heap} E: {heap} B: {heap}",
        f"{heap}+{heap}+0+0",
        f"{FEN} {heap}+0.001+0+0",
        f"{FEN}+1{heap}+0+0",
    ):
        assert_in_range(text)


@pytest.mark.parametrize("space", ["\t", "\n", "\r", "\x0b", "\x0c", "\xa0", "\u2003"])
def test_other_white_space_in_a_fen_is_scored_as_malformed(space: str) -> None:
    placement, rest = ANSWERS[1].split(" ", 1)
    answer = f"{placement}{space} {rest}"
    assert_in_range(answer)
    failure = score(PROMPTS[1], answer).failure
    assert failure is not None and failure.reason.value == "bad_fen"
