"""Tables that the commands print on the console."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..evaluation.headline import MATCH_ELO, RowGains, headline_gains, headline_keys
from ..evaluation.keys import FEW_ROWS, SLICES, has_few_rows
from ..evaluation.paired import Comparison
from ..tasks import all_tasks


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a sweep."""

    overrides: list[str]
    summary: Mapping[str, Any]
    folder: Path


LOSS = "win_probability_loss"
# Mark of a key whose interval may be too narrow.
FEW = " ~"
SPEED_COLUMNS = (
    "generator",
    "completions/s",
    "to hf",
    "tokens/s",
    "to hf",
    "generate s",
    "score s",
    "train s",
    "step s",
    "score/step",
    "step peak GiB",
    "mean length",
)


def evaluation_tables(measures: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return a table of one evaluation with a row per key and, if there are any, a table of values by colour and phase.

    A value by colour or phase is followed by ± half the width of its 95 % interval. A mark at the number of rows says
    that the interval may be too narrow (see `has_few_rows`).
    """
    whole = [key for key in measures if key.rpartition("/")[2] not in SLICES]
    table = Table("key", "value", "95 % interval", "rows")
    for key in whole:
        n = measures[key]["n"]
        table.add_row(key, _number(measures[key]["value"]), _interval(measures[key]), _rows(key, n))
    table.caption = _few_caption({key: measures[key]["n"] for key in whole})
    known = [name for name in SLICES if any(key.endswith(f"/{name}") for key in measures)]
    beside = Table("key", *known)
    for key in whole:
        if any(f"{key}/{name}" in measures for name in known):
            beside.add_row(key, *(_refined(measures.get(f"{key}/{name}")) for name in known))
    return [table, beside] if known else [table]


def comparison_table(comparisons: Mapping[str, Comparison]) -> Table:
    """Return the table that compares two models on the same rows, with a row per key; few rows are marked."""
    table = Table("key", "A", "B", "B − A", "95 % interval", "higher", "lower", "rows", "test", "p")
    table.caption = _few_caption({key: entry.n for key, entry in comparisons.items()})
    for key, entry in comparisons.items():
        table.add_row(
            key,
            _number(entry.first),
            _number(entry.second),
            f"{entry.gain.value:+.4f}",
            _interval(asdict(entry.gain)),
            *("" if count is None else str(count) for count in (entry.higher, entry.lower)),
            _rows(key, entry.n),
            entry.test,
            f"{entry.p:.2g}",
        )
    return table


def gain_table(summary: Mapping[str, Any]) -> Table:
    """Return a table with a row per headline key: before, after and the paired difference. `worse` marks losses."""
    table = Table("key", "before", "after", "gain", "95 % interval, over rows", "")
    for key in headline_keys():
        mark = "worse" if key in summary["worse"] else ""
        if gain := summary["gain"].get(key):
            before, after = summary["before"][key]["value"], summary["after"][key]["value"]
            table.add_row(key, f"{before:.4f}", f"{after:.4f}", f"{gain['value']:+.4f}", _interval(gain), mark)
    if elo := summary["match"].get("elo"):
        mark = "worse" if MATCH_ELO in summary["worse"] else ""
        table.add_row(MATCH_ELO, "", "", f"{float(elo['value']):+.1f}", _interval(elo), mark)
    return table


def seeds_table(summaries: Sequence[Mapping[str, Any]], row_gains: Sequence[RowGains] = ()) -> Table:
    """Return a table with the mean gain of each headline key over runs that differ only in their seed.

    The interval of the mean covers the variance between seeds and that of the rows (see `gain_over_seeds`). Further
    columns have each run's own gain and the number of runs in which the key got worse.
    """
    table = Table("key", "mean gain", "95 % interval, over seeds and rows", "each seed", "worse in")
    named = {key for summary in summaries for key in summary["worse"]}
    for key, gains, (mean, low, high) in headline_gains(summaries, row_gains):
        each = " ".join(f"{float(gain['value']):+.4f}" for gain in gains)
        worse_in = str(sum(key in summary["worse"] for summary in summaries)) if key in named else ""
        table.add_row(key, f"{mean:+.4f}", f"\\[{_number(low)}, {_number(high)}]", each, worse_in)
    return table


def sweep_table(members: Sequence[Member]) -> Table:
    """Return a table with a row per member of a sweep: overrides that not all have, gains, folder.

    A task's gains are those of its win-probability loss, if it has one, and of the key that decides about checkpoints.
    """
    wanted = [key for task in all_tasks() for key in (f"{task.name}/{LOSS}", task.decision_key)]
    evaluated = [key for key in wanted if any(key in member.summary["gain"] for member in members)]
    table = Table("overrides", "stopped", *evaluated, "folder")
    shared = set(members[0].overrides).intersection(*(member.overrides for member in members))
    for member in members:
        own = " ".join(override for override in member.overrides if len(members) == 1 or override not in shared)
        gains = (member.summary["gain"].get(key) for key in evaluated)
        # Overrides and paths may contain brackets, which rich would take for markup.
        folder = escape(str(member.folder))
        table.add_row(escape(own), member.summary["stopped"], *(_gain(gain) for gain in gains), folder)
    return table


def bench_table(figures: Mapping[str, Any]) -> Table:
    """Return the table of the speeds that `rookworld bench` measured, with a row per generator."""
    machine, ratios = figures["machine"], figures["ratios_to_hf"]
    table = Table(*SPEED_COLUMNS, title=_bench_title(machine))
    for kind, row in figures["generators"].items():
        ratio = ratios.get(kind)
        table.add_row(
            kind,
            f"{row['completions_per_s']:.1f}",
            _ratio(ratio["completions_per_s"]) if ratio else "",
            f"{row['tokens_per_s']:,.0f}",
            _ratio(ratio["tokens_per_s"]) if ratio else "",
            *(f"{row[key]:.3f}" for key in ("generate_s", "score_s", "train_s", "step_s")),
            f"{row['score_share']:.2%}",
            f"{row['peak_gib']:.2f}",
            f"{row['completion_tokens']:.1f}",
        )
    return table


def _bench_title(machine: Mapping[str, Any]) -> str:
    where = f"{machine['device']}, {machine['threads']} threads, {machine['precision']}"
    step = f"{machine['prompts']} prompts × {machine['group_size']}, at most {machine['max_new_tokens']} tokens"
    return f"{where}; {step}; medians; ratios of a round and their range"


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"


def _gain(gain: Mapping[str, float] | None) -> str:
    return f"{gain['value']:+.4f} {_interval(gain)}" if gain else "not evaluated"


def _interval(measure: Mapping[str, Any]) -> str:
    return f"\\[{_number(measure['low'])}, {_number(measure['high'])}]"


def _refined(measure: Mapping[str, Any] | None) -> str:
    if measure is None:
        return ""
    half = (float(measure["high"]) - float(measure["low"])) / 2
    return f"{float(measure['value']):.3f} ±{half:.3f}".replace("inf", "∞")


def _rows(key: str, n: int) -> str:
    return f"{n}{FEW if has_few_rows(key, n) else ''}"


def _few_caption(rows: Mapping[str, int]) -> str | None:
    """Return the caption that explains the mark of few rows; None if no key of these numbers of rows has it."""
    few = any(has_few_rows(key, n) for key, n in rows.items())
    return f"{FEW.strip()} graded and at most {FEW_ROWS} rows: too narrow for skewed values" if few else None


def _number(value: float | str) -> str:
    """Return a number with four decimals. The texts "inf" and "-inf" are infinite numbers, as in `to_json`."""
    return f"{float(value):.4f}".replace("inf", "∞")
