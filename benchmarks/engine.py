"""Speed of Stockfish's evaluations, and agreement of a short search with a long one.

    python benchmarks/engine.py
    python benchmarks/engine.py --nodes 5000 10000 20000 40000 --deep 2000000 --positions 200

The positions are those of shipped training rows, and every legal move gets an eval, as with `rubric.source=engine`.
Speed is measured without a cache, with one and several engine processes, and from the cache alone; rounds take turns,
and the table has medians and ranges. Agreement is measured if `--deep` gives the nodes of the search that counts as
true: the win probability that the short search's best move loses, and that a random legal move loses; how often the
former is below 0.01; and the signal over error of three scales of move values: their standard deviation over the moves
of a position, divided by the root of the mean squared error. The first scale is 1 − loss; the reward is 2^(−loss/0.1)
of the same loss (`rewards/move_values.py`).
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, pvariance
from typing import Any

from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.engine import EngineConfig
from rookworld_rlvr.stockfish.move_values import MoveValues, move_values
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.policy.text import parse_policy_prompt
from rookworld_rlvr.training.data import default_file

CLOSE = 0.01
# Smallest divisor of the third scale, used if best and worst move differ by less.
LEAST_SPREAD = 0.1
SCALES: dict[str, Callable[[MoveValues, str], float]] = {
    "1 − loss": lambda worth, move: 1 - worth.loss(move),
    "win(move) / win(best)": lambda worth, move: worth.wins[move] / worth.best_win,
    "1 − loss / (best − worst)": lambda worth, move: (
        1 - worth.loss(move) / max(LEAST_SPREAD, worth.best_win - min(worth.wins.values()))
    ),
}


def positions(count: int, seed: int) -> list[str]:
    """Return the FENs of policy rows that are drawn at random."""
    rows = [row for row in read_corpus(default_file("train.txt")).examples if row.task == "policy"]
    return [parse_policy_prompt(row.prompt).fen for row in random.Random(seed).sample(rows, count)]


def seconds(fens: Sequence[str], config: EngineConfig) -> float:
    """Return the seconds per position of a pool that is already running."""
    with EnginePool(config) as pool:
        if config.processes > 1 and not config.cache:
            # Engines other than the first start when they are needed.
            pool.analyse(fens[: 2 * config.processes], nodes=1000)
        began = time.perf_counter()
        pool.analyse(fens)
        return (time.perf_counter() - began) / len(fens)


def speeds(fens: Sequence[str], *, nodes: int, processes: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Return the seconds per position of each round, by the name of the measurement."""
    times: dict[str, list[float]] = {f"cold, processes={count}": [] for count in processes} | {"cached": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        cached = EngineConfig(nodes=nodes)
        seconds(fens, cached)
        for _ in range(rounds):
            for count in processes:
                config = EngineConfig(nodes=nodes, processes=count, cache=False)
                times[f"cold, processes={count}"].append(seconds(fens, config))
            times["cached"].append(seconds(fens, cached))
    return times


def agreement(short: Sequence[Analysis], deep: Sequence[Analysis]) -> dict[str, float]:
    """Return means over positions, and the signal over error of each of `SCALES` by its name."""
    pairs = list(zip(map(move_values, short), map(move_values, deep), strict=True))
    losses = [theirs.loss(max(ours.wins, key=lambda move: ours.wins[move])) for ours, theirs in pairs]
    shares = {
        "loss": fmean(losses),
        "close": fmean(loss < CLOSE for loss in losses),
        "random": fmean(fmean(map(theirs.loss, theirs.wins)) for _, theirs in pairs),
    }
    for name, scale in SCALES.items():
        variances = fmean(pvariance([scale(theirs, move) for move in theirs.wins]) for _, theirs in pairs)
        errors = fmean(fmean((scale(ours, m) - scale(theirs, m)) ** 2 for m in theirs.wins) for ours, theirs in pairs)
        shares[name] = (variances / errors) ** 0.5
    return shares


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Return the speed at each number of nodes, and the agreement if `deep` is given."""
    fens = positions(given.positions, given.seed)
    with EnginePool(EngineConfig(processes=max(given.processes), cache=False)) as pool:
        name = pool.name
        deep = pool.analyse(fens, nodes=given.deep) if given.deep else []
        agreements = {n: agreement(pool.analyse(fens, nodes=n), deep) for n in given.nodes if deep}
    times = {n: speeds(fens, nodes=n, processes=given.processes, rounds=given.rounds) for n in given.nodes}
    return {"engine": name, "positions": len(fens), "seconds": times, "agreement": agreements}


def show(result: dict[str, Any]) -> None:
    """Print the result as Markdown."""
    print(f"{result['engine']}, {result['positions']} positions\n")
    print("| nodes | engine | positions/s | range | ms a position |\n|---|---|---|---|---|")
    for nodes, rows in result["seconds"].items():
        for name, times in rows.items():
            span = f"{1 / max(times):,.0f}–{1 / min(times):,.0f}"
            print(f"| {nodes:,} | {name} | {1 / median(times):,.0f} | {span} | {1000 * median(times):.2f} |")
    if result["agreement"]:
        print(f"\n| nodes | loss of its best move | below 0.01 | {' | '.join(SCALES)} |")
        print("|---" * (3 + len(SCALES)) + "|")
        for nodes, row in result["agreement"].items():
            signals = " | ".join(f"{row[name]:.2f}" for name in SCALES)
            print(f"| {nodes:,} | {row['loss']:.4f} | {row['close']:.2f} | {signals} |")
        print(f"\nA random legal move gives away {row['random']:.4f}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=200)
    parser.add_argument("--nodes", type=int, nargs="+", default=[EngineConfig().nodes])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deep", type=int, default=0, help="nodes of the search that counts as true; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    given = parser.parse_args()
    result = measured(given)
    show(result)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
