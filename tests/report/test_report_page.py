"""The report in a browser: phone and desktop widths, light and dark schemes, charts and filters."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rookworld_rlvr.report.page import render
from rookworld_rlvr.report.run_record import RunRecord


@pytest.fixture
def opened(browser: Any, record: Callable[..., RunRecord], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that opens the page of runs and records its console messages."""

    def open_page(width: int = 1440, scheme: str = "light", runs: int = 1) -> Any:
        file = tmp_path / "report.html"
        file.write_text(render([record(f"day/run{number}", seed=number) for number in range(runs)]), encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        # A busy machine may take longer than the 30 s that are the default.
        page.set_default_timeout(120_000)
        page.console = []
        page.on("console", lambda message: page.console.append(message.text))
        page.on("pageerror", lambda error: page.console.append(str(error)))
        page.goto(file.as_uri())
        return page

    return open_page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("runs", [1, 3])
def test_report_page_opens_without_error_and_fits_the_screen(
    opened: Callable[..., Any], width: int, scheme: str, runs: int
) -> None:
    page = opened(width, scheme, runs)
    assert page.console == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expected = {"light": "rgb(247, 246, 243)", "dark": "rgb(22, 24, 27)"}[scheme]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == expected
    drawn = page.evaluate("[...document.querySelectorAll('.chart canvas')].map(c => c.width * c.height > 0)")
    assert len(drawn) >= 3 and all(drawn)
    page.close()


def test_transcripts_are_filtered_by_task_step_reward_and_failure(opened: Callable[..., Any]) -> None:
    page = opened()

    def count() -> int:
        visible: int = page.locator(".said:visible").count()
        return visible

    assert count() == 15
    page.select_option("[data-filter=task]", "environment")
    assert count() == 6
    page.select_option("[data-filter=step]", "10")
    assert count() == 2
    page.select_option("[data-filter=problem]", "bad_fen")
    assert count() == 1
    for choice in ("task", "step", "problem"):
        page.select_option(f"[data-filter={choice}]", "")
    page.fill("#lowest", "0.3")
    page.fill("#highest", "0.5")
    assert count() == 3 and page.inner_text("#count") == "3 of 3 shown"
    assert page.console == []
    page.close()


def test_smoothing_draws_running_means_and_boards_have_pieces(opened: Callable[..., Any]) -> None:
    page = opened()
    charts = page.locator(".chart").count()
    drawn = "plots[data.charts.findIndex(chart => chart.title === 'Reward by task')].data[1]"
    page.select_option("#smooth", "1")
    values = page.evaluate(drawn)
    page.select_option("#smooth", "20")
    assert page.evaluate(drawn) == pytest.approx([fmean(values[max(0, at - 19) : at + 1]) for at in range(60)])
    assert page.locator(".chart").count() == charts and page.console == []
    boxes = page.evaluate(
        "[...document.querySelectorAll('.said:not([hidden]) figure svg use')].slice(0, 30)"
        ".map(use => use.getBoundingClientRect().width)"
    )
    assert len(boxes) == 30 and min(boxes) > 5
    page.close()
