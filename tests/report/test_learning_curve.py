"""The learning curve as a picture: its lines, its band, and the command that writes it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.report.learning_curve import RULE, learning_curve_svg
from rookworld_rlvr.report.page import render
from rookworld_rlvr.report.run_record import RunRecord

from .conftest import write_run

KEY, LEGAL = "validation/policy/win_probability_loss", "validation/policy/legal_best_move"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def curves(record: Callable[..., RunRecord]) -> Callable[..., list[RunRecord]]:
    """Return a function that makes runs whose loss falls from 0.2 to the given values in 60 steps."""

    def make(*ends: float) -> list[RunRecord]:
        runs = []
        for number, end in enumerate(ends):
            run = record(f"day/run{number}", seed=number)
            start = {"step": 0, KEY: 0.2, LEGAL: 0.9, f"{RULE}random": 0.15, f"{RULE}exchange": 0.05}
            steps = [
                step | ({KEY: 0.2 + (end - 0.2) * step["step"] / 60, LEGAL: 0.95} if step["step"] % 20 == 0 else {})
                for step in run.metrics
            ]
            runs.append(replace(run, metrics=[start, *steps]))
        return runs

    return make


def heights(element: ElementTree.Element) -> list[float]:
    return [float(point.split(",")[1]) for point in element.attrib["points"].split()]


def test_the_band_is_the_range_over_runs_about_their_mean(curves: Callable[..., list[RunRecord]]) -> None:
    picture = ElementTree.fromstring(learning_curve_svg(curves(0.1, 0.16)))
    mean, band = picture.findall(f".//{SVG}polyline")[0], picture.findall(f".//{SVG}polygon")[0]
    assert len(heights(mean)) == 4, "steps 0, 20, 40 and 60"
    upper, lower = heights(band)[:4], heights(band)[:3:-1]
    assert upper[0] == lower[0] == heights(mean)[0]
    assert upper[-1] < heights(mean)[-1] < lower[-1], "a picture's heights go down"
    assert heights(mean)[-1] == pytest.approx((upper[-1] + lower[-1]) / 2, abs=0.1)
    assert heights(mean)[-1] > heights(mean)[0], "the loss falls"


def test_start_and_simple_rules_are_labelled_lines(curves: Callable[..., list[RunRecord]]) -> None:
    picture = ElementTree.fromstring(learning_curve_svg(curves(0.1)))
    names = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"start", "random move", "exchange rule", "trained", "start: best move is legal"} <= names
    assert "most valuable capture" not in names
    levels = [line for line in picture.iter(f"{SVG}line") if line.attrib["class"] == "level"]
    assert len(levels) == 4


def test_curve_of_another_task_is_drawn_from_its_own_keys(record: Callable[..., RunRecord]) -> None:
    values = [(0.5, 0.1, 0.0), (0.2, 0.9, 0.8)]
    keys = ("validation/chat/win_probability_loss", "validation/chat/legal", "validation/chat/valid")
    metrics = [{"step": step, **dict(zip(keys, row, strict=True))} for step, row in enumerate(values)]
    picture = ElementTree.fromstring(learning_curve_svg([replace(record(), metrics=metrics)]))
    names = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"trained", "start", "answer is a legal move", "start: answer is in form and ends"} <= names
    assert len(picture.findall(f".//{SVG}polyline")) == 3


def test_curve_picture_is_written_from_run_folders(
    curves: Callable[..., list[RunRecord]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = curves(0.1, 0.12, 0.14)
    folders = [tmp_path / "day" / f"run{number}" for number in range(3)]
    for folder, run in zip(folders, runs, strict=True):
        write_run(folder, run)
    assert main(["report", *map(str, folders), "--output", str(tmp_path / "curve.svg")]) == 0
    text = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "mean and range over 3 runs" in text and text == learning_curve_svg(runs)
    assert text.strip() in render(runs)


def test_a_picture_of_runs_without_a_curve_is_refused(
    record: Callable[..., RunRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", record())
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "curve.svg")]) == 2
    assert "expected runs with a learning curve" in capsys.readouterr().err
    assert not (tmp_path / "curve.svg").exists() and learning_curve_svg([record()]) == ""
