"""`rookworld rollouts`: transcripts of runs and evaluations, printed as boards."""

import json
import re
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.board.drawing import Arrow, Board, Kind
from rookworld_rlvr.report.terminal import board_view
from rookworld_rlvr.report.transcripts import read_transcripts

POLICY = "P: r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5Q2/PPPP1PPP/RNB1K1NR w KQkq - 4 4"
ENVIRONMENT = "A: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1+e2e4+e2e4+"
RIGHT = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Return a folder with six transcripts: in each of two steps one is right, one wrong or illegal, one malformed."""
    rows = [
        (1, "policy", POLICY, "M: f3f7 E: 9.9 B: f3f7", 0.9, None),
        (1, "policy", POLICY, "M: f3f8 E: 9.9 B: f3f8", 0.1, None),
        (1, "policy", POLICY, "nothing", -0.3, "missing_field: M E B"),
        (2, "environment", ENVIRONMENT, RIGHT, 1.0, None),
        (2, "environment", ENVIRONMENT, RIGHT.replace("4P3", "3P4"), 0.4, None),
        (2, "environment", ENVIRONMENT, "no+board", None, "missing_field: 2 fields"),
    ]
    names = ("step", "task", "prompt", "completion", "reward", "failure")
    more = {"expected": None, "components": {"structure/fields": 1.0}, "finished": True}
    lines = [json.dumps(dict(zip(names, row, strict=True)) | more) for row in rows]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def heads(text: str) -> list[str]:
    return re.findall(r"^(step \d .*)$", text, re.MULTILINE)


@pytest.mark.parametrize(("given", "expected"), [
    ([], 6), (["--failed"], 4), (["--task", "environment"], 3), (["--step", "1"], 3), (["--most", "2"], 2),
    # A transcript without a finite reward passes every --reward filter.
    (["--reward", "0.3", "1.0"], 4), (["--failed", "--task", "policy", "--reward", "0", "1"], 1),
])  # fmt: skip
def test_rollouts_prints_all_selected_transcripts_without_a_terminal(
    given: list[str], expected: int, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollouts", str(run_folder), *given]) == 0
    said = capsys.readouterr().out
    assert len(heads(said)) == expected and "\x1b" not in said
    assert re.search(rf"^{expected} of \d; choose by --step 2, 1; --failed", said, re.MULTILINE)


def test_failed_filter_without_failures_says_so_in_one_line(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / "rollouts.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    assert main(["rollouts", str(run_folder), "--failed"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no completion failed, of 1 of this choice; choose by ") and said.count("\n") == 1


def test_control_characters_of_a_wrong_field_are_escaped(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.loads((run_folder / "rollouts.jsonl").read_text().splitlines()[4])
    row["completion"] = RIGHT.replace(" b ", " \x1b]52;c;cHduZWQ=\x07 ")
    (run_folder / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["rollouts", str(run_folder)]) == 0
    said = capsys.readouterr().out
    [wrong] = [line for line in said.splitlines() if line.startswith("wrong ")]
    assert "\\x1b]52" in wrong and "\x1b" not in said and "\x07" not in said


def test_by_reward_lists_lowest_reward_first_with_its_failure(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollouts", str(run_folder), "--by-reward", "--failed"]) == 0
    assert heads(capsys.readouterr().out) == [
        "step 1 · policy · reward -0.300 · missing_field: M E B",
        "step 2 · environment · missing_field: 2 fields",
        "step 1 · policy · reward +0.100 · illegal best move",
        "step 2 · environment · reward +0.400 · wrong prediction",
    ]


def test_board_faces_the_side_to_move_and_colours_its_arrows() -> None:
    lines = board_view(Board("t", chess.Board(), chess.BLACK)).plain.splitlines()
    assert lines[1].startswith("1 ♖ ♘ ♗ ♔") and lines[-1].strip() == "h g f e d c b a"
    marked = board_view(Board("t", chess.Board(), chess.WHITE, [Arrow(chess.E2, chess.E4, Kind.illegal)], [chess.A1]))
    assert sum("#d0453a" in str(span.style) for span in marked.spans) == 3


def test_rollouts_shows_prompts_and_answers_of_an_evaluation(
    small_overrides: list[str], corpus: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mates = tmp_path / "mates.jsonl"
    mates.write_text('{"fen": "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "best": "f7g7"}\n')
    puzzles = tmp_path / "puzzles.csv"
    puzzles.write_text("PuzzleId,FEN,Moves,Rating\none,7k/p4Q2/6K1/8/8/8/8/8 b - - 0 1,a7a6 f7g7,600\n")
    taken = ("model.path=", "data.held_out=", "device=", "threads=")
    own = [text for text in small_overrides if text.startswith(taken)]
    output = tmp_path / "table.json"
    suites = "suites=[policy,environment,mate_in_one,puzzles]"
    given = [suites, "evaluation.rows=3", f"evaluation.mates={mates}", f"evaluation.puzzles={puzzles}"]
    given += [f"output={output}"]
    assert main(["evaluate", *own, *given]) == 0
    lines = [json.loads(line) for line in (tmp_path / "table.json.rows.jsonl").read_text().splitlines()[1:]]
    assert all({"prompt", "expected", "completion"} <= line.keys() for line in lines)
    assert {line["suite"] for line in lines if line["completion"] == line["expected"]} <= {"environment"}
    transcripts = read_transcripts(output)
    assert len(transcripts) == len(lines) and transcripts == read_transcripts(tmp_path / "table.json.rows.jsonl")
    assert [one.task for one in transcripts[:6]] == ["policy"] * 3 + ["environment"] * 3
    for transcript, line, key in zip(
        transcripts[-2:], lines[-2:], ("mate_in_one/accuracy", "puzzles/solved"), strict=True
    ):
        assert transcript.expected == "f7g7" and transcript.completion.startswith("B: ")
        assert (transcript.failure is None) == (line["values"][key] == 1)
    capsys.readouterr()
    assert main(["rollouts", str(output), "--most", "99"]) == 0
    assert capsys.readouterr().out.count("\nprompt ") == len(lines)


@pytest.mark.parametrize(("given", "message"), [
    (["{here}/none"], "expected a run's folder, or a file that evaluate output= wrote, got {here}/none: no none.rows"),
    (["{here}/folder"], "got {here}/folder: no rollouts.jsonl"),
    (["{here}", "--task", "chess"], "rollouts: argument --task"),
    (["{here}", "--step", "9"], "rollouts: expected transcripts of this choice, got none among 6"),
    (["{here}/empty.jsonl"], "expected transcripts in"),
    (["{here}/broken.jsonl"], "expected a run's transcripts or an evaluation's rows in"),
])  # fmt: skip
def test_invalid_rollouts_arguments_are_refused_in_one_line(
    given: list[str], message: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "empty.jsonl").write_text("")
    (run_folder / "broken.jsonl").write_text('{"prompt": 1}\n')
    (run_folder / "folder").mkdir()
    assert main(["rollouts", *(text.format(here=run_folder) for text in given)]) == 2
    said = capsys.readouterr().err
    assert message.format(here=run_folder) in said and said.count("\n") == 1
