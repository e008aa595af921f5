"""The tables that commands print in the terminal."""

from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from rookworld_rlvr.app.tables import Member, comparison_table, evaluation_tables, sweep_table
from rookworld_rlvr.evaluation.match import elo_measures
from rookworld_rlvr.evaluation.paired import Comparison
from rookworld_rlvr.evaluation.table import Gain, Measure, Row, summarise, to_json


def printed(*tables: Table) -> list[list[str]]:
    """Return the cells of each line below the headings."""
    shown = StringIO()
    for table in tables:
        Console(width=300, file=shown).print(table)
    lines = [line for line in shown.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def scored(*scores: float) -> dict[str, Any]:
    rows = [Row(i, i, {"match/score": score}) for i, score in enumerate(scores)]
    return to_json(elo_measures(rows) | summarise(rows))


def test_elo_of_only_losses_or_only_wins_is_infinite() -> None:
    lost, won = scored(*[0.0] * 8), scored(*[1.0] * 8)
    [elo, score] = printed(*evaluation_tables(lost))
    # Wilson's interval for 0 of 8 ends at z²/(8 + z²) = 0.32441; in Elo: 400 lg(0.32441 / 0.67559) = -127.44.
    assert elo == ["match/elo", "-∞", "[-∞, -127.4375]", "8 ~"]
    assert score == ["match/score", "0.0000", "[0.0000, 0.3244]", "8 ~"]
    assert printed(*evaluation_tables(won))[0] == ["match/elo", "∞", "[127.4375, ∞]", "8 ~"]


def test_graded_keys_of_few_rows_are_marked_with_a_caption() -> None:
    graded, right = "policy/win_probability_loss", "policy/valid"
    measures = {graded: Measure(0.1, 0.05, 0.15, 100), right: Measure(0.5, 0.4, 0.6, 100)}
    [few] = evaluation_tables(to_json(measures))
    assert [row[3] for row in printed(few)] == ["100 ~", "100"] and "at most 100 rows" in str(few.caption)
    [many] = evaluation_tables(to_json({graded: Measure(0.1, 0.05, 0.15, 101)}))
    assert printed(many)[0][3] == "101" and many.caption is None


@pytest.mark.parametrize(("n", "marked"), [(100, "100 ~"), (101, "101")])
def test_a_comparison_of_few_rows_is_marked_too(n: int, marked: str) -> None:
    entry = Comparison(0.2, 0.1, Gain(-0.1, -0.2, 0.0), 1, 2, n, "Wilcoxon", 0.5, 0.5, 0.5)
    table = comparison_table({"policy/win_probability_loss": entry, "policy/valid": entry})
    assert [row[7] for row in printed(table)] == [marked, str(n)]
    assert bool(table.caption) == marked.endswith("~")


def test_sweep_table_shows_overrides_with_brackets() -> None:
    summary = {"gain": {}, "stopped": "finished"}
    lists = ("data.exclude=[]", "data.exclude=[/held.txt]")
    members = [Member([override, "steps=1"], summary, Path(f"outputs/[{i}]")) for i, override in enumerate(lists)]
    assert printed(sweep_table(members)) == [
        [override, "finished", f"outputs/[{i}]"] for i, override in enumerate(lists)
    ]


def test_sweep_table_has_the_deciding_keys_of_each_task() -> None:
    keys = ("chat/legal", "chat/win_probability_loss", "chat/valid", "policy/legal_best_move")
    gain = {key: {"value": 0.1, "low": 0.0, "high": 0.2} for key in keys}
    table = sweep_table([Member(["seed=0"], {"gain": gain, "stopped": "finished"}, Path("outputs"))])
    headers = [str(column.header) for column in table.columns]
    assert sorted(headers[2:-1]) == ["chat/legal", "chat/win_probability_loss", "policy/legal_best_move"]


def test_comparison_of_a_single_game_has_an_infinite_interval() -> None:
    entry = Comparison(3.0, 5.0, Gain(2.0, -inf, inf), 1, 0, 1, "Wilcoxon", 1.0, 0.5, 0.5)
    [line] = printed(comparison_table({"selfplay/legal_plies": entry}))
    assert line[:5] == ["selfplay/legal_plies", "3.0000", "5.0000", "+2.0000", "[-∞, ∞]"]


def test_measures_by_colour_are_shown_in_a_separate_table() -> None:
    measures = {
        "policy/valid": Measure(0.5, 0.25, 0.75, 8),
        "policy/valid/black": Measure(0.734, 0.704, 0.758, 5),
        "mate_in_one/accuracy": Measure(0.5, 0.25, 0.75, 8),
        "mate_in_one/accuracy/from_engine": Measure(0.5, 0.1, 0.9, 2),
        "label_loss/policy": Measure(2.0, 1.0, 3.0, 1),
        "label_loss/policy/white": Measure(1.5, 0.0, inf, 1),
    }
    assert printed(*evaluation_tables(to_json(measures))) == [
        ["policy/valid", "0.5000", "[0.2500, 0.7500]", "8"],
        ["mate_in_one/accuracy", "0.5000", "[0.2500, 0.7500]", "8"],
        ["mate_in_one/accuracy/from_engine", "0.5000", "[0.1000, 0.9000]", "2"],
        ["label_loss/policy", "2.0000", "[1.0000, 3.0000]", "1"],
        ["policy/valid", "", "0.734 ±0.027"],
        ["label_loss/policy", "1.500 ±∞", ""],
    ]
