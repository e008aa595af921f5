"""Tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

GAIN_KEYS = ("policy/legal_best_move", "policy/valid", "environment/next_state_accuracy", "environment/valid")


def evaluation_table(measures: Mapping[str, Mapping[str, float]]) -> Table:
    """One evaluation: a key a line."""
    table = Table("key", "value", "95 % interval", "rows")
    for key, measure in measures.items():
        table.add_row(key, f"{measure['value']:.4f}", _interval(measure), str(measure["n"]))
    return table


def gain_table(summary: Mapping[str, Any]) -> Table:
    """Before, after and the paired difference: a key a line."""
    table = Table("key", "before", "after", "gain", "95 % interval")
    for key, gain in summary["gain"].items():
        before, after = summary["before"][key]["value"], summary["after"][key]["value"]
        table.add_row(key, f"{before:.4f}", f"{after:.4f}", f"{gain['value']:+.4f}", _interval(gain))
    return table


def sweep_table(members: list[tuple[list[str], Mapping[str, Any]]]) -> Table:
    """A sweep: a member a line, with the gains that matter most."""
    table = Table("overrides", "stopped", *GAIN_KEYS)
    for overrides, summary in members:
        gains = (summary["gain"].get(key) for key in GAIN_KEYS)
        table.add_row(" ".join(overrides), summary["stopped"], *(_gain(gain) for gain in gains))
    return table


def _gain(gain: Mapping[str, float] | None) -> str:
    return f"{gain['value']:+.4f} {_interval(gain)}" if gain else "not evaluated"


def _interval(measure: Mapping[str, float]) -> str:
    return f"[{measure['low']:.4f}, {measure['high']:.4f}]".replace("[", "\\[")
