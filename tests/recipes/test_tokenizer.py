"""The recipe's tokenizer restores its text, and no token spans prompt and completion."""

import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rookworld_rlvr.model.loading import tiny_model_folder
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import default_file
from tiny_model.tokenizer import build_tokenizer

TOKENIZER: Any = build_tokenizer()
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR"
LARGEST_BYTES = 8 * 10**6


def ids(text: str, tokenizer: Any = TOKENIZER) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def text_of(tokens: list[int]) -> str:
    return str(TOKENIZER.decode(tokens, skip_special_tokens=True))


@pytest.fixture(scope="module")
def examples(
    make_lines: Callable[[int, int], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Example, ...]:
    file = tmp_path_factory.mktemp("tokenizer") / "rows.txt"
    file.write_text("".join(f"{line}\n" for line in make_lines(5, 100)))
    rows = read_corpus(file).examples
    assert len(rows) == 200
    return rows


def test_generated_rows_round_trip_without_unknown_tokens(
    examples: tuple[Example, ...],
) -> None:
    for example in examples:
        line = example.prompt + str(example.completion)
        assert text_of(ids(line)) == line
        assert TOKENIZER.unk_token_id not in ids(line)


def test_separate_and_joint_tokenisation_are_equal(examples: tuple[Example, ...]) -> None:
    for example in examples:
        apart = ids(example.prompt) + ids(str(example.completion))
        assert apart == ids(example.prompt + str(example.completion))


def test_shipped_rows_round_trip_without_unknown_tokens() -> None:
    rows = read_corpus(default_file("held_out.jsonl")).examples
    for example in random.Random(0).sample(rows, 100):
        tokens = ids(example.prompt + str(example.completion))
        assert TOKENIZER.unk_token_id not in tokens
        assert text_of(tokens) == example.prompt + str(example.completion)


@pytest.mark.parametrize(("placement", "pieces"), [(START, 32), ("8/8/8/3k4/8/8/8/6K1", 3), ("8/8/8/8/8/8/8/8", 1)])
def test_board_has_one_token_per_piece_and_one_for_an_empty_a8(placement: str, pieces: int) -> None:
    for prompt in ("A: ", ""):
        text = f"{prompt}{placement} w KQkq - 0 1"
        tokens = ids(text)
        board = tokens[len(ids(prompt)) : -len(ids(" w KQkq - 0 1"))]
        assert len(board) == len(set(board)) == pieces and text_of(tokens) == text


@pytest.mark.parametrize(("side", "repeated"), [("w", "nkpqRPPBK"), ("b", "RPPBKnkpq")])
def test_a_policy_prompt_repeats_opponents_then_own_pieces(side: str, repeated: str) -> None:
    text = f"P: R2n3k/4p2P/8/8/8/8/8/P5qB {side} - - 0 1".replace("P5qB", "PB4qK")
    tokens = ids(text)
    names = TOKENIZER.convert_ids_to_tokens(tokens)
    assert "".join(name[0] for name in names[1:9]) == "RnkpPPBq" and names[9][0] == "K"
    assert "".join(name[0] for name in names[10:19]) == repeated
    assert names[19] == f" {side}" and text_of(tokens) == text
    assert not set(names[10:]) & set(names[:10])


def test_move_changes_only_the_token_of_the_moved_piece() -> None:
    moved = START.replace("8/PPPPPPPP", "4P3/PPPP1PPP")
    before, after = (ids(f"{placement} b - - 0 1") for placement in (START, moved))
    assert len(set(before) ^ set(after)) == 2


def test_prompt_board_tokens_encode_the_side_to_move() -> None:
    white, black = (set(ids(f"P: {START} {side} - - 0 1")[1:33]) for side in "wb")
    assert not white & black
    assert set(ids(f"A: {START} w - - 0 1")[1:33]) == white
    assert not set(ids(f"{START} w - - 0 1")[:32]) & (white | black)


def test_repeated_or_misordered_squares_do_not_decode_to_the_board() -> None:
    tokens = ids(f"{START} w KQkq - 0 1")
    for wrong in ([*tokens[:5], tokens[4], *tokens[5:]], [*tokens[:3], tokens[7], *tokens[4:]], tokens[1:]):
        assert text_of(wrong).split(" ")[0] != START


def test_a_move_shares_no_token_with_its_neighbours() -> None:
    assert [text_of([token]) for token in ids(" e2e4 e7e8q")] == [" e2", "e4", " e7", "e8", "q"]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(alphabet=string.printable, max_size=60))
def test_printable_ascii_round_trips(text: str) -> None:
    # Decoding leaves out the end token, and adds up adjacent counts of empty squares: "11/" becomes "2/".
    assume(TOKENIZER.eos_token not in text and not re.search("[1-8]{2}", text))
    assert text_of(ids(text)) == text


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(alphabet="12345678/ wbKQkqpPnN-", max_size=40))
def test_near_board_text_without_adjacent_digits_round_trips(text: str) -> None:
    assume(not re.search("[0-9]{2}", text))
    assert text_of(ids(text)) == text


def test_adjacent_digits_of_a_rank_are_summed() -> None:
    assert text_of(ids("11/")) == "2/"


def test_special_tokens_differ_and_padding_is_on_the_left() -> None:
    special = {TOKENIZER.eos_token_id, TOKENIZER.pad_token_id, TOKENIZER.unk_token_id}
    assert len(special) == 3
    padded = TOKENIZER(["P: ", "P: 8"], padding=True).input_ids
    assert padded[0][0] == TOKENIZER.pad_token_id


def test_saved_tokenizer_loads_with_autotokenizer(examples: tuple[Example, ...], tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert_alike(loaded, examples)


def test_shipped_tokenizer_equals_the_built_one(examples: tuple[Example, ...]) -> None:
    assert_alike(AutoTokenizer.from_pretrained(tiny_model_folder()), examples)


def test_the_shipped_folder_has_at_most_8_megabytes_and_no_code() -> None:
    files = [file for file in tiny_model_folder().iterdir() if file.is_file()]
    assert 10**6 < sum(file.stat().st_size for file in files) <= LARGEST_BYTES
    assert not [file for file in files if file.suffix == ".py"]


def assert_alike(other: Any, examples: tuple[Example, ...]) -> None:
    assert other.get_vocab() == TOKENIZER.get_vocab()
    assert other.eos_token_id == TOKENIZER.eos_token_id and other.pad_token_id == TOKENIZER.pad_token_id
    for example in examples[:50]:
        line = example.prompt + str(example.completion)
        assert ids(line, other) == ids(line)
        assert other.decode(ids(line), skip_special_tokens=True) == line
