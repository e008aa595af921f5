"""Builders of the suites of `rookworld evaluate` from its configuration."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ..errors import UserError, prefixed
from ..evaluation.acpl import DEPTHS, NODES, acpl_opponent, acpl_suite, planned_games, stockfish_engines
from ..evaluation.adjudication import OpenReferee, open_referee
from ..evaluation.completions import MoveMeasures, greedy_completions, held_out_suite
from ..evaluation.config import Decoding
from ..evaluation.conversion import Defender, conversion_suite, defending_engine
from ..evaluation.engine_player import OpponentConfig, engine_player
from ..evaluation.label_loss import label_loss_suite, label_losses
from ..evaluation.legal_choice import choice_measure, decoding_of, model_player, written_by_default
from ..evaluation.llm_chess import llm_chess_suite
from ..evaluation.match import (
    RULES,
    STOCKFISH,
    MakePlayer,
    MatchConfig,
    MatchSetting,
    OpenPlayer,
    kept_open,
    match_suite,
    stockfish_opponent,
    with_length,
)
from ..evaluation.mate_in_one import mate_in_one_suite
from ..evaluation.players import DecodingConfig, Player, published_decoding
from ..evaluation.puzzles import choose_puzzles, puzzle_suite
from ..evaluation.selfplay import selfplay_suite
from ..evaluation.suite import Suite, SuiteName
from ..model.device import select_device
from ..model.loading import ModelConfig, load_policy
from ..model.policy import Policy
from ..model.weights import checksum
from ..rewards.move_evaluations import MoveEvaluations
from ..rollout.generator import Generator
from ..stockfish.engine import EngineConfig
from ..tasks import Task, all_tasks
from ..tasks.corpus import example_key
from ..training.data import EvaluationData, evaluation_rows, unseen_mates
from .build import warn_of_weights
from .config import EvaluateConfig
from .generators import config_for_second_model, make_generator

# Suites that count illegal moves, in which a model writes its moves by default, and those in which it chooses.
WRITING = (SuiteName.mate_in_one, SuiteName.puzzles, SuiteName.selfplay, SuiteName.llm_chess, SuiteName.acpl)
CHOOSING = (SuiteName.match, SuiteName.conversion)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model under evaluation, with its data and configuration."""

    config: EvaluateConfig
    data: EvaluationData
    policy: Policy
    generator: Generator
    """Generator whose weights are those of `policy`."""
    evaluations: MoveEvaluations | None = None
    """Move evaluations behind `policy/win_probability_loss`."""


def load_model(config: EvaluateConfig, path: str) -> Policy:
    """Load a model with the device and precision of this evaluation; a line names weights that are not finite.

    Raises UserError.
    """
    policy = load_policy(ModelConfig(path=path), select_device(config.device), config.precision)
    warn_of_weights(policy, path)
    return policy


def build_suites(evaluated: Evaluated) -> list[Suite]:
    """Return the configured suites, in their order. Raises UserError if one of them has no items."""
    builders = dict(BUILDERS) | {task.name: partial(_held_out, task.name) for task in all_tasks()}
    suites = [builders[name](evaluated) for name in evaluated.config.suites]
    for suite in suites:
        if not suite.items:
            raise UserError(f"suites: expected items of {suite.name}, got none: {dict(suite.facts)}")
    return [_with_decoding(evaluated, suite) for suite in suites]


def _with_decoding(evaluated: Evaluated, suite: Suite) -> Suite:
    """Return the suite with the fact how its moves are chosen, if a model plays in it."""
    if suite.name not in (*WRITING, *CHOOSING):
        return suite
    decoding = decoding_of(evaluated.policy, _playing_task(evaluated), _configured_decoding(evaluated, suite.name))
    return replace(suite, facts={**suite.facts, "decoding": str(decoding)})


def _held_out(task: str, evaluated: Evaluated) -> Suite:
    data, evaluations = evaluated.data, evaluated.evaluations
    choose = choice_measure(evaluated.policy, evaluated.config.evaluation.decoding)
    return held_out_suite(
        task,
        data.held_out,
        partial(greedy_completions, evaluated.generator, evaluated.policy.tokenizer),
        trained=data.trained,
        most=evaluated.config.evaluation.rows,
        measures=None if evaluations is None else MoveMeasures(evaluations, choose),
    )


def _mate_in_one(evaluated: Evaluated) -> Suite:
    path = evaluated.config.evaluation.mates
    if not path:
        raise UserError("evaluation.mates: expected a file, which suites=[mate_in_one] needs, got none")
    kept, left_out = unseen_mates(path, evaluated.data.trained)
    facts = {"file": path, "positions_in_training": left_out}
    player = _player(evaluated, SuiteName.mate_in_one, DecodingConfig())
    return mate_in_one_suite(player, kept, prompt=_playing_task(evaluated).prompt, facts=facts)


def _puzzles(evaluated: Evaluated) -> Suite:
    config = evaluated.config.evaluation
    if not config.puzzles:
        raise UserError("evaluation.puzzles: expected a file, which suites=[puzzles] needs, got none")
    with prefixed("evaluation.puzzles", ValueError, OSError):
        chosen = choose_puzzles(config.puzzles, evaluated.data.trained, config.rows)
    facts = {"file": config.puzzles, "positions_in_training": chosen.left_out}
    player = _player(evaluated, SuiteName.puzzles, DecodingConfig())
    return puzzle_suite(player, chosen.puzzles, prompt=_playing_task(evaluated).prompt, facts=facts)


def _selfplay(evaluated: Evaluated) -> Suite:
    config = evaluated.config
    player = _player(evaluated, SuiteName.selfplay, config.selfplay.decoding)
    return selfplay_suite(player, config.selfplay, seed=config.seed, name=config.model.path)


def _referee(evaluated: Evaluated) -> tuple[OpenReferee, str]:
    """Return the referee of matches, and its name. Raises UserError if the configured engine does not work."""
    stockfish = evaluated.config.stockfish
    referee = partial(open_referee, EngineConfig(**asdict(stockfish)))
    with referee() as opened:
        if stockfish.path and opened.reason:
            raise UserError(f"stockfish: {opened.reason}")
        return referee, opened.name


def _conversion(evaluated: Evaluated) -> Suite:
    """Return the suite. Raises UserError if the engine that defends does not work."""
    config, path = evaluated.config.conversion, evaluated.config.stockfish.path
    decoding = evaluated.config.match.decoding
    facts: dict[str, Any] = {"drawn": asdict(decoding)}
    if Defender.engine in config.defenders:
        facts["engine"] = _engine_name(defending_engine(path), "conversion.defenders")
    ours = _players(evaluated, SuiteName.conversion, decoding)
    name, seed = evaluated.config.model.path, evaluated.config.seed
    return conversion_suite(ours, config, engine_path=path, seed=seed, name=name, facts=facts)


def _engine_name(opponent: OpponentConfig, where: str) -> str:
    """Start the engine and return its name. This reports a faulty configuration before the evaluation."""
    try:
        with engine_player(opponent) as player:
            return str(player.engine.id.get("name", "engine"))
    except (ValueError, OSError) as error:
        raise UserError(f"{where}: {error}") from error


def _player(evaluated: Evaluated, suite: str, decoding: DecodingConfig) -> Player:
    return _players(evaluated, suite, decoding)(evaluated.config.seed)


def _players(evaluated: Evaluated, suite: str, decoding: DecodingConfig) -> MakePlayer:
    return _players_of(evaluated, suite, decoding, evaluated.policy, evaluated.generator)


def _players_of(
    evaluated: Evaluated, suite: str, decoding: DecodingConfig, policy: Policy, generator: Generator
) -> MakePlayer:
    """Return a function that makes a model's player in a suite from a seed."""
    task, how = _playing_task(evaluated), _configured_decoding(evaluated, suite)
    return lambda seed: model_player(policy, generator, decoding, seed, task, how)


def _configured_decoding(evaluated: Evaluated, suite: str) -> Decoding:
    configured = evaluated.config.evaluation.decoding
    return written_by_default(configured) if suite in WRITING else configured


def _playing_task(evaluated: Evaluated) -> Task:
    task = evaluated.config.data.player()
    if task is None:
        raise UserError("data.tasks: expected a task that names a move, which games and puzzles need, got none")
    return task


def _match(evaluated: Evaluated) -> Suite:
    """Return the suite. Raises UserError if the opponent cannot be loaded or started."""
    config, seed = with_length(evaluated.config.match, evaluated.config.evaluation), evaluated.config.seed
    ours = _players(evaluated, SuiteName.match, config.decoding)
    referee, adjudicator = _referee(evaluated)
    opponent, name, facts = _opponent(evaluated, config)
    setting = MatchSetting(
        referee,
        seed,
        (evaluated.config.model.path, name),
        facts={"adjudicator": adjudicator, **facts},
    )
    return match_suite(ours, opponent, config, setting)


def _opponent(evaluated: Evaluated, config: MatchConfig) -> tuple[OpenPlayer, str, dict[str, str]]:
    """Return the opponent of a match, its name in records and facts about it. Raises UserError."""
    if config.opponent in RULES:
        return kept_open(RULES[config.opponent]), config.opponent, {}
    if config.opponent == STOCKFISH:
        engine = OpponentConfig(**asdict(config.stockfish), path=evaluated.config.stockfish.path)
        name = _engine_name(engine, "match.stockfish")
        return partial(stockfish_opponent, engine, evaluated.config.seed), name, {"engine": name}
    try:
        policy = load_model(evaluated.config, config.opponent)
        generator = make_generator(policy, config_for_second_model(evaluated.config.generator))
    except UserError as error:
        wanted = f"{', '.join(RULES)}, {STOCKFISH} or a model"
        raise UserError(f"match.opponent: expected {wanted}, got {config.opponent}: {error}") from error
    generator.sync(policy.model)
    theirs = _players_of(evaluated, SuiteName.match, config.decoding, policy, generator)
    return kept_open(theirs), config.opponent, {"opponent": checksum(policy.model)}


def _llm_chess(evaluated: Evaluated) -> Suite:
    config = evaluated.config
    player = _players(evaluated, SuiteName.llm_chess, published_decoding())
    return llm_chess_suite(player, games=config.evaluation.rows, seed=config.seed, name=config.model.path)


def _acpl(evaluated: Evaluated) -> Suite:
    """Return the suite. Raises UserError if Stockfish does not work."""
    config = evaluated.config
    nodes = config.evaluation.nodes or NODES
    engines = stockfish_engines(EngineConfig(**asdict(config.stockfish)), nodes, config.seed)
    name = _engine_name(acpl_opponent(config.stockfish.path, DEPTHS[0]), "suites=[acpl]")
    player = _players(evaluated, SuiteName.acpl, published_decoding())
    return acpl_suite(
        player,
        engines,
        planned_games(config.evaluation.rows),
        seed=config.seed,
        name=config.model.path,
        facts={"engine": name, "nodes": nodes},
    )


def _label_loss(evaluated: Evaluated) -> Suite:
    held_out, trained = evaluated.data.held_out, evaluated.data.trained
    kept = tuple(row for row in held_out if example_key(row) not in trained)
    rows = evaluation_rows(kept, evaluated.config.evaluation.rows)
    facts = {"rows_in_training": len(held_out) - len(kept)}
    return label_loss_suite(partial(label_losses, evaluated.policy), rows, facts=facts)


BUILDERS: dict[str, Callable[[Evaluated], Suite]] = {
    SuiteName.mate_in_one: _mate_in_one,
    SuiteName.selfplay: _selfplay,
    SuiteName.match: _match,
    SuiteName.label_loss: _label_loss,
    SuiteName.conversion: _conversion,
    SuiteName.puzzles: _puzzles,
    SuiteName.llm_chess: _llm_chess,
    SuiteName.acpl: _acpl,
}
