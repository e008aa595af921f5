"""The suites that play and solve, on players of known strength beside a model: do they rank them right?

python benchmarks/known_players.py --mates mate_in_one.jsonl --puzzles puzzles.jsonl --output outputs/players.json
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rookworld_rlvr.app.wiring import make_generator
from rookworld_rlvr.evaluation import Measure, Row, summarise, to_json
from rookworld_rlvr.evaluation.engine_match import EngineMatchConfig, engine_match, engine_match_measures
from rookworld_rlvr.evaluation.mate_in_one import mate_in_one, read_mates
from rookworld_rlvr.evaluation.players import (
    DecodingConfig,
    ModelPlayer,
    OpponentConfig,
    Player,
    RandomPlayer,
    engine_player,
)
from rookworld_rlvr.evaluation.puzzles import puzzles, read_puzzles
from rookworld_rlvr.evaluation.selfplay import SelfplayConfig, selfplay, selfplay_measures
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.training.policy import Device, ModelConfig, Precision, load_policy, select_device

MakePlayer = Callable[[DecodingConfig], Player]
# Weak enough that a game can be won by someone who knows the rules, and the same in every run.
OPPONENT = OpponentConfig(nodes=1, random_moves=0.9)
TOLD = (
    "mate_in_one/accuracy",
    "mate_in_one/legal",
    "puzzles/accuracy",
    "puzzles/legal",
    "selfplay/legal_halfmoves",
    "selfplay/illegal_rate",
    "engine_match/score",
    "engine_match/elo",
    "engine_match/illegal",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mates", type=Path, required=True)
    parser.add_argument("--puzzles", type=Path, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    tables = {}
    with ExitStack() as stack:
        for name, make in players(arguments.model, stack).items():
            tables[name] = measured(make, arguments)
            print(f"{name}: done", flush=True)
    Console(width=160).print(as_table(tables))
    if arguments.output:
        found = {name: to_json(table) for name, table in tables.items()}
        arguments.output.write_text(json.dumps(found, indent=2) + "\n")


def players(model: str, stack: ExitStack) -> dict[str, MakePlayer]:
    policy = load_policy(ModelConfig(path=model), select_device(Device.auto), Precision.bf16)
    generator = make_generator(policy, GeneratorConfig())
    stockfish = stack.enter_context(engine_player(OpponentConfig()))
    return {
        "random mover": lambda decoding: RandomPlayer(),
        model: lambda decoding: ModelPlayer(generator, policy.tokenizer, decoding),
        "Stockfish, 1000 nodes": lambda decoding: stockfish,
    }


def measured(make: MakePlayer, arguments: argparse.Namespace) -> dict[str, Measure]:
    """Every suite's table; self-play at the published sampling, all else greedy."""
    games, match = SelfplayConfig(games=arguments.games), EngineMatchConfig(pairs=arguments.pairs, opponent=OPPONENT)
    greedy = make(DecodingConfig())
    mated = rows(mate_in_one(greedy, read_mates(arguments.mates)))
    solved = rows(puzzles(greedy, read_puzzles(arguments.puzzles)))
    played = rows(selfplay(make(games.decoding), games))
    with engine_player(OPPONENT) as opponent:
        matched = rows(engine_match(greedy, opponent, match))
    return (
        summarise(mated)
        | summarise(solved)
        | summarise(played)
        | selfplay_measures(played)
        | summarise(matched)
        | engine_match_measures(matched)
    )


def rows(chunks: Iterable[list[Row]]) -> list[Row]:
    return [row for chunk in chunks for row in chunk]


def as_table(tables: dict[str, dict[str, Measure]]) -> Table:
    table = Table("key", *tables)
    for key in TOLD:
        table.add_row(key, *cells(tables.values(), key))
    return table


def cells(tables: Iterable[dict[str, Any]], key: str) -> Iterator[str]:
    for table in tables:
        measure = table[key]
        yield f"{measure.value:.4f} \\[{measure.low:.4f}, {measure.high:.4f}]"


if __name__ == "__main__":
    main()
