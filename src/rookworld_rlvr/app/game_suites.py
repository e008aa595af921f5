"""The suites in which moves are played, from a configuration: mates, puzzles, games, matches, closed worlds."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..board.fen import parse_fen, position_key
from ..evaluation import Row
from ..evaluation.closed_world import SIDE_BY_SIDE as WORLDS
from ..evaluation.closed_world import Mover, closed_world, closed_world_curve, closed_world_measures
from ..evaluation.engine_match import PAIRS_SIDE_BY_SIDE, engine_match, engine_match_measures
from ..evaluation.games import PlayedGame, Start, append_pgn, pgn_text
from ..evaluation.mate_in_one import CHUNK_ROWS as MATES
from ..evaluation.mate_in_one import mate_in_one, read_mates
from ..evaluation.players import DecodingConfig, ModelPlayer, OpponentConfig, Player, RandomPlayer, engine_player
from ..evaluation.puzzles import CHUNK_ROWS as PUZZLES
from ..evaluation.puzzles import puzzles, read_puzzles
from ..evaluation.selfplay import SIDE_BY_SIDE as GAMES
from ..evaluation.selfplay import selfplay, selfplay_measures
from ..evaluation.suite import Suite, SuiteName
from ..training.errors import UserError
from .evaluated import Evaluated


def mates_suite(evaluated: Evaluated) -> Suite:
    """`mate_in_one`, less positions that stand in the training source."""
    config = evaluated.config.mate_in_one
    found = _read(SuiteName.mate_in_one, config.path, read_mates)
    trained = evaluated.data.trained
    kept = [mate for mate in found if not _is_trained([mate.fen], trained)]
    asked = kept[: config.limit]
    player = _player(evaluated, DecodingConfig())
    facts = {"file": config.path, "positions_in_training": len(found) - len(kept)}
    items = [f"{mate.fen} {mate.best}" for mate in asked]
    return Suite(SuiteName.mate_in_one, items, lambda done: mate_in_one(player, asked, done=done), MATES, facts)


def puzzles_suite(evaluated: Evaluated) -> Suite:
    """`puzzles`, less those with a turn that stands in the training source."""
    config = evaluated.config.puzzles
    found = _read(SuiteName.puzzles, config.path, read_puzzles)
    kept = [puzzle for puzzle in found if not _is_trained([fen for fen, _ in puzzle.steps], evaluated.data.trained)]
    asked = kept[: config.limit]
    player = _player(evaluated, DecodingConfig())
    facts = {"file": config.path, "puzzles_in_training": len(found) - len(kept)}
    rows = partial(puzzles, player, asked, themes=config.themes)
    items = [puzzle.line for puzzle in asked]
    return Suite(SuiteName.puzzles, items, lambda done: rows(done=done), PUZZLES, facts)


def selfplay_suite(evaluated: Evaluated) -> Suite:
    """`selfplay`."""
    config, name = evaluated.config.selfplay, SuiteName.selfplay
    player, model, seed = _player(evaluated, config.decoding), evaluated.config.model.path, evaluated.config.seed
    save = _pgn_writer(name, config.pgn, lambda game: {"White": model, "Black": model})
    return Suite(
        name,
        _games(config.games, config.start, seed),
        lambda done: selfplay(player, config, seed=seed, done=done, on_games=save),
        GAMES,
        measures=selfplay_measures,
    )


def closed_world_suite(evaluated: Evaluated) -> Suite:
    """`closed_world`, with its curve."""
    config = evaluated.config.closed_world
    seed, tokenizer = evaluated.config.seed, evaluated.policy.tokenizer
    mover = RandomPlayer(seed) if config.mover is Mover.random else _player(evaluated, config.decoding)
    return Suite(
        SuiteName.closed_world,
        _games(config.games, config.start, seed),
        lambda done: closed_world(evaluated.generator, tokenizer, mover, config, seed=seed, done=done),
        WORLDS,
        measures=closed_world_measures,
        conclude=lambda rows: {"curve": [asdict(point) for point in closed_world_curve(rows)]},
    )


def engine_match_suite(evaluated: Evaluated) -> Suite:
    """`engine_match`. Raises UserError where there is no engine, or none of that strength."""
    config, seed, name = evaluated.config.engine_match, evaluated.config.seed, SuiteName.engine_match
    player, model = _player(evaluated, config.decoding), evaluated.config.model.path
    engine = _engine_name(config.opponent)

    def names(game: PlayedGame) -> dict[str, str]:
        sides = (model, engine) if game.number % 2 == 0 else (engine, model)
        return dict(zip(("White", "Black"), sides, strict=True))

    save = _pgn_writer(name, config.pgn, names)

    def rows(done: int) -> Iterator[list[Row]]:
        with engine_player(config.opponent, seed) as opponent:
            yield from engine_match(player, opponent, config, seed=seed, done=done, on_games=save)

    asked = [Start.openings.board(pair, seed).fen() for pair in range(config.pairs)]
    facts = {"engine": engine, "opponent": asdict(config.opponent)}
    return Suite(name, asked, rows, PAIRS_SIDE_BY_SIDE, facts, measures=engine_match_measures)


def _player(evaluated: Evaluated, decoding: DecodingConfig) -> Player:
    return ModelPlayer(evaluated.generator, evaluated.policy.tokenizer, decoding, evaluated.config.seed)


def _games(games: int, start: Start, seed: int) -> list[str]:
    return [f"game {number} from {start.board(number, seed).fen()}" for number in range(games)]


def _read(name: SuiteName, path: str, read: Callable[[str], list[Any]]) -> list[Any]:
    if not path:
        raise UserError(f"{name}.path: expected a file, as suites={[str(name)]} asks for it, got none")
    try:
        return read(path)
    except (ValueError, OSError) as error:
        raise UserError(f"{name}.path: {error}") from error


def _is_trained(fens: Sequence[str], trained: Collection[str]) -> bool:
    return any(position_key(parse_fen(fen)) in trained for fen in fens)


def _pgn_writer(
    name: SuiteName, path: str, players: Callable[[PlayedGame], dict[str, str]]
) -> Callable[[Sequence[PlayedGame]], None]:
    """What adds games to the file, or nothing where there is none."""
    if path and not (Path(path).resolve().parent.is_dir() and os.access(Path(path).resolve().parent, os.W_OK)):
        raise UserError(f"{name}.pgn: expected a file in a folder that can be written to, got {path}")

    def save(games: Sequence[PlayedGame]) -> None:
        if path:
            append_pgn(Path(path), [pgn_text(game, {"Event": name.value, **players(game)}) for game in games])

    return save


def _engine_name(opponent: OpponentConfig) -> str:
    """What the engine calls itself; it is begun and asked before anything is evaluated."""
    try:
        with engine_player(opponent) as player:
            return str(player.engine.id.get("name", "engine"))
    except (ValueError, OSError) as error:
        raise UserError(f"engine_match.opponent: {error}") from error
