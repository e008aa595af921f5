import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.tasks.corpus import parse_row, read_corpus, split_line
from rookworld_rlvr.tasks.types import Example, FailureReason, ParseFailure

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no published data in {SHARED_DATA}")

FEN = "8/8/8/4k3/8/8/4P3/4K3 w - - 3 60"
NEXT_FEN = "8/8/8/4k3/8/4P3/8/4K3 b - - 0 60"
P_PROMPT, P_COMPLETION = f"P: {FEN}", "      M: e2e3 e2e4      E: 0.5 -0.1     B: e2e3"
A_PROMPT, A_COMPLETION = f"A: {FEN}+e2e3+e5e6 e2e3+", f"{NEXT_FEN}+0.001+0+0"
P_EXAMPLE = Example("policy", P_PROMPT, P_COMPLETION)
A_EXAMPLE = Example("environment", A_PROMPT, A_COMPLETION)
P_LINE, A_LINE = P_PROMPT + P_COMPLETION, A_PROMPT + A_COMPLETION
Writer = Callable[..., Path]


def test_published_line_is_split_at_start_of_completion() -> None:
    assert split_line(P_LINE) == P_EXAMPLE
    assert split_line(A_LINE) == A_EXAMPLE


@pytest.mark.parametrize("around", ["{}", "<|endoftext|>{}", "  <|endoftext|> {} \r\n", "{}<|endoftext|>"])
def test_blanks_and_end_of_text_around_a_line_are_tolerated(around: str) -> None:
    assert split_line(around.format(P_LINE)) == P_EXAMPLE
    assert split_line(around.format(A_LINE)) == A_EXAMPLE


def test_line_without_padding_after_fen_is_split_at_marker() -> None:
    row = split_line(f"{P_PROMPT}M: e2e3 E: 0.5 B: e2e3")
    assert row == Example("policy", P_PROMPT, "M: e2e3 E: 0.5 B: e2e3")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("hello", FailureReason.bad_prompt),
        ("<|endoftext|>", FailureReason.bad_prompt),
        ("P: 8/8 w - - 0 1 M: e2e3 E: 0.5 B: e2e3", FailureReason.bad_prompt),
        # A missing king crashes an engine, so P: rows refuse it. python-chess, which judges A: rows, does not crash.
        ("P: 8/8/8/8/8/8/8/K7 w - - 0 1 M: a1b1 E: 0.5 B: a1b1", FailureReason.bad_prompt),
        (f"Q: {FEN} M: e2e3 E: 0.5 B: e2e3", FailureReason.bad_prompt),
        (f"A: {FEN}+e2e3", FailureReason.bad_prompt),
        (f"A: {FEN}+e2e3+e2e4+{A_COMPLETION}", FailureReason.bad_prompt),
        (P_PROMPT, FailureReason.empty),
        (A_PROMPT, FailureReason.empty),
        (f"{P_PROMPT} M: e2e3 E: 0.5", FailureReason.missing_field),
        (f"{P_PROMPT} M: e2e3 E: nan B: e2e3", FailureReason.bad_eval),
        (f"{A_PROMPT}8/8 b - - 0 60+0.001+0+0", FailureReason.bad_fen),
        (f"{A_LINE}+0", FailureReason.extra_text),
    ],
)
def test_malformed_line_returns_failure_with_its_reason(line: str, reason: FailureReason) -> None:
    row = split_line(line)
    assert isinstance(row, ParseFailure)
    assert row.reason is reason


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": P_PROMPT, "completion": P_COMPLETION, "task": "P"}, P_EXAMPLE),
        ({"prompt": f"{P_PROMPT}      ", "completion": P_COMPLETION.lstrip()}, P_EXAMPLE),
        ({"prompt": A_PROMPT, "completion": A_COMPLETION}, A_EXAMPLE),
        ({"text": P_LINE}, P_EXAMPLE),
        ({"text": A_LINE, "meta": 1}, A_EXAMPLE),
        ({"prompt": A_PROMPT, "next_fen": NEXT_FEN}, Example("environment", A_PROMPT, None)),
        ({"prompt": P_PROMPT, "completion": None}, Example("policy", P_PROMPT, None)),
        ({"fen": FEN, "best": "e2e3"}, Example("policy", P_PROMPT, None)),
        ({"fen": FEN, "source": "engine"}, Example("policy", P_PROMPT, None, "engine")),
        ({"fen": FEN, "source": "no/name"}, Example("policy", P_PROMPT, None)),
    ],
)
def test_objects_with_known_columns_are_parsed_to_examples(row: dict[str, object], expected: Example) -> None:
    assert parse_row(row) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, FailureReason.bad_row),
        ({"prompt": 3, "completion": "x"}, FailureReason.bad_row),
        ({"prompt": P_PROMPT, "completion": 3}, FailureReason.bad_row),
        ({"messages": []}, FailureReason.bad_row),
        ({"fen": "8/8 w - - 0 1"}, FailureReason.bad_prompt),
        ({"text": "hello"}, FailureReason.bad_prompt),
        ({"prompt": f"A: {FEN}+\ud800++"}, FailureReason.bad_prompt),
        ({"prompt": P_PROMPT, "completion": ""}, FailureReason.empty),
    ],
)
def test_invalid_objects_return_failure_with_their_reason(row: dict[str, object], reason: FailureReason) -> None:
    parsed = parse_row(row)
    assert isinstance(parsed, ParseFailure)
    assert parsed.reason is reason


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3))
COLUMNS = st.sampled_from(["prompt", "completion", "text", "fen", "other"])


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.dictionaries(COLUMNS, st.one_of(JSON, st.sampled_from([P_LINE, A_PROMPT])))))
def test_parsing_any_row_never_raises(row: str | dict[str, object]) -> None:
    assert isinstance(parse_row(row), Example | ParseFailure)


def test_a_text_file_is_read_row_by_row_and_its_rejects_are_counted(write: Writer) -> None:
    corpus = read_corpus(write("a.txt", P_LINE, "", "hello", A_LINE, "   ", f"{P_PROMPT} M: x E: 1 B: x", "P: "))
    assert corpus.examples == (P_EXAMPLE, A_EXAMPLE)
    assert corpus.rejects == {"bad_prompt": 2, "bad_move": 1}


def test_a_json_lines_file_is_read_row_by_row_and_its_rejects_are_counted(write: Writer) -> None:
    rows = [
        json.dumps({"text": A_LINE}),
        "{broken",
        "[1]",
        "",
        "[" * 100_000,
        json.dumps({"fen": FEN}),
        '"text"',
    ]
    corpus = read_corpus(write("a.jsonl", *rows))
    assert corpus.examples == (A_EXAMPLE, Example("policy", P_PROMPT, None))
    assert corpus.rejects == {"bad_row": 4}


def test_undecodable_bytes_reject_only_their_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + P_LINE.encode() + b"\n\xff\xfe\x00\n" + A_LINE.encode())
    corpus = read_corpus(tmp_path / "a.txt")
    assert corpus.examples == (P_EXAMPLE, A_EXAMPLE)
    assert corpus.rejects == {"bad_prompt": 1}


def test_a_limit_counts_the_rows_read(write: Writer) -> None:
    corpus = read_corpus(write("a.txt", "", "hello", P_LINE, A_LINE), limit=2)
    assert (corpus.examples, corpus.rejects) == ((P_EXAMPLE,), {"bad_prompt": 1})


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("a.txt", [], "no row at all"),
        ("a.txt", ["", "  "], "no row at all"),
        ("a.txt", ["hello", "P: ", P_PROMPT], "got bad_prompt 2, empty 1"),
        ("a.jsonl", ["{}"], "bad_row 1"),
        ("a.tsv", [P_LINE], "expected a .txt, .jsonl, .fen, .epd, .pgn or .csv file"),
        ("a.csv", [P_LINE], "expected a CSV file, not compressed, with the columns PuzzleId, FEN, Moves, Rating"),
    ],
)
def test_source_without_valid_rows_raises_one_line_error(
    write: Writer, name: str, lines: list[str], expected: str
) -> None:
    path = write(name, *lines)
    with pytest.raises(UserError) as caught:
        read_corpus(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["missing.txt", "missing.jsonl", "missing", "no/such/folder", "./missing", "here/gone"]
)
def test_a_missing_path_raises_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    source = str(tmp_path / name) if name == "missing" else name
    with pytest.raises(UserError, match=rf"^expected .*, got {source}: no file$"):
        read_corpus(source)


def test_reading_files_imports_no_torch_and_no_datasets() -> None:
    code = "import sys, rookworld_rlvr.tasks.audit, rookworld_rlvr.tasks.prompt_stream; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "datasets", "numpy"} & set(loaded)


@needs_shared_data
def test_published_files_have_known_counts_of_valid_rows() -> None:
    validation = read_corpus(SHARED_DATA / "rook_val_250.txt")
    assert (len(validation.examples), validation.rejects) == (241, {})
    outputs = read_corpus(SHARED_DATA / "published_model_outputs.jsonl")
    assert (len(outputs.examples), outputs.rejects) == (17, {"bad_fen": 7})
    openings = read_corpus(SHARED_DATA / "opening_environment.jsonl")
    assert {row.completion for row in openings.examples} == {None}
    assert (len(openings.examples), openings.rejects) == (698, {})
    assert len(read_corpus(SHARED_DATA / "mate_in_one.jsonl").examples) == 1765
