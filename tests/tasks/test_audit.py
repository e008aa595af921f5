import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.tasks.audit import AuditReport, audit, corrected_lines
from rookworld_rlvr.tasks.corpus import split_line
from rookworld_rlvr.tasks.environment.audit import EnvironmentAudit
from rookworld_rlvr.tasks.policy.audit import PolicyAudit, is_inverted
from rookworld_rlvr.tasks.policy.text import parse_policy
from rookworld_rlvr.tasks.types import ParseFailure, PolicyCompletion

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no published data in {SHARED_DATA}")

WHITE = "8/8/8/4k3/8/8/4P3/4K3 w - - 3 60"
BLACK = "8/8/8/4k3/8/4P3/8/4K3 b - - 0 60"
MATE_NEXT = "7k/8/5KQ1/8/8/8/8/8 w - - 0 1"
Writer = Callable[..., Path]


def found(report: AuditReport) -> PolicyAudit:
    """Return the findings in the rows of the policy task."""
    findings = report.tasks["policy"]
    assert isinstance(findings, PolicyAudit)
    return findings


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write(*lines: str, name: str = "rows.txt") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


def white(evals: str, best: str, moves: str = "e2e3 e2e4") -> str:
    return f"P: {WHITE}     M: {moves}     E: {evals}     B: {best}"


def black(evals: str, best: str, moves: str = "e5d5 e5e4 e5f5") -> str:
    return f"P: {BLACK}     M: {moves}     E: {evals}     B: {best}"


def fixed(path: Path) -> list[str]:
    return list(corrected_lines(path))


def assert_fixed_copy_is_clean(path: Path) -> None:
    copy = path.with_stem("fixed")
    copy.write_text("\n".join(corrected_lines(path)), encoding="utf-8")
    report = audit(copy)
    assert report.is_clean, list(report.lines())
    assert list(corrected_lines(copy)) == copy.read_text().splitlines()


def test_rows_malformations_and_duplicates_are_counted(write: Writer) -> None:
    good, again = white("0.5 -0.1", "e2e3"), white("0.1 0.2", "e2e4").replace(" 3 60", " 0 1")
    environment_row = f"A: {WHITE}+e2e3+e2e3+{BLACK}+0.001+0+0"
    report = audit(write(good, "", again, environment_row, "hello", white("0.5", "e2e3"), "P: "))
    assert (report.rows, report.valid, report.unlabelled) == (6, 3, 0)
    assert report.malformed == {"bad_prompt": 2, "unaligned_evals": 1}
    assert report.duplicate_positions == {"policy": 1, "environment": 0}
    assert not report.is_clean
    assert [line.split(": ")[:2] for line in report.malformed_rows] == [
        ["  row 4", "bad_prompt"], ["  row 5", "unaligned_evals"], ["  row 6", "bad_prompt"]
    ]  # fmt: skip
    assert "  row 4: bad_prompt: hello" in report.lines()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (white("0.5 -0.1", "-"), "bad_move: -"),
        (white("0.5 x", "e2e3"), "bad_eval: x"),
        (white("0.5 -0.1", "e2e3 e2e4"), "extra_text: e2e4"),
        (white("0.5", "e2e3"), "unaligned_evals: 2 moves, 1 evals"),
        (f"P: {WHITE}  M: e2e3 B: e2e3", "missing_field: E"),
        (f"A: {WHITE}+e2e3+e2e3+{BLACK}+0.001+0+2", "bad_flag: 2"),
        ("P: 8/8/8/4k3/8/8/4P3/4K3 w - -", "bad_prompt: expected a FEN of six fields with one blank between"),
        ("P: 8/8/8/8/8/8/8/8 w - - 0 1", "bad_prompt: impossible position: no white king"),
    ],
)
def test_malformed_row_is_shown_with_the_offending_word(row: str, told: str, write: Writer) -> None:
    report = audit(write(white("0.5 -0.1", "e2e3"), row))
    [line] = report.malformed_rows
    assert line.startswith(f"  row 2: {told}") and " ".join(row.split())[:60] in line


@pytest.mark.parametrize("line", ['{"prompt": "P: x", ', "[1, 2]", "chess"])
def test_line_that_is_no_json_object_is_shown_as_it_stands(line: str, write: Writer) -> None:
    report = audit(write(f'{{"fen": "{WHITE}"}}', line, name="rows.jsonl"))
    assert report.malformed_rows == [f"  row 2: bad_row: no JSON object: {line.strip()}"]


def test_at_most_three_malformed_rows_are_shown_per_reason(write: Writer) -> None:
    report = audit(write(white("0.5 -0.1", "e2e3"), *(f"hello {number} {'x' * 200}" for number in range(5))))
    assert report.malformed.total() == 5 and len(report.malformed_rows) == 3
    assert all(len(line) < 140 and line.endswith("…") for line in report.malformed_rows)


def test_a_best_move_below_the_best_eval_is_counted_by_colour(write: Writer) -> None:
    report = audit(
        write(
            white("0.5 -0.1", "e2e3"),
            white("0.5 -0.1", "e2e4"),
            black("-1.0 -2.0 -3.0", "e5d5"),
            black("-1.0 -2.0 -3.0", "e5e4"),
            black("-1.0 -2.0 -3.0", "e5f5"),
            black("-1.0 -1.0 -1.0", "e5f5"),
            black("-1.0 -1.0 -3.0", "e5e4"),
        )
    )
    assert (
        found(report).white["rows"],
        found(report).white["below_best"],
        found(report).white["lowest"],
        found(report).white["decided"],
    ) == (
        2,
        1,
        1,
        2,
    )
    assert (
        found(report).black["rows"],
        found(report).black["below_best"],
        found(report).black["lowest"],
        found(report).black["decided"],
    ) == (
        5,
        2,
        1,
        4,
    )
    assert not is_inverted(found(report).white)
    assert not is_inverted(found(report).black)


def test_inverted_labels_are_reported_by_colour(write: Writer) -> None:
    wrong = [black("-1.0 -2.0 -3.0", "e5f5").replace("0 60", f"0 {n}") for n in range(1, 5)]
    report = audit(write(*wrong, black("0.0 0.0 0.0", "e5f5"), white("0.5 -0.1", "e2e3")))
    assert is_inverted(found(report).black)
    assert not is_inverted(found(report).white)
    text = "\n".join(report.lines())
    assert "Black's B: is inverted: 4 of 5 Black rows have a B: below their best eval" in text
    assert "White's B: is inverted" not in text
    assert "0 of 1 White rows have a B: below their best eval" in text


@pytest.mark.parametrize(
    ("row", "finding"),
    [
        (white("0.5 -0.1", "e2e3", "e2e3 e2e5"), "illegal_candidate"),
        (white("0.5 -0.1", "e2e3", "e2e3 e2e3"), "repeated_candidate"),
        (white("0.5 -0.1", "e1f1"), "best_not_candidate"),
        (white("0.5 -0.1", "e2e4"), "below_best"),
    ],
)
def test_each_wrong_label_is_one_finding_and_is_fixed(write: Writer, row: str, finding: str) -> None:
    path = write(row)
    report = audit(path)
    assert found(report).white[finding] == found(report).defects == 1
    assert_fixed_copy_is_clean(path)


def test_illegal_best_move_also_counts_as_best_not_candidate(write: Writer) -> None:
    path = write(white("0.5 -0.1", "e2e5"))
    report = audit(path)
    assert (
        found(report).white["illegal_best"],
        found(report).white["best_not_candidate"],
        found(report).white["below_best"],
    ) == (1, 1, 0)
    assert_fixed_copy_is_clean(path)


@pytest.mark.parametrize(
    ("row", "moves", "evals", "best"),
    [
        # The best move has the highest eval of the side to move. The first of equal ones counts.
        (black("-3.0 -1.0 -1.0", "e5d5"), "e5d5 e5e4 e5f5", (-3.0, -1.0, -1.0), "e5e4"),
        # A mate against the side to move ranks lowest, a mate for it ranks highest.
        (black("-999.98 0.1 999.99", "e5d5"), "e5d5 e5e4 e5f5", (-999.98, 0.1, 999.99), "e5f5"),
        # Illegal and repeated candidates are removed with their evals. The first occurrence of a move stays.
        (black("9.0 1.0 2.0 3.0", "e5a1", "e5a1 e5d5 e5e4 e5d5"), "e5d5 e5e4", (1.0, 2.0), "e5e4"),
        # A best move of the label that shares the highest eval is right and stays.
        (black("-1.0 -1.0 -3.0", "e5e4"), "e5d5 e5e4 e5f5", (-1.0, -1.0, -3.0), "e5e4"),
    ],
)
def test_fixed_policy_row_has_best_legal_candidate_as_best_move(
    write: Writer, row: str, moves: str, evals: tuple[float, ...], best: str
) -> None:
    (line,) = fixed(write(row))
    example = split_line(line)
    assert not isinstance(example, ParseFailure)
    assert example.prompt == f"P: {BLACK}"
    assert parse_policy(example.completion or "") == PolicyCompletion(tuple(moves.split()), evals, best)


def environment(fen: str, uci: str, answer: str) -> str:
    return f"A: {fen}+{uci}+{uci}+{answer}"


START = chess.STARTING_FEN
MATED = "7k/6Q1/5K2/8/8/8/8/8 b - - 1 1"
E2E5 = "rnbqkbnr/pppppppp/8/4P3/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


@pytest.mark.parametrize(
    ("row", "findings", "right"),
    [
        (environment(MATE_NEXT, "g6g7", f"{MATED}+1.0+1+0"), [], f"{MATED}+1.0+1+0"),
        (environment(MATE_NEXT, "g6g7", f"{MATED}+0.5+1+0"), ["reward"], f"{MATED}+1.0+1+0"),
        (environment(MATE_NEXT, "g6g7", f"{MATED}+1.0+0+0"), ["terminated"], f"{MATED}+1.0+1+0"),
        (environment(MATE_NEXT, "g6g7", f"{MATED}+1.0+1+1"), ["truncated"], f"{MATED}+1.0+1+0"),
        (environment(MATE_NEXT, "g6g7", f"{MATE_NEXT}+1.0+1+0"), ["next_fen"], f"{MATED}+1.0+1+0"),
        # The published generator plays the illegal 1. e2e5 and records it as legal.
        (
            environment(START, "e2e5", f"{E2E5}+0.001+0+0"),
            ["next_fen", "reward", "truncated", "illegal_as_legal"],
            f"{START}+-1.0+0+1",
        ),
        (environment(START, "e2e5", f"{START}+-1.0+0+1"), [], f"{START}+-1.0+0+1"),
    ],
)
def test_environment_row_is_compared_with_python_chess_by_field(
    write: Writer, row: str, findings: list[str], right: str
) -> None:
    path = write(row)
    findings_of = audit(path).tasks["environment"]
    assert isinstance(findings_of, EnvironmentAudit)
    counts = findings_of.found
    names = ("next_fen", "reward", "terminated", "truncated", "illegal_as_legal")
    assert [name for name in names if counts[name]] == findings
    assert counts["differing"] == bool(findings)
    assert counts["rows"] == 1
    assert fixed(path) == [row[: row.index("+", row.index("+", row.index("+") + 1) + 1) + 1] + right]
    assert_fixed_copy_is_clean(path)


def test_environment_defects_are_reported_in_one_line(write: Writer) -> None:
    (line,) = [
        line for line in audit(write(environment(START, "e2e5", f"{E2E5}+0.001+0+0"))).lines() if "A: rows" in line
    ]
    assert line == (
        "1 A: rows; 1 differ from python-chess (next_fen 1, reward 1, terminated 0, truncated 1); "
        "1 record an illegal move as legal"
    )


def test_environment_row_of_impossible_position_is_counted_and_dropped(write: Writer) -> None:
    kingless = environment("8/8/8/8/8/8/8/K7 w - - 0 1", "a1a2", "8/8/8/8/8/8/K7/8 b - - 1 1+0.5+1+0")
    path = write(kingless, environment(START, "e2e5", f"{START}+-1.0+0+1"))
    report, dropped = audit(path), Counter[str]()
    assert "1 of 2 A: rows begin in an impossible position" in list(report.lines()) and not report.is_clean
    assert len(list(corrected_lines(path, dropped=dropped))) == 1 and dropped == {"bad_prompt": 1}


def test_fixed_copy_drops_and_counts_unfixable_rows_and_keeps_order(write: Writer) -> None:
    first, last = white("0.5 -0.1", "e2e3"), environment(START, "e2e5", f"{START}+-1.0+0+1")
    hopeless = white("0.5 -0.1", "e2e3", "e2e5 e1e8")
    path = write(first, "hello", black("-1.0 -2.0 -3.0", "e5f5"), hopeless, white("x 1", "e2e3"), last)
    dropped = Counter[str]()
    lines = list(corrected_lines(path, dropped=dropped))
    assert dropped == {"bad_prompt": 1, "bad_move": 1, "bad_eval": 1}
    assert lines[0] == first
    assert lines[1].endswith("B: e5d5")
    assert lines[2] == last
    assert len(lines) == 3
    assert_fixed_copy_is_clean(path)


def test_fixed_json_rows_keep_their_other_columns(write: Writer) -> None:
    wrong, right = black("-1.0 -2.0 -3.0", "e5f5"), "e5d5"
    unlabelled = {"prompt": f"A: {WHITE}+e2e3+e2e3+", "next_fen": BLACK}
    path = write(
        json.dumps({"text": wrong, "id": 7}),
        json.dumps({"prompt": f"P: {BLACK}", "completion": wrong[len(BLACK) + 3 :], "source": "x"}),
        json.dumps(unlabelled),
        name="rows.jsonl",
    )
    text, pair, bare = map(json.loads, fixed(path))
    assert text["id"] == 7
    assert text["text"].split()[-1] == right
    assert pair["source"] == "x"
    assert pair["prompt"] == f"P: {BLACK}"
    assert pair["completion"].split()[-1] == right
    assert bare == unlabelled
    assert audit(path).unlabelled == 1
    assert_fixed_copy_is_clean(path)


def test_row_with_unprintable_eval_or_counter_is_dropped(write: Writer) -> None:
    path = write(
        white("0.000001 0.5", "e2e3"),
        environment(BLACK.replace("0 60", "999999 999999"), "e5d5", f"{BLACK}+0.001+0+0"),
        white("0.5 0.1", "e2e3"),
    )
    dropped = Counter[str]()
    assert list(corrected_lines(path, dropped=dropped)) == [white("0.5 0.1", "e2e3")]
    assert dropped == {"bad_eval": 1, "bad_prompt": 1}
    assert audit(path).valid == 2


def test_clean_file_has_no_defect_and_stays_unchanged(write: Writer) -> None:
    rows = [white("0.5 -0.1", "e2e3"), environment(START, "e2e5", f"{START}+-1.0+0+1")]
    report = audit(write(*rows))
    assert report.is_clean
    assert list(report.lines())[-1] == "No defect found"
    assert fixed(write(*rows)) == rows


def test_missing_file_or_file_without_valid_rows_raises(write: Writer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        audit(tmp_path / "missing.txt")
    with pytest.raises(UserError, match="bad_prompt 1"):
        audit(write("hello"))
    with pytest.raises(UserError, match="no file"):
        fixed(tmp_path / "missing.txt")


@needs_shared_data
def test_audit_finds_published_validation_labels_inverted_for_black(tmp_path: Path) -> None:
    path = SHARED_DATA / "rook_val_250.txt"
    report = audit(path)
    assert (report.rows, report.valid, report.malformed) == (241, 241, {})
    assert (found(report).black["rows"], found(report).black["below_best"]) == (107, 96)
    assert (found(report).white["rows"], found(report).white["below_best"]) == (134, 1)
    wanted = "Black's B: is inverted: 96 of 107 Black rows have a B: below their best eval"
    assert any(line.startswith(wanted) for line in report.lines())

    copy = tmp_path / "fixed.txt"
    copy.write_text("\n".join(corrected_lines(path)), encoding="utf-8")
    after = audit(copy)
    assert after.is_clean
    assert (after.rows, found(after).black["rows"]) == (241, 107)
    assert (found(after).black["below_best"], found(after).white["below_best"]) == (0, 0)
    changed = [a != b for a, b in zip(path.read_text().splitlines(), copy.read_text().splitlines(), strict=True)]
    assert sum(changed) == 97


@needs_shared_data
def test_audit_of_published_outputs_finds_known_counts() -> None:
    report = audit(SHARED_DATA / "published_model_outputs.jsonl")
    assert (report.rows, report.malformed) == (24, {"bad_fen": 7})
    assert (report.tasks["environment"].found["rows"], report.tasks["environment"].found["differing"]) == (14, 0)
    assert found(report).white["rows"] + found(report).black["rows"] == 3


def test_row_that_misjudges_mate_in_one_is_reported_and_dropped(write: Writer) -> None:
    def row(evals: str, best: str) -> str:
        return f"P: {MATE_NEXT}     M: g6g7 g6f7     E: {evals}     B: {best}"

    # The mate's eval from White's view, from Black's view, and equal to that of another move.
    path = write(row("999.99 9.0", "g6g7"), row("-999.99 -9.0", "g6f7"), row("9.0 9.0", "g6g7"))
    report = audit(path)
    assert (
        found(report).white["mates"],
        found(report).white["mate_misjudged"],
        found(report).white["below_best"],
    ) == (3, 2, 0)
    assert not report.is_clean
    assert "2 of 3 White rows with a mate in one hold another candidate as good" in list(report.lines())
    dropped: Counter[str] = Counter()
    assert list(corrected_lines(path, dropped=dropped)) == [row("999.99 9.0", "g6g7")] and dropped == {"bad_eval": 2}


CUT_PGN = '[Event "a"]\n\n1. e4 e5 1-0\n\n[Event "b"]\n\n1. e4 e5 2. Nf3 Nc6 3. Bc'
CUT_IN_TAGS = '[Event "a"]\n\n1. e4 1-0\n\n[Event "b"]\n[Site "'


@pytest.mark.parametrize("text", [CUT_PGN, CUT_IN_TAGS, "1. e4 1-0\n\n1. d4 { good"])
def test_audit_counts_games_and_reports_the_truncated_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "cut.pgn").write_text(text)
    report = audit(tmp_path / "cut.pgn")
    lines = "\n".join(report.lines())
    assert not report.is_clean and "Games: 2;" in lines and "No defect found" not in lines
    assert f"Game 2 has no result: it stops at line {text.count(chr(10)) + 1}" in lines


def test_game_in_progress_is_not_reported_as_truncated(tmp_path: Path) -> None:
    (tmp_path / "whole.pgn").write_text('[Event "a"]\n\n1. e4 e5 *\n')
    report = audit(tmp_path / "whole.pgn")
    assert report.is_clean and report.games is not None and report.games.games == 1


def test_fens_in_text_file_are_refused_with_hint_of_fen_suffix(tmp_path: Path) -> None:
    (tmp_path / "fens.txt").write_text("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1\n")
    with pytest.raises(UserError, match=r"row 1: the line is a FEN alone: name a file of FENs \.fen"):
        audit(tmp_path / "fens.txt")
