"""Run all tests and measurements on a GPU that the documents rely on, and write the results to one page.

    benchmarks/gpu_visit.sh                      # also sets up the environment
    .venv/bin/python benchmarks/gpu_visit.py --dry
    .venv/bin/python benchmarks/gpu_visit.py --only 'smoke fp32' 'bench 3.5M 8×8 native,hf'

Each part is a command in a process of its own with a time limit. The visit continues after a failed part and rewrites
its page after each part, so that an interrupted visit keeps its results. Nothing is loaded from a model hub. The exit
code is 1 if a part failed, 2 without a CUDA device. A part that cannot run here is skipped, and the page says why.
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
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

# A module in this folder.
from gpu_parts import DRY_PATIENCE, ROOT, TRL_FOLDER, VENVS, Part, Table, cards, missing_requirement

LIBRARIES = ("torch", "transformers", "vllm", "trl")
TRACE_LINES = 25
Figures = dict[str, dict[str, Any]]
# Columns of the table, each with the names of its figure in the commands' files; the first name that exists is used.
COLUMNS = {
    "completions/s": ("completions_per_s", "throughput/completions_per_s"),
    "tokens/s in sampling": ("tokens_per_s",),
    "step, s": ("step_s",),
    "peak, GiB": ("step_peak_gib", "peak_gib", "grown_gib", "memory/peak_gib"),
    "MFU, step": ("mfu/step",),
    "MFU, training": ("mfu/train",),
    "bandwidth, sampling": ("bandwidth/generate",),
    "reward": ("reward", "reward/mean"),
    "ratio": ("ratio",),
}


@dataclass(slots=True)
class Result:
    """The result of a part."""

    name: str
    command: str
    outcome: str
    """passed, failed, skipped, or cut off if the visit's time was over."""
    reason: str = ""
    """Empty for a part that passed."""
    seconds: float = 0.0
    trace: str = ""
    """The last lines that a failed part printed."""
    figures: Figures = field(default_factory=dict)


def run(part: Part, folder: Path, limit_s: float) -> Result:
    """Run a part and end all processes that it leaves. Its output is in log.txt of the part's folder."""
    out = folder / "".join(letter if letter.isalnum() else "_" for letter in part.name)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = [word.replace("{out}", str(out)) for word in part.command]
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    paths = [os.environ.get("PYTHONPATH", ""), *([str(folder / TRL_FOLDER)] if "--trl-vllm" in command else [])]
    environment = os.environ | offline | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    result, began = Result(part.name, " ".join(command), "passed"), time.perf_counter()
    with (out / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            if code := process.wait(limit_s):
                result.outcome, result.reason = "failed", f"exit code {code}"
        except subprocess.TimeoutExpired:
            result.outcome = "failed" if limit_s == part.limit_s else "cut off"
            result.reason = f"not done within {limit_s:.0f} s"
        finally:
            end(process)
    result.seconds = time.perf_counter() - began
    try:
        result.figures = figures(out) if result.outcome == "passed" else {}
    except (IndexError, KeyError, OSError, ValueError) as error:
        result.outcome, result.reason = "failed", f"no figures: {type(error).__name__}: {error}"
    if result.outcome != "passed":
        result.trace = "\n".join((out / "log.txt").read_text(errors="replace").splitlines()[-TRACE_LINES:])
    return result


def end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a part's group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def figures(out: Path) -> Figures:
    """Return the rows of a part's files by name: one per generator, setting or side, and the last step of a run."""
    rows: Figures = {}
    for path in out.glob("*.json"):
        measured = json.loads(path.read_text())
        match path.stem:
            case "bench":
                rows |= measured["generators"]
            case "roofline":
                rows |= measured
            case "turns":
                *firsts, (last, row) = measured["settings"].items()
                rows |= dict(firsts) | {last: row | {"ratio": measured["last_to_first"]["median"]}}
            case "peers":
                ratio = {"ratio": measured["completions_per_s"]["median"]}
                rows |= {"ours": measured["ours"] | ratio, "trl": measured["trl"]}
            case probe:
                rows[probe] = measured
    for path in out.glob("latest/metrics.jsonl"):
        rows["last step"] = json.loads(path.read_text().splitlines()[-1])
    for name, row in rows.items():
        # A row of rounds has the seconds of a round, which may have several steps.
        if {"wall_s", "updates"} <= row.keys():
            rows[name] = row | {"step_s": row["wall_s"] / row["updates"]}
    return rows


def machine(dry: bool) -> dict[str, Any]:
    """Return a description of the machine, with the versions of the libraries in each environment."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    versions = {"python": platform.python_version()}
    for venv in VENVS.values():
        here = Path(sys.prefix) if venv == ".venv" else ROOT / venv
        places = [str(path) for path in here.glob("lib/python*/site-packages")]
        for each in distributions(path=places):
            if each.name.lower() in LIBRARIES:
                versions[f"{each.name} in {venv}"] = each.version
    return {
        "dry": dry,
        "cards": cards(),
        "cpus": os.cpu_count(),
        "commit": commit.stdout.strip() or "not a git checkout",
        "versions": versions,
    }


def page(about: dict[str, Any], results: Sequence[Result], left: Sequence[Part]) -> str:
    """Return the visit as Markdown."""
    names = ["dry visit on a CPU, tiny sizes: its figures mean nothing"] if about["dry"] else []
    names += [*about["cards"], f"{about['cpus']} CPU cores", f"commit {about['commit']}"]
    names += [f"{name} {version}" for name, version in about["versions"].items()]
    lines = ["# Visit", "", *(f"- {name}" for name in names)]
    lines += ["", f"| part | row | {' | '.join(COLUMNS)} |", f"|---|---{'|---' * len(COLUMNS)}|"]
    lines += [f"| {each.name} | {name} | {cells(row)} |" for each in results for name, row in each.figures.items()]
    lines += ["", "| part | outcome | seconds | reason |", "|---|---|---|---|"]
    lines += [f"| {each.name} | {each.outcome} | {each.seconds:.0f} | {each.reason} |" for each in results]
    lines += [f"| {part.name} | not yet run | | |" for part in left]
    for each in (each for each in results if each.outcome in ("failed", "cut off")):
        fenced = f"{each.reason} after {each.seconds:.0f} s of\n\n    {each.command}\n\n```text\n{each.trace}\n```"
        lines += ["", f"## {each.outcome.capitalize()}: {each.name}", "", fenced]
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any]) -> str:
    """Return a row's figures in the order of the columns, with three digits; empty where a figure is missing."""
    values = [next((row[key] for key in keys if row.get(key) is not None), None) for keys in COLUMNS.values()]
    return " | ".join("" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values)


def visit(todo: Sequence[Part], folder: Path, *, dry: bool, seconds: float) -> int:
    """Run parts until `seconds` are over and write the page after each. Return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    began = time.perf_counter()
    for number, part in enumerate(todo, 1):
        left_s = seconds - (time.perf_counter() - began)
        missing = next((reason for one in part.requirements if (reason := missing_requirement(one, dry=dry))), "")
        reason = missing or ("" if left_s > 0 else "the visit's time was over")
        if reason:
            result = Result(part.name, " ".join(part.command), "skipped", reason)
        else:
            result = run(part, folder, min(part.limit_s, left_s))
        results.append(result)
        about = machine(dry)
        print(f"{part.name}: {result.outcome} {result.reason} {result.seconds:.0f} s", flush=True)
        whole = {"machine": about, "parts": [asdict(each) for each in results]}
        (folder / "visit.json").write_text(json.dumps(whole, indent=2))
        (folder / "visit.md").write_text(page(about, results, todo[number:]))
    print(f"{folder / 'visit.md'}")
    return int(any(each.outcome == "failed" for each in results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="on a CPU, in small; installs nothing")
    parser.add_argument("--minutes", type=float, default=25, help=f"of the whole visit, times {DRY_PATIENCE} if dry")
    parser.add_argument("--spent-s", type=float, default=0, help="seconds of it that are over")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts by name, as the page shows them")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs/gpu_visit", help="a folder")
    given = parser.parse_args()
    table = Table(given.out.resolve(), dry=given.dry)
    todo = table.parts()
    if unknown := set(given.only) - {part.name for part in todo}:
        parser.error(f"--only: expected some of {[part.name for part in todo]}, got {sorted(unknown)}")
    if not given.dry and not cards():
        parser.error("expected a CUDA device, got none; --dry tries the visit on a CPU")
    todo = [part for part in todo if not given.only or part.name in given.only]
    return visit(todo, given.out.resolve(), dry=given.dry, seconds=60 * table.patience * given.minutes - given.spent_s)


if __name__ == "__main__":
    sys.exit(main())
