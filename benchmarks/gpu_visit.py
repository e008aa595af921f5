"""Runs one call of the GPU visit: some minutes on a machine that is lent, with neither package index nor model hub.

    benchmarks/gpu_visit.sh --list               # the calls: what each answers, brings, and takes
    benchmarks/gpu_visit.sh --prepare            # on a machine with a package index: fills outputs/gpu_carry
    benchmarks/gpu_visit.sh speed                # on the GPU machine
    benchmarks/gpu_visit.sh speed --dry          # in small on a CPU

Each part of a call is a command in a process of its own with a time limit. A call continues after a failed part, and
rewrites its figures (CALL.json) and its page (CALL.md) after each part, so that an interrupted one keeps its results.
They are in $OUT if that is set, else in outputs/gpu_visit, beside a folder CALL with further files, as the model of
`start`. The exit code is 1 if a part failed or was left out because
the time was over, and 2 if the call cannot begin. A part that needs what is not here is skipped, and the page says why.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, median
from typing import Any

# Modules in this folder.
import gpu_calls
import gpu_carry
from gpu_calls import CALLS, DRY_PATIENCE, Call, Part, Place

LIBRARIES = ("torch", "transformers", "triton", "trl")
TRACE_LINES = 25
Rows = dict[str, dict[str, Any]]
BENCH_KEYS = ("completions_per_s", "tokens_per_s", "generate_s", "score_s", "train_s", "step_s", "peak_gib")
STEP_KEYS = ("time/generate_s", "time/score_s", "time/train_s", "time/step_s", "memory/peak_gib")


@dataclass(slots=True)
class Result:
    """The result of a part."""

    name: str
    command: str
    outcome: str
    """passed, failed or skipped."""
    reason: str = ""
    """Empty for a part that passed."""
    seconds: float = 0.0
    trace: str = ""
    """The last lines that a failed part printed."""
    figures: Rows = field(default_factory=dict)


def run(part: Part, folder: Path, limit_s: float) -> Result:
    """Run a part and end all processes that it leaves. Its output is in log.txt of its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [word.replace("{out}", str(folder)) for word in part.command]
    # The wheel of a carried model is in the folder above.
    offline = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder.parent / "smollm2")}
    paths = os.pathsep.join([gpu_calls.module_path(), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | offline | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    result, began = Result(part.name, " ".join(command), "passed"), time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=gpu_carry.ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            if code := process.wait(limit_s):
                result.outcome, result.reason = "failed", f"exit code {code}"
        except subprocess.TimeoutExpired:
            result.outcome, result.reason = "failed", f"not done within {limit_s:.0f} s"
        finally:
            end(process)
    result.seconds = time.perf_counter() - began
    try:
        # What a failed part has written before counts, too.
        result.figures = figures(folder)
    except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError) as error:
        if result.outcome == "passed":
            result.outcome, result.reason = "failed", f"no figures: {type(error).__name__}: {error}"
    if result.outcome == "failed":
        result.trace = "\n".join((folder / "log.txt").read_text(errors="replace").splitlines()[-TRACE_LINES:])
    return result


def keep(part: Part, folder: Path, out: Path) -> None:
    """Copy the files of a part's folder that are brought back."""
    for file in (file for pattern in part.keep for file in sorted(folder.glob(pattern))):
        out.mkdir(exist_ok=True)
        shutil.copy(file, out / file.name)


def end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a part's group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def figures(folder: Path) -> Rows:
    """Return the rows of the files that a part has written, by name."""
    rows: Rows = {}
    for path in sorted(folder.glob("*.json")):
        measured = json.loads(path.read_text())
        match path.stem:
            case "peers":
                rows |= {side: side_row(measured[side]) for side in ("ours", "trl")}
                rows["ours"]["ratio"] = measured["completions_per_s"]["median"]
            case "bench":
                rows |= {kind: {key: row[key] for key in BENCH_KEYS} for kind, row in measured["generators"].items()}
            # The recipe's evaluation, which is among the rows of its probe, and the parts of its model.
            case "evaluation" | "parts":
                pass
            case _:
                rows |= measured
    for path in folder.glob("latest/metrics.jsonl"):
        rows |= step_rows([json.loads(line) for line in path.read_text().splitlines()])
    for path in folder.glob("latest/summary.json"):
        rows |= summary_rows(json.loads(path.read_text()))
    return rows


def side_row(row: dict[str, float]) -> dict[str, float]:
    """Return the figures of one side of `peers.py`; `train_tflop` is counted on our side and is the same for both."""
    tokens = row["completions"] * row["length"]
    return {
        "completions_per_s": row["completions_per_s"],
        "tokens_per_s": tokens / row["wall_s"],
        "tokens_per_s_in_sampling": tokens / row["generate_s"],
        "decode_ms": 1000 * row["generate_s"] / row["decode_steps"],
        "generate_s": row["generate_s"] / row["updates"],
        "score_s": row["score_s"] / row["updates"],
        "train_s": row["train_s"] / row["updates"],
        "step_s": row["wall_s"] / row["updates"],
        "peak_gib": row["grown_gib"],
        **({"train_tflop": row["train_tflop"] / row["updates"]} if "train_tflop" in row else {}),
    }


def add_mfu(rows: Rows, tflop_per_s: float) -> None:
    """Add each side's share of the machine's best rate that training reaches, by the operations that are needed."""
    needed = rows.get("ours", {}).get("train_tflop")
    for row in rows.values() if needed else ():
        row["mfu_train"] = needed / row["train_s"] / tflop_per_s


def step_rows(steps: Sequence[dict[str, Any]]) -> Rows:
    """Return the medians over a run's good steps, and the mean reward of the first and of the last tenth of them."""
    # A step that failed lacks some of them.
    good = [step for step in steps if {"reward/mean", *STEP_KEYS} <= step.keys()]
    if not good:
        return {}
    some = max(1, len(good) // 10)
    row = {key: median(step[key] for step in good) for key in STEP_KEYS}
    row["first rewards"], row["last rewards"] = (
        fmean(step["reward/mean"] for step in part) for part in (good[:some], good[-some:])
    )
    return {f"{len(good)} steps": row}


def summary_rows(summary: dict[str, Any]) -> Rows:
    """Return each evaluated key before and after, with the paired difference and its interval."""
    rows: Rows = {}
    for key, gain in (summary.get("gain") or {}).items():
        before, after = (summary[when][key]["value"] for when in ("before", "after"))
        rows[key] = {"before": before, "after": after, "gain": gain["value"], "low": gain["low"], "high": gain["high"]}
    for key, found in (summary.get("match") or {}).items():
        if isinstance(found, dict) and "value" in found:
            rows[f"match/{key}"] = {"after": found["value"], "low": found["low"], "high": found["high"]}
    return rows


def machine(dry: bool) -> dict[str, Any]:
    """Return a description of the machine, with the versions of the libraries."""
    git = ["git", "rev-parse", "HEAD"] if shutil.which("git") else ["true"]
    commit = subprocess.run(git, cwd=gpu_carry.ROOT, capture_output=True, text=True, check=False)
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return {
        "dry": dry,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cards": cards(),
        "cpus": os.cpu_count(),
        "commit": commit.stdout.strip() or "not a git checkout",
        "versions": versions,
    }


def cards() -> list[str]:
    """Return name, memory and driver of each CUDA device, as nvidia-smi reports them."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()


def page(name: str, about: dict[str, Any], results: Sequence[Result], left: Sequence[Part]) -> str:
    """Return a call as Markdown."""
    facts = ["dry, on a CPU with tiny sizes: the figures mean nothing"] if about["dry"] else []
    facts += [*about["cards"], f"{about['cpus']} CPU cores", f"commit {about['commit']}", about["date"]]
    facts += [f"{library} {number}" for library, number in about["versions"].items()]
    lines = [f"# {name}", "", *(f"- {fact}" for fact in facts)]
    lines += ["", "| part | outcome | seconds | reason |", "|---|---|---|---|"]
    lines += [f"| {each.name} | {each.outcome} | {each.seconds:.0f} | {each.reason} |" for each in results]
    lines += [f"| {part.name} | not yet run | | |" for part in left]
    for each in (each for each in results if each.figures):
        lines += ["", f"## {each.name}", *(line for rows in related(each.figures) for line in table(rows))]
    for each in (each for each in results if each.outcome == "failed"):
        fenced = f"{each.reason} after {each.seconds:.0f} s of\n\n    {each.command}\n\n```text\n{each.trace}\n```"
        lines += ["", f"## Failed: {each.name}", "", fenced]
    return "\n".join(lines) + "\n"


def related(figures: Rows) -> list[Rows]:
    """Return the rows in groups, of which each begins with a row that has no column of the group before it."""
    groups: list[Rows] = []
    for name, row in figures.items():
        if not groups or not any(row.keys() & other.keys() for other in groups[-1].values()):
            groups.append({})
        groups[-1][name] = row
    return groups


def table(rows: Rows) -> list[str]:
    """Return rows as the lines of a Markdown table, with an empty line before it."""
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = ["", f"| | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    return lines + [
        f"| {name} | {' | '.join(cell(row.get(column)) for column in columns)} |" for name, row in rows.items()
    ]


def cell(value: Any) -> str:
    """Return a figure with three digits; empty if it is missing."""
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


def visit(call: Call, place: Place, out: Path) -> int:
    """Run the parts of a call within its time limit and write figures and page after each. Return the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    todo, results, patience = call.parts(place), list[Result](), DRY_PATIENCE if place.dry else 1
    about, began = machine(place.dry), time.perf_counter()
    for number, part in enumerate(todo, 1):
        left_s = patience * call.limit_s - (time.perf_counter() - began)
        folder = place.work / "".join(letter if letter.isalnum() else "_" for letter in part.name)
        if reason := next((reason for need in part.needs if (reason := gpu_calls.lacking(need))), ""):
            result = Result(part.name, " ".join(part.command), "skipped", reason)
        elif left_s <= 0:
            result = Result(part.name, " ".join(part.command), "failed", "the time was over")
        else:
            result = run(part, folder, min(patience * part.limit_s, left_s))
            keep(part, folder, out / call.name)
        results.append(result)
        for best in (each.figures["limits"] for each in results if "limits" in each.figures):
            add_mfu(result.figures, best["tflop_per_s"])
        print(f"{part.name}: {result.outcome} {result.reason} {result.seconds:.0f} s", flush=True)
        whole = {"call": call.name, "machine": about, "parts": [asdict(each) for each in results]}
        (out / f"{call.name}.json").write_text(json.dumps(whole, indent=2))
        (out / f"{call.name}.md").write_text(page(call.name, about, results, todo[number:]))
    print((out / f"{call.name}.md").read_text())
    return int(any(each.outcome == "failed" for each in results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [call.name for call in CALLS]
    parser.add_argument("call", nargs="?", choices=names)
    parser.add_argument("--dry", action="store_true", help="on a CPU, in small")
    parser.add_argument("--list", action="store_true", help="print the calls as a table")
    parser.add_argument(
        "--prepare",
        nargs="*",
        choices=(gpu_carry.WHEELS, gpu_carry.EXAMPLES, gpu_carry.CHAT_MODEL),
        help="make what the calls bring, all or some, where it is missing; needs a package index, and Stockfish",
    )
    given = parser.parse_args()
    if given.list:
        print(gpu_calls.table())
        return 0
    if given.prepare is not None:
        return gpu_carry.prepare(given.prepare)
    if not given.call:
        parser.error(f"expected one of {names}, --list or --prepare")
    if not given.dry and not cards():
        parser.error("expected a CUDA device, got none; --dry tries a call on a CPU")
    if not given.dry:
        gpu_carry.install()
    if absent := gpu_carry.missing(gpu_carry.PACKAGES[:-1]):
        parser.error(f"expected {', '.join(absent)}; --prepare makes {gpu_carry.CARRY} to carry here")
    root = gpu_carry.ROOT / "outputs/gpu_visit"
    work = root / ("work_dry" if given.dry else "work")
    [call] = [call for call in CALLS if call.name == given.call]
    return visit(call, Place(work, dry=given.dry), Path(os.environ.get("OUT") or root))


if __name__ == "__main__":
    sys.exit(main())
