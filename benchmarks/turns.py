"""Speed and memory of a step under several settings, in turns.

    python benchmarks/turns.py generator.batch_size=128 generator.batch_size=1024
    python benchmarks/turns.py objective.prompts_per_step=8 objective.prompts_per_step=128 --common threads=1

The steps are those of `rookworld train`. A setting is one argument: overrides separated by spaces. Each setting has a
process of its own. The settings take turns, each round begins with another one, and a warm-up before that does not
count. Figures are medians; the ratio of the last setting to the first is computed for each round.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# A module in this folder.
import sides


def measured(settings: list[str], *, common: list[str], rounds: int, steps: int, warmup_steps: int) -> dict[str, Any]:
    """Return rounds and medians of each setting, and the ratio of the last setting to the first."""
    commands = [(sides.ours, [*common, *setting.split()]) for setting in settings]
    with sides.started(commands) as ends:
        results = sides.take_turns(ends, rounds=rounds, steps=steps, warmup_steps=warmup_steps)
    ratio = sides.ratio(results[-1], results[0], "completions_per_s")
    return {
        "common": common,
        "settings": {setting: sides.medians(rows) for setting, rows in zip(settings, results, strict=True)},
        "last_to_first": dict(zip(("median", "low", "high"), ratio, strict=True)),
        "rounds": results,
    }


def show(result: dict[str, Any]) -> None:
    """Print the result as Markdown."""
    columns = ("setting", "completions/s", "seconds per round", "mean length", "step peak GiB", "score/step")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for setting, row in result["settings"].items():
        times = f"{row['completions_per_s']:.1f} | {row['wall_s']:.2f} | {row['length']:.1f}"
        print(f"| {setting} | {times} | {row['step_peak_gib']:.3f} | {row['score_s'] / row['wall_s']:.2%} |")
    ratio = result["last_to_first"]
    print(f"\nlast/first: {ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", help="overrides of the configuration, as in generator.batch_size=1024")
    parser.add_argument("--common", nargs="+", default=[], help="overrides of all settings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="steps per round")
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    given = parser.parse_args()
    result = measured(
        given.settings,
        common=given.common,
        rounds=given.rounds,
        steps=given.steps,
        warmup_steps=given.warmup_steps,
    )
    show(result)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
