"""Does a step's speed hold, and its memory stay, as its completions grow?

    python benchmarks/scaling.py
    python benchmarks/scaling.py --prompts 8 32 --rounds 2 threads=1

Steps as `rookworld train` makes them with 8, 32 and 128 prompts of 8 completions, each size in a process of its own;
rounds take turns, each begun by another size, after one step that does not count. Micro-batch and generation batch are
those of the configuration whatever the size. Medians; the ratio is that of a round.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# Beside this file.
import sides

WARMUP_STEPS = 1


def measured(prompts: list[int], *, group_size: int, rounds: int, overrides: list[str]) -> dict[str, Any]:
    """Rounds of one step of each size; the ratio of the largest to the smallest."""
    commands = [
        (sides.ours, [*overrides, f"objective.prompts_per_step={count}", f"objective.group_size={group_size}"])
        for count in prompts
    ]
    with sides.started(commands) as ends:
        results = sides.take_turns(ends, rounds=rounds, steps=1, warmup_steps=WARMUP_STEPS)
    low_to_high = sides.ratio(results[-1], results[0], "completions_per_s")
    return {
        "overrides": overrides,
        "sizes": {str(count * group_size): sides.medians(rows) for count, rows in zip(prompts, results, strict=True)},
        "largest_to_smallest": dict(zip(("median", "low", "high"), low_to_high, strict=True)),
        "rounds": results,
    }


def show(result: dict[str, Any]) -> None:
    """The result as Markdown."""
    columns = ("completions a step", "completions/s", "step s", "mean length", "step peak GiB", "score/step")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for size, row in result["sizes"].items():
        times = f"{row['completions_per_s']:.1f} | {row['wall_s']:.2f} | {row['length']:.1f}"
        print(f"| {size} | {times} | {row['step_peak_gib']:.3f} | {row['score_share']:.2%} |")
    ratio = result["largest_to_smallest"]
    print(f"\nlargest/smallest: {ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=(8, 32, 128), help="from the fewest to the most")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("override", nargs="*", help="of the configuration, as in optim.micro_batch_size=32")
    given = parser.parse_args()
    result = measured(
        list(given.prompts), group_size=given.group_size, rounds=given.rounds, overrides=list(given.override)
    )
    show(result)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
