"""The suites in which moves are played, from a configuration: mates, puzzles, games, matches, the learned world."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ..board.fen import parse_fen, position_key
from ..errors import UserError
from ..evaluation.engine_match import engine_match_suite
from ..evaluation.mate_in_one import mate_in_one_suite, read_mates
from ..evaluation.players import DecodingConfig, ModelPlayer, OpponentConfig, Player, RandomPlayer, engine_player
from ..evaluation.puzzles import puzzles_suite, read_puzzles
from ..evaluation.selfplay import selfplay_suite
from ..evaluation.suite import Suite, SuiteName
from ..evaluation.world_model import WorldPlayer, world_model_suite
from .evaluated import Evaluated


def mates(evaluated: Evaluated) -> Suite:
    """`mate_in_one`, less positions that stand in the training source."""
    config = evaluated.config.mate_in_one
    found = _read(SuiteName.mate_in_one, config.path, read_mates)
    kept = [mate for mate in found if not _is_trained([mate.fen], evaluated.data.trained)]
    facts = {"file": config.path, "positions_in_training": len(found) - len(kept)}
    return mate_in_one_suite(_player(evaluated, DecodingConfig()), kept[: config.limit], facts=facts)


def puzzles(evaluated: Evaluated) -> Suite:
    """`puzzles`, less those with a turn that stands in the training source."""
    config = evaluated.config.puzzles
    found = _read(SuiteName.puzzles, config.path, read_puzzles)
    kept = [puzzle for puzzle in found if not _is_trained([fen for fen, _ in puzzle.steps], evaluated.data.trained)]
    facts = {"file": config.path, "puzzles_in_training": len(found) - len(kept)}
    player = _player(evaluated, DecodingConfig())
    return puzzles_suite(player, kept[: config.limit], themes=config.themes, facts=facts)


def selfplay(evaluated: Evaluated) -> Suite:
    """`selfplay`."""
    config = evaluated.config
    player = _player(evaluated, config.selfplay.decoding)
    return selfplay_suite(player, config.selfplay, seed=config.seed, name=config.model.path)


def world_model(evaluated: Evaluated) -> Suite:
    """`world_model`."""
    config, seed = evaluated.config.world_model, evaluated.config.seed
    player = RandomPlayer(seed) if config.player is WorldPlayer.random else _player(evaluated, config.decoding)
    return world_model_suite(evaluated.generator, evaluated.policy.tokenizer, player, config, seed=seed)


def engine_match(evaluated: Evaluated) -> Suite:
    """`engine_match`. Raises UserError where there is no engine, or none of that strength."""
    config, seed = evaluated.config.engine_match, evaluated.config.seed
    engine = _engine_name(config.opponent)
    return engine_match_suite(
        _player(evaluated, config.decoding),
        partial(engine_player, config.opponent, seed),
        config,
        seed=seed,
        names=(evaluated.config.model.path, engine),
        facts={"engine": engine, "opponent": asdict(config.opponent)},
    )


def _player(evaluated: Evaluated, decoding: DecodingConfig) -> Player:
    return ModelPlayer(evaluated.generator, evaluated.policy.tokenizer, decoding, evaluated.config.seed)


def _read(name: SuiteName, path: str, read: Callable[[str], list[Any]]) -> list[Any]:
    if not path:
        raise UserError(f"{name}.path: expected a file, as suites={[str(name)]} asks for it, got none")
    try:
        return read(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{name}.path: expected text, got {path}: {error}") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{name}.path: {error}") from error


def _is_trained(fens: Sequence[str], trained: Collection[str]) -> bool:
    return any(position_key(parse_fen(fen)) in trained for fen in fens)


def _engine_name(opponent: OpponentConfig) -> str:
    """What the engine calls itself; it is begun and asked before anything is evaluated."""
    try:
        with engine_player(opponent) as player:
            return str(player.engine.id.get("name", "engine"))
    except (ValueError, OSError) as error:
        raise UserError(f"engine_match.opponent: {error}") from error
