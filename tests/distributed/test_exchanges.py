"""Ranks that disagree on purpose: every rank gets the same error, in words that name the rank, and none waits for long.

Three ranks in one start make all exchanges that leave them in step. After them the ranks exchange results again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXCHANGES = Path(__file__).with_name("exchanges.py")
Start = Callable[..., list[Any]]
ON_RANK_1, ON_RANK_2 = "raised on rank 1", "raised on rank 2"
# What every rank gets: a result, or an error with its note.
RESULTS = {
    "in order": [0, 10, 20, 30, 40, 50, 60],
    "rank 0 only": 5,
    "a flag": [True, False],
    "gradients": [[6.0, 6.0], [5.0, 7.0], None],
}
ERRORS = {
    "fewer results": ("RankError: expected a share of 5 results at groups, got 1 from rank 1", ""),
    "an error": ("ValueError: broken on 1", ON_RANK_1),
    "several errors": ("ValueError: broken on 1", ON_RANK_1),
    "memory": ("OutOfMemoryError: none left", ON_RANK_2),
    "left early": ("ValueError: broken on 1", ON_RANK_1),
    "inside": ("PickledError: broken inside", ON_RANK_1),
    "elsewhere": ("RankError: expected all ranks at scores, rank 1 is at the clock", ""),
}
PROMPT_S = 20


@pytest.fixture
def exchanged(start: Start, tmp_path: Path) -> Start:
    """Return a function that runs cases of `exchanges.py` on three ranks."""

    def run(*cases: str, **spec: Any) -> list[Any]:
        return start(EXCHANGES, 3, {"cases": cases, "out": str(tmp_path / "exchanges")} | spec)

    return run


def test_all_ranks_get_the_same_results_and_the_same_errors(exchanged: Start) -> None:
    ended = exchanged(*RESULTS, *ERRORS, "not picklable", "in order")
    assert [one.code for one in ended] == [0, 0, 0], "\n".join(one.text for one in ended)
    for rank, one in enumerate(ended):
        by_case = dict(zip([*RESULTS, *ERRORS, "not picklable"], one.reports, strict=False))
        assert {name: by_case[name]["result"] for name in RESULTS} == RESULTS
        errors = {name: (by_case[name]["error"], by_case[name]["notes"]) for name in ERRORS}
        # The rank that is elsewhere names the first one that is not where it is.
        elsewhere = "RankError: expected all ranks at the clock, rank 0 is at scores"
        assert errors == ERRORS | ({"elsewhere": (elsewhere, "")} if rank == 1 else {})
        own = "OwnError: at 3" if rank == 1 else "RankError: rank 1 ended by OwnError: at 3"
        assert (by_case["not picklable"]["error"], by_case["not picklable"]["notes"]) == (own, ON_RANK_1)
        assert one.reports[-1]["result"] == RESULTS["in order"]


@pytest.mark.slow
def test_rank_0_names_a_rank_that_is_late(exchanged: Start) -> None:
    first, second, third = exchanged("late", timeout_s=15)
    report, there = first.reports[0], "RankError: expected all 3 ranks at scores; one has ended, or did not arrive"
    assert report["error"].startswith(
        "RankError: expected all 3 ranks at scores; one has ended, or did not arrive within"
    )
    assert "Ranks 2 failed" in report["error"] and 14 < report["seconds"] < 15 + PROMPT_S
    for other in (second, third):
        assert other.reports[0]["error"].startswith(there)


def test_rank_0_names_a_rank_that_has_ended_without_waiting(exchanged: Start) -> None:
    first, second, third = exchanged("ended")
    assert second.code == 7
    assert "Ranks 1 failed" in first.reports[0]["error"]
    assert third.reports[0]["error"].startswith("RankError: expected all 3 ranks at scores")
    assert max(one.reports[0]["seconds"] for one in (first, third)) < PROMPT_S
