import json
import random
from itertools import count, islice
from pathlib import Path

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.numbers import parse_number
from rookworld_rlvr.tasks.policy.text import (
    parse_policy,
    parse_policy_prompt,
    policy_fields,
    render_policy,
    render_policy_prompt,
)
from rookworld_rlvr.tasks.types import FailureReason, ParseFailure, PolicyCompletion, PolicyPrompt, PromptError

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no published data in {SHARED_DATA}")

FEN = "r1b1kbnr/pp2pppp/n1p5/q2PP3/3P4/2N5/PP3PPP/R1BQKBNR b KQkq - 2 6"
COMPLETION = " " * 26 + "M: c6d5 a6b4 c8d7 a6c7 a6b8      E: -2.0 -2.07 -2.92 -2.79 -2.66            B: c8d7"
ANSWER = PolicyCompletion(("c6d5", "a6b4", "c8d7", "a6c7", "a6b8"), (-2.0, -2.07, -2.92, -2.79, -2.66), "c8d7")
SQUARES = st.sampled_from(chess.SQUARE_NAMES)
MOVES = st.tuples(SQUARES, SQUARES, st.sampled_from(["", "q", "r", "b", "n"])).filter(lambda m: m[0] != m[1])
EVALS = st.integers(-99_999, 99_999).map(lambda centipawns: centipawns / 100)
ANSWERS = st.lists(st.tuples(MOVES.map("".join), EVALS), min_size=1, max_size=5).flatmap(
    lambda pairs: st.builds(
        PolicyCompletion,
        st.just(tuple(move for move, _ in pairs)),
        st.just(tuple(pawns for _, pawns in pairs)),
        MOVES.map("".join),
    )
)


def test_the_published_row_renders_and_parses_exactly() -> None:
    assert render_policy_prompt(FEN) == f"P: {FEN}"
    assert render_policy(ANSWER, FEN) == COMPLETION
    assert parse_policy(COMPLETION) == ANSWER
    assert parse_prompt(f"P: {FEN}") == PolicyPrompt(FEN)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(ANSWERS)
def test_parsing_undoes_rendering(answer: PolicyCompletion) -> None:
    assert parse_policy(render_policy(answer, FEN)) == answer


@settings(derandomize=True, max_examples=100, deadline=None)
@given(ANSWERS, st.integers(1, 40), st.integers(1, 40), st.integers(0, 40))
def test_columns_of_any_width_are_read(answer: PolicyCompletion, before: int, between: int, after: int) -> None:
    moves, evals = " ".join(answer.moves), " ".join(map(str, answer.evals_pawns))
    text = f"{' ' * before}M:{moves}{' ' * between}E: {evals}{' ' * between}B:{' ' * after}{answer.best} "
    assert parse_policy(text) == answer


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("", FailureReason.empty),
        (" \n\t", FailureReason.empty),
        ("a1b1", FailureReason.missing_field),
        ("M: a1b1 E: 0.5", FailureReason.missing_field),
        ("M: a1b1 E: 0.5 xB: a1b1", FailureReason.missing_field),
        ("M: a1b1 E: 0.5 B: a1b1 M: a1b1", FailureReason.repeated_field),
        ("E: 0.5 M: a1b1 B: a1b1", FailureReason.field_order),
        ("so M: a1b1 E: 0.5 B: a1b1", FailureReason.extra_text),
        ("M: a1b1 E: 0.5 B: a1b1 a1b1", FailureReason.extra_text),
        ("M: a1b1 E: 0.5 B: a1b1<|endoftext|>", FailureReason.bad_move),
        ("M: a1b1 E: 0.5 B: ", FailureReason.bad_move),
        ("M: E: B: a1b1", FailureReason.bad_move),
        ("M: 0000 E: 0.5 B: a1b1", FailureReason.bad_move),
        ("M: Kb1 E: 0.5 B: a1b1", FailureReason.bad_move),
        ("M: a1b1 E: 0.5 B: A1B1", FailureReason.bad_move),
        ("M: a1b1 a1b2 a1a2 b1a1 b1b2 b1c1 E: 1 1 1 1 1 1 B: a1b1", FailureReason.too_many_moves),
        ("M: a1b1 E: nan B: a1b1", FailureReason.bad_eval),
        ("M: a1b1 E: inf B: a1b1", FailureReason.bad_eval),
        ("M: a1b1 E: 1e3 B: a1b1", FailureReason.bad_eval),
        ("M: a1b1 E: 0,5 B: a1b1", FailureReason.bad_eval),
        ("M: a1b1 E: 0.5 0.5 B: a1b1", FailureReason.unaligned_evals),
        ("M: a1b1 E: B: a1b1", FailureReason.unaligned_evals),
    ],
)
def test_each_malformation_has_its_reason(completion: str, reason: FailureReason) -> None:
    parsed = parse_policy(completion)
    assert isinstance(parsed, ParseFailure)
    assert parsed.reason is reason


def test_well_formed_illegal_moves_parse_to_a_completion() -> None:
    assert parse_policy("M: a1h7 a1h7 E: 0.5 -0.5 B: h7a1") == PolicyCompletion(("a1h7", "a1h7"), (0.5, -0.5), "h7a1")


def test_first_of_repeated_fields_counts_and_missing_field_is_empty() -> None:
    fields = policy_fields("well M: a1b1 E: x M: a2a3")
    assert fields.before == "well"
    assert fields.markers == ("M", "E", "M")
    assert (fields.moves, fields.evals, fields.best) == (("a1b1",), ("x",), ())


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1e5", "1_0", "0x1", "", ".", "-", "9" * 400, "\u0661", " 1", "1\n"]
)
def test_text_that_is_not_a_plain_number_parses_to_none(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "prompt", ["", "P:", "P: ", f"P:{FEN}", f" P: {FEN}", f"P: {FEN} M: a1b1", FEN, "P: 8/8 w - - 0 1"]
)
def test_malformed_prompt_raises_prompt_error(prompt: str) -> None:
    with pytest.raises(PromptError, match="expected 'P: <FEN>'"):
        parse_policy_prompt(prompt)


def test_a_padded_prompt_is_read_without_its_padding() -> None:
    assert parse_policy_prompt(f"P: {FEN}      ").fen == FEN


def mutated(rng: random.Random, text: str) -> str:
    """Return the text after a few cuts, swaps and insertions, with text that a broken model might write."""
    for _ in range(rng.randint(1, 6)):
        start, end = sorted(rng.choices(range(len(text) + 1), k=2))
        piece = rng.choice(["", text[start:end] * 2, "M:", "E:", "B:", "+", "nan", "\x00", "\ud800", "½", "9" * 50])
        text = text[:start] + piece + text[end:]
    return text


def test_10_000_malformed_completions_raise_nothing() -> None:
    rng = random.Random(5)
    parsed = (parse_policy(mutated(rng, COMPLETION)) for _ in count())
    failures = list(islice((one for one in parsed if isinstance(one, ParseFailure)), 10_000))
    assert len({failure.reason for failure in failures}) >= 8


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_parses_to_completion_or_failure(text: str) -> None:
    assert isinstance(parse_policy(text), PolicyCompletion | ParseFailure)


@needs_shared_data
def test_published_policy_outputs_are_well_formed() -> None:
    lines = (SHARED_DATA / "published_model_outputs.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["task"] == "P"]
    parsed = [parse_policy(row["completion"]) for row in rows]
    assert [answer.best for answer in parsed if isinstance(answer, PolicyCompletion)] == ["c6d7", "e2f3", "e7e6"]
    assert [parse_policy_prompt(row["prompt"]).fen for row in rows] == [row["prompt"][3:] for row in rows]
