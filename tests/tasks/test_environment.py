import json
import random
from itertools import count, islice
from pathlib import Path

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.transition import Transition, step
from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.environment.text import (
    environment_truth,
    parse_environment,
    parse_environment_prompt,
    render_environment,
    render_environment_prompt,
)
from rookworld_rlvr.tasks.types import EnvironmentPrompt, FailureReason, ParseFailure, PromptError

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no published data in {SHARED_DATA}")

FEN = "8/p2Q2N1/4p3/r1P1P3/3p4/6NP/r4PP1/3K3R b - - 3 44"
HISTORY = ("f7e8", "a6a5", "e8c6", "f3a3", "c6b7", "d5d4", "b7d7", "a3a2", "d2d1", "a5a4")
PROMPT = f"A: {FEN}+a5a4+f7e8 a6a5 e8c6 f3a3 c6b7 d5d4 b7d7 a3a2 d2d1 a5a4+"
NEXT_FEN = "8/p2Q2N1/4p3/2P1P3/r2p4/6NP/r4PP1/3K3R w - - 4 45"
COMPLETION = f"{NEXT_FEN}+0.001+0+0"
ANSWERS = st.builds(
    Transition,
    st.sampled_from([FEN, NEXT_FEN, chess.STARTING_FEN]),
    st.sampled_from([0.001, 1.0, 0.5, -1.0]),
    st.booleans(),
    st.booleans(),
)


def test_the_published_row_renders_and_parses_exactly() -> None:
    assert render_environment_prompt(FEN, "a5a4", HISTORY) == PROMPT
    prompt = parse_prompt(PROMPT)
    assert prompt == EnvironmentPrompt(FEN, "a5a4", HISTORY)
    truth = Transition(NEXT_FEN, 0.001, terminated=False, truncated=False)
    assert parse_environment(COMPLETION) == truth
    assert render_environment(truth) == COMPLETION
    assert isinstance(prompt, EnvironmentPrompt)
    assert environment_truth(prompt) == truth


@pytest.mark.parametrize(
    ("fen", "uci", "completion"),
    [
        (chess.STARTING_FEN, "e2e5", f"{chess.STARTING_FEN}+-1.0+0+1"),
        (chess.STARTING_FEN, "0000", f"{chess.STARTING_FEN}+-1.0+0+1"),
        ("7k/8/5KQ1/8/8/8/8/8 w - - 0 1", "g6g7", "7k/6Q1/5K2/8/8/8/8/8 b - - 1 1+1.0+1+0"),
        ("7k/8/5KQ1/8/8/8/8/8 w - - 0 1", "g6f7", "7k/5Q2/5K2/8/8/8/8/8 b - - 1 1+0.5+1+0"),
    ],
)
def test_rewards_and_flags_print_as_published(fen: str, uci: str, completion: str) -> None:
    assert render_environment(step(fen, uci)) == completion


@settings(derandomize=True, max_examples=100, deadline=None)
@given(ANSWERS)
def test_parsing_undoes_rendering(answer: Transition) -> None:
    assert parse_environment(render_environment(answer)) == answer
    spaced = render_environment(answer).replace("+", " + ")
    assert parse_environment(f" {spaced}\n") == answer


def test_environment_prompt_has_at_most_the_last_ten_moves() -> None:
    moves = [f"a{i}b{i}" for i in range(1, 9)] * 2
    prompt = render_environment_prompt(chess.STARTING_FEN, moves[-1], moves)
    assert parse_environment_prompt(prompt).history == tuple(moves[-10:])
    assert parse_environment_prompt(f"A: {FEN}+a5a4++").history == ()


def test_move_of_environment_prompt_is_not_normalised() -> None:
    assert parse_environment_prompt(f"A: {FEN}+a5a4 ++").uci == "a5a4 "
    assert environment_truth(parse_environment_prompt(f"A: {FEN}+A5A4++")).truncated


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "hello",
        f"A:{FEN}+a5a4++",
        f"A: {FEN}+a5a4+",
        f"A: {FEN}+a5a4+a5a4",
        f"A: {FEN}+a5a4+a5a4+{NEXT_FEN}",
        f"A: {FEN}+a5a4+a5a4++",
        "A: 8/8 b - - 3 44+a5a4+a5a4+",
        f"A: {FEN}+a5a4+a5a3+",
    ],
)
def test_malformed_prompt_raises_prompt_error(prompt: str) -> None:
    with pytest.raises(PromptError, match="expected"):
        parse_environment_prompt(prompt)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("", FailureReason.empty),
        ("   ", FailureReason.empty),
        (NEXT_FEN, FailureReason.missing_field),
        (f"{NEXT_FEN}+0.001+0", FailureReason.missing_field),
        (f"{COMPLETION}+", FailureReason.extra_text),
        (f"{COMPLETION}+{COMPLETION}", FailureReason.extra_text),
        ("+0.001+0+0", FailureReason.bad_fen),
        (f"so {COMPLETION}", FailureReason.bad_fen),
        ("8/8/8 w - - 4 45+0.001+0+0", FailureReason.bad_fen),
        (f"{NEXT_FEN}++0+0", FailureReason.bad_reward),
        (f"{NEXT_FEN}+nan+0+0", FailureReason.bad_reward),
        (f"{NEXT_FEN}+1e-3+0+0", FailureReason.bad_reward),
        (f"{NEXT_FEN}+0.001+False+0", FailureReason.bad_flag),
        (f"{NEXT_FEN}+0.001+0+2", FailureReason.bad_flag),
        (f"{NEXT_FEN}+0.001+0+", FailureReason.bad_flag),
        (f"{NEXT_FEN}+0.001+0+0<|endoftext|>", FailureReason.bad_flag),
    ],
)
def test_each_malformation_has_its_reason(completion: str, reason: FailureReason) -> None:
    parsed = parse_environment(completion)
    assert isinstance(parsed, ParseFailure)
    assert parsed.reason is reason


def mutated(rng: random.Random, text: str) -> str:
    """Return the text after a few cuts, swaps and insertions, with text that a broken model might write."""
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.choices(range(len(text) + 1), k=2))
        end = min(end, start + 8)
        piece = rng.choice(["", text[start:end] * 2, "+", "/", "8", " ", "nan", "\x00", "\ud800", "²", "9" * 5000])
        text = text[:start] + piece + text[end:]
    return text


def test_10_000_malformed_completions_raise_nothing() -> None:
    rng = random.Random(6)
    parsed = (parse_environment(mutated(rng, COMPLETION)) for _ in count())
    failures = list(islice((one for one in parsed if isinstance(one, ParseFailure)), 10_000))
    assert len({failure.reason for failure in failures}) >= 5


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=120), st.text("+/01 8wKk-", max_size=120)))
def test_any_text_parses_to_completion_or_failure(text: str) -> None:
    assert isinstance(parse_environment(text), Transition | ParseFailure)


@needs_shared_data
def test_14_of_21_published_outputs_are_exact_and_7_have_a_bad_fen() -> None:
    lines = (SHARED_DATA / "published_model_outputs.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["task"] == "A"]
    exact, unparsable = 0, 0
    for row in rows:
        parsed = parse_environment(row["completion"])
        exact += parsed == environment_truth(parse_environment_prompt(row["prompt"]))
        unparsable += isinstance(parsed, ParseFailure) and parsed.reason is FailureReason.bad_fen
    assert (len(rows), exact, unparsable) == (21, 14, 7)


@needs_shared_data
def test_the_step_reproduces_every_published_opening_transition() -> None:
    lines = (SHARED_DATA / "opening_environment.jsonl").read_text().splitlines()
    assert len(lines) == 698
    for row in map(json.loads, lines):
        prompt = parse_environment_prompt(row["prompt"])
        after = step(prompt.fen, prompt.uci)
        assert after.next_fen == row["next_fen"]
        assert render_environment_prompt(prompt.fen, prompt.uci, prompt.history) == row["prompt"]


@pytest.mark.parametrize("counters", ["999999 5", "0 999999"])
def test_prompt_whose_next_fen_could_not_be_written_is_refused(counters: str) -> None:
    bare = "4k3/8/8/8/8/8/4P3/4K3 b - - "
    with pytest.raises(PromptError, match="expected counters below 999999"):
        parse_environment_prompt(f"A: {bare}{counters}+e8e7+e8e7+")
    with pytest.raises(ValueError, match="expected counters below 999999"):
        render_environment_prompt(bare + counters, "e8e7", ["e8e7"])
    largest = counters.replace("999999", "999998")
    truth = environment_truth(parse_environment_prompt(f"A: {bare}{largest}+e8e7+e8e7+"))
    assert "999999" in truth.next_fen and parse_environment(render_environment(truth)) == truth
