"""Run the suites of `rookworld evaluate` on a model and on players and arbiters of known strength, to compare them.

    python benchmarks/known_players.py --mates mate_in_one.jsonl --output outputs/players.json

The players are a uniformly random mover, two rules of thumb, the model and Stockfish. Their suites are held-out
positions (by the move alone), mates in one, self-play, games against a weak Stockfish, and won positions. The arbiters
predict the position after a move: one that leaves it unchanged, the model and python-chess, on held-out transitions.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.board.fen import parse_fen
from rookworld_rlvr.board.transition import Transition
from rookworld_rlvr.evaluation.adjudication import open_referee
from rookworld_rlvr.evaluation.completions import Complete, MoveMeasures, greedy_completions, held_out_suite
from rookworld_rlvr.evaluation.conversion import ConversionConfig, conversion_suite
from rookworld_rlvr.evaluation.engine_player import FULL_SKILL, OpponentConfig, engine_player
from rookworld_rlvr.evaluation.match import IllegalRule, MatchConfig, MatchSetting, match_suite, stockfish_opponent
from rookworld_rlvr.evaluation.mate_in_one import mate_in_one_suite, read_mates
from rookworld_rlvr.evaluation.players import (
    CapturePlayer,
    DecodingConfig,
    ExchangePlayer,
    ModelPlayer,
    Player,
    RandomPlayer,
)
from rookworld_rlvr.evaluation.selfplay import SelfplayConfig, selfplay_suite
from rookworld_rlvr.evaluation.suite import Suite, suite_table
from rookworld_rlvr.evaluation.table import Measure, to_json
from rookworld_rlvr.model.device import Device, Precision, select_device
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rewards.evaluation_cache import load_cache
from rookworld_rlvr.rewards.move_evaluations import MoveEvaluations
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.stockfish.engine import EngineConfig
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.environment.text import environment_truth, parse_environment_prompt, render_environment
from rookworld_rlvr.tasks.policy.text import render_policy
from rookworld_rlvr.tasks.types import Example, PolicyCompletion
from rookworld_rlvr.training.config import DataConfig
from rookworld_rlvr.training.data import EvaluationData, load_evaluation_data

MakePlayer = Callable[[DecodingConfig, int], Player]
"""Makes a player from its decoding and the seed of its samples."""
# Weak enough that rules of thumb win games, strong enough that they do not win all; the same in every run.
OPPONENT = OpponentConfig(nodes=1, skill=FULL_SKILL, random_moves=0.5)
# Nodes of the engine that measures the win probability that moves lose: far more than Stockfish has as a player.
MEASURE_NODES = 100_000
OF_PLAYERS = (
    "policy/legal_best_move",
    "policy/best_move_accuracy",
    "policy/win_probability_loss",
    "mate_in_one/accuracy",
    "mate_in_one/legal",
    "selfplay/legal_plies",
    "selfplay/illegal_rate",
    "match/score",
    "match/rules_score",
    "match/elo",
    "conversion/won",
    "match/illegal",
)
OF_ARBITERS = (
    "environment/next_state_accuracy",
    "environment/reward_accuracy",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mates", type=Path, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--plies", type=int, default=100, help="limit of a game against the weak Stockfish")
    parser.add_argument("--positions", type=int, default=5, help="won positions of each kind")
    parser.add_argument("--rows", type=int, default=500, help="held-out rows of each task")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    policy = load_policy(ModelConfig(path=arguments.model), select_device(Device.auto), Precision.auto)
    data = load_evaluation_data(DataConfig(), seed=0)
    players, arbiters = {}, {}
    with ExitStack() as stack:
        pool = stack.enter_context(EnginePool(EngineConfig()))
        measure = MoveEvaluations(load_cache(""), pool, nodes=MEASURE_NODES)
        for name, make in known_players(arguments.model, policy, stack).items():
            players[name] = table_of(player_suites(make, data, measure, arguments))
            print(f"{name}: done", flush=True)
    for name, complete in known_arbiters(arguments.model, policy).items():
        arbiters[name] = table_of(arbiter_suites(complete, data, arguments))
        print(f"{name}: done", flush=True)
    console = Console(width=200)
    console.print(as_table(OF_PLAYERS, players))
    console.print(as_table(OF_ARBITERS, arbiters))
    if arguments.output:
        tables = {name: to_json(table) for name, table in (players | arbiters).items()}
        arguments.output.write_text(json.dumps(tables, indent=2) + "\n")


def known_players(model: str, policy: Policy, stack: ExitStack) -> dict[str, MakePlayer]:
    generator = make_generator(policy, GeneratorConfig())
    stockfish = stack.enter_context(engine_player(OpponentConfig(skill=FULL_SKILL)))
    return {
        "random mover": lambda decoding, seed: RandomPlayer(seed),
        "most valuable capture": lambda decoding, seed: CapturePlayer(),
        "exchange rule": lambda decoding, seed: ExchangePlayer(),
        model: lambda decoding, seed: ModelPlayer(generator, policy.tokenizer, decoding, seed),
        "Stockfish, 1000 nodes": lambda decoding, seed: stockfish,
    }


def known_arbiters(model: str, policy: Policy) -> dict[str, Complete]:
    generator = make_generator(policy, GeneratorConfig())
    return {
        "no move changes anything": lambda examples: [unchanged(example) for example in examples],
        f"{model}, as arbiter": partial(greedy_completions, generator, policy.tokenizer),
        "python-chess": lambda examples: [
            render_environment(environment_truth(parse_environment_prompt(example.prompt))) for example in examples
        ],
    }


def unchanged(example: Example) -> str:
    """Return a completion with the unchanged position, the reward of an ordinary move, and no end of the game."""
    return render_environment(Transition(parse_prompt(example.prompt).fen, 0.001, False, False))


def move_alone(player: Player, examples: Sequence[Example]) -> list[str]:
    """Return a player's moves as completions of policy prompts: each the only candidate and the best move."""
    fens = [parse_prompt(example.prompt).fen for example in examples]
    moves = player.choose([parse_fen(fen) for fen in fens], range(len(fens)))
    return [render_policy(PolicyCompletion((move,), (0.0,), move), fen) for move, fen in zip(moves, fens, strict=True)]


def player_suites(
    make: MakePlayer, data: EvaluationData, measure: MoveEvaluations, arguments: argparse.Namespace
) -> Iterator[Suite]:
    """Yield the suites of a player: self-play and won positions with the published decoding, the others greedy."""
    games = SelfplayConfig(games=arguments.games)
    match = MatchConfig("stockfish", illegal=IllegalRule.loses, pairs=arguments.pairs, max_plies=arguments.plies)
    setting = MatchSetting(partial(open_referee, EngineConfig()))
    greedy, rows, trained = make(DecodingConfig(), 0), arguments.rows, data.trained
    complete = partial(move_alone, greedy)
    yield held_out_suite("policy", data.held_out, complete, trained=trained, most=rows, measures=MoveMeasures(measure))
    yield mate_in_one_suite(greedy, read_mates(arguments.mates))
    yield selfplay_suite(make(games.decoding, 0), games)
    yield match_suite(lambda _seed: greedy, partial(stockfish_opponent, OPPONENT, 0), match, setting)
    yield conversion_suite(partial(make, games.decoding), ConversionConfig(positions=arguments.positions))


def arbiter_suites(complete: Complete, data: EvaluationData, arguments: argparse.Namespace) -> Iterator[Suite]:
    yield held_out_suite("environment", data.held_out, complete, trained=data.trained, most=arguments.rows)


def table_of(suites: Iterable[Suite]) -> dict[str, Measure]:
    """Return the measures of all keys of the suites, over all rows."""
    tables = (suite_table(suite, [row for rows in suite.rows(0) for row in rows]) for suite in suites)
    return {key: measure for table in tables for key, measure in table.items()}


def as_table(keys: Sequence[str], tables: dict[str, dict[str, Measure]]) -> Table:
    table = Table(Column("key", no_wrap=True), *tables)
    for key in keys:
        table.add_row(key, *cells(tables.values(), key))
    return table


def cells(tables: Iterable[dict[str, Any]], key: str) -> Iterator[str]:
    for table in tables:
        measure = table[key]
        yield f"{measure.value:.4f} \\[{measure.low:.4f}, {measure.high:.4f}]"


if __name__ == "__main__":
    main()
