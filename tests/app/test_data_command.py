from pathlib import Path

import pytest

from rookworld_rlvr.app import data
from rookworld_rlvr.app.data import _check_copy, main
from rookworld_rlvr.tasks.audit import audit

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT.parent / "shared" / "data" / "rook_val_250.txt"
BLACK = "8/8/8/4k3/8/4P3/8/4K3 b - - 0"
INVERTED = [f"P: {BLACK} {n}   M: e5d5 e5e4 e5f5   E: 0.1 0.5 -0.3   B: e5f5" for n in range(60, 64)]


@pytest.fixture
def inverted(tmp_path: Path) -> Path:
    path = tmp_path / "inverted.txt"
    path.write_text("".join(f"{line}\n" for line in [*INVERTED, "no row at all"]))
    return path


def one_line_refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_audit_reports_inverted_labels_and_fixed_copy_is_clean(
    inverted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "fixed.txt"
    assert main(["audit", str(inverted), "--fix", str(copy)]) == 0
    out = capsys.readouterr().out
    assert "Black's B: is inverted: 4 of 4 Black rows have a B: below their best eval" in out
    assert "4 rows; dropped: bad_prompt 1" in out
    assert copy.read_text().splitlines()[0].endswith("B: e5e4")
    assert audit(copy).is_clean
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fixed.txt", "inverted.txt"]


@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"no published data at {PUBLISHED}")
def test_audit_finds_96_of_107_published_black_rows_inverted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "fixed.txt"
    assert main(["audit", str(PUBLISHED), "--fix", str(copy)]) == 0
    assert "inverted: 96 of 107 Black rows" in capsys.readouterr().out
    assert main(["audit", str(copy)]) == 0
    assert "No defect found" in capsys.readouterr().out


def test_only_an_interrupted_generation_is_said_to_resume(
    inverted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "audit", interrupted)
    monkeypatch.setattr(data, "generate", interrupted)
    assert main(["audit", str(inverted)]) == 130
    assert capsys.readouterr().err == "rookworld data: interrupted\n"
    assert main(["generate", "--rows", "1", "--out", str(tmp_path / "out")]) == 130
    assert "interrupted; the same command resumes" in capsys.readouterr().err


def test_audit_refuses_missing_file_and_file_without_valid_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("no row\n")
    assert "bad_prompt 1" in one_line_refusal(capsys, "audit", nothing)
    assert "absent.txt" in one_line_refusal(capsys, "audit", tmp_path / "absent.txt")


def test_fix_refuses_its_own_source_and_unwritable_destinations(
    inverted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = inverted.read_text()
    link = tmp_path / "link.txt"
    link.symlink_to(inverted)
    for out in (inverted, link, tmp_path, tmp_path / "absent" / "x.txt", tmp_path / "x.jsonl"):
        assert "--fix" in one_line_refusal(capsys, "audit", inverted, "--fix", out)
    assert inverted.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inverted.txt", "link.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("generate", "--rows", "5"),
        ("generate", "--rows", "0", "--out", "x"),
        ("generate", "--rows", "5", "--out", "x", "--exclude", "absent.txt"),
        ("generate", "--rows", "5", "--out", "/dev/null/x", "--task", "environment"),
        ("generate", "--rows", "5", "--out", "x", "--timeout", "99999999999999"),
    ],
)
def test_bad_data_arguments_are_refused_in_one_line(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    one_line_refusal(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_file_in_place_of_the_output_folder_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    refusal = one_line_refusal(capsys, "generate", "--task", "environment", "--rows", "5", "--out", str(taken))
    assert f"--out: expected a folder to write to, got {taken}" in refusal and taken.read_text() == "mine"


def test_corrected_copy_of_a_hub_data_set_may_exist(tmp_path: Path) -> None:
    copy = tmp_path / "fixed.jsonl"
    copy.write_text("")
    _check_copy("owner/name", copy)


def test_held_out_share_of_1_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = one_line_refusal(capsys, "generate", "--rows", 5, "--held-out", 1, "--out", tmp_path)
    assert "expected a number from 0 and below 1, got '1'" in error
