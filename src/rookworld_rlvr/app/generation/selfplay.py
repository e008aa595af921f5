"""Rows of games that a model plays against itself.

Games are sampled together in chunks of fixed size and logged when a chunk is complete, so an interrupted command
resumes after the last complete chunk. Samples depend on the seed and the games' numbers, and by rounding on the chunk.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import chess

from ...board.fen import position_key
from ...board.moves import is_legal_uci
from ...evaluation.games import End, Pairing, PlayedGame, Start, pgn_text, play
from ...evaluation.players import DecodingConfig, ModelPlayer, RandomPlayer, best_move_text
from ...files import make_folder, write_lines
from ...model.device import Device, Precision, select_device
from ...model.policy import ModelConfig, Policy, load_policy
from ...model.weights import checksum
from ...rollout.generator import GeneratorConfig
from ...tasks.played import GameRecord, Turn, position_rows, transition_lines, winner_lines
from ...training.data import held_out_positions
from ..generators import make_generator
from .game_log import GameLog
from .generate import CARD_FILE
from .rows import Rows, row_of_line

# Games of a chunk: an interrupt loses at most this many.
SIDE_BY_SIDE = 16
LOG_FILE = "games.jsonl"


@dataclass(frozen=True, slots=True)
class SelfplayRequest:
    """Options of `rookworld data selfplay`."""

    model: str
    """A folder, a hub name, or `tiny`."""
    games: int
    seed: int
    decoding: DecodingConfig
    max_plies: int
    opening_fraction: float
    """Share of the games that begin after an opening; the others begin at the standard starting position."""
    rescue: bool
    """Play a random legal move where the model's is illegal, instead of ending the game."""
    folder: Path
    excluded: frozenset[str]
    """Positions that no row may begin from, beside those of the held-out rows that ship."""


class RecordingPlayer:
    """Player that keeps the model's completions. See `Player`."""

    def __init__(self, model: ModelPlayer, rescue: RandomPlayer | None) -> None:
        self._model, self._rescue = model, rescue
        self.turns: defaultdict[int, list[Turn]] = defaultdict(list)
        """The turns of each game, by its number."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        completions = self._model.answers(boards, numbers)
        return [self._choose(*turn) for turn in zip(boards, numbers, completions, strict=True)]

    def _choose(self, board: chess.Board, number: int, completion: str) -> str:
        written = played = best_move_text(completion)
        if not is_legal_uci(board, written):
            played = self._rescue.choose([board], [number])[0] if self._rescue else ""
        self.turns[number].append(Turn(completion, written, played))
        return played or written


def play_to_folder(request: SelfplayRequest, progress: Callable[[int], None]) -> dict[str, int]:
    """Play missing games, write every file, return the rows of each. Raises UserError, GameLogError or OSError."""
    policy = load_policy(ModelConfig(path=request.model), select_device(Device.auto), Precision.auto)
    make_folder(request.folder, "--out")
    with GameLog(request.folder / LOG_FILE, _header(request, policy)) as log:
        _play_missing(request, policy, log, progress)
        records = [GameRecord.from_json(rows[0]) for rows in log.games()][: request.games]
    return _write(request, records)


def _header(request: SelfplayRequest, policy: Policy) -> dict[str, str | int]:
    """Everything that decides the games."""
    return {
        "weights": checksum(policy.model),
        "seed": request.seed,
        "temperature": str(request.decoding.temperature),
        "top_k": request.decoding.top_k,
        "max_plies": request.max_plies,
        "opening_fraction": str(request.opening_fraction),
        "rescue": int(request.rescue),
        "side_by_side": SIDE_BY_SIDE,
    }


def _play_missing(request: SelfplayRequest, policy: Policy, log: GameLog, progress: Callable[[int], None]) -> None:
    generator = make_generator(policy, GeneratorConfig(batch_size=SIDE_BY_SIDE))
    model = ModelPlayer(generator, policy.tokenizer, request.decoding, request.seed)
    progress(min(log.finished, request.games))
    while log.finished < request.games:
        # The games of a chunk are sampled together, so an incomplete chunk is played again.
        first = log.finished // SIDE_BY_SIDE * SIDE_BY_SIDE
        for record in _chunk(request, model, first)[log.finished - first :]:
            log.append([record.to_json()])
        progress(min(log.finished, request.games))


def _chunk(request: SelfplayRequest, model: ModelPlayer, first: int) -> list[GameRecord]:
    player = RecordingPlayer(model, RandomPlayer(request.seed) if request.rescue else None)
    numbers = range(first, first + SIDE_BY_SIDE)
    starts = [_start(request, number) for number in numbers]
    pairings = [Pairing(number, start, player, player) for number, start in zip(numbers, starts, strict=True)]
    return [_record(game, player.turns[game.number]) for game in play(pairings, request.max_plies)]


def _start(request: SelfplayRequest, number: int) -> chess.Board:
    after_opening = random.Random(f"start:{request.seed}:{number}").random() < request.opening_fraction
    return (Start.openings if after_opening else Start.standard).board(number, request.seed)


def _record(game: PlayedGame, turns: Sequence[Turn]) -> GameRecord:
    opening = tuple(move.uci() for move in game.board.move_stack[: game.opening_plies])
    by_rule = game.end not in (End.illegal_move, End.ply_limit)
    winner = game.winner if game.end is End.checkmate else None
    return GameRecord(opening, tuple(turns), game.end.value, winner, by_rule and winner is None)


def _write(request: SelfplayRequest, records: Sequence[GameRecord]) -> dict[str, int]:
    """Write the corpora that have rows, and then the data card."""
    excluded = request.excluded | held_out_positions()
    files = {
        "positions.jsonl": list(_positions(records, excluded)),
        "transitions.txt": _rows(records, transition_lines, excluded),
        "winners.txt": _rows(records, winner_lines, excluded),
        "games.pgn": [_pgn(record, number, request.model) for number, record in enumerate(records)],
    }
    for name, lines in files.items():
        if lines:
            write_lines(request.folder / name, lines)
        else:
            # A file of an earlier call with fewer exclusions, for example; an empty corpus would be refused.
            (request.folder / name).unlink(missing_ok=True)
    counts = {name: len(lines) for name, lines in files.items()}
    ends = [record.end for record in records]
    card = {
        "model": request.model,
        **json.loads((request.folder / LOG_FILE).read_text().partition("\n")[0]),
        "games": len(records),
        "ends": {end: ends.count(end) for end in sorted(set(ends))},
        "rows": counts,
        "excluded_positions": len(excluded),
    }
    write_lines(request.folder / CARD_FILE, [json.dumps(card, indent=2)])
    return counts


def _positions(records: Sequence[GameRecord], excluded: frozenset[str]) -> Iterator[str]:
    """Each position once, as a line of JSON, where it was first reached."""
    seen = set(excluded)
    for number, record in enumerate(records):
        for (board, _), row in zip(record.states(), position_rows(record, number), strict=True):
            if (key := position_key(board)) not in seen:
                seen.add(key)
                yield json.dumps(row)


def _rows(
    records: Sequence[GameRecord], lines: Callable[[GameRecord], Iterator[str]], excluded: frozenset[str]
) -> list[str]:
    collected = Rows(excluded)
    for record in records:
        for line in lines(record):
            collected.add(row_of_line(line))
    return [row.line for row in collected.kept]


def _pgn(record: GameRecord, number: int, model: str) -> str:
    """The game as PGN, followed by a blank line."""
    return f"{pgn_text(_played(record, number), {'White': model, 'Black': model}).rstrip()}\n"


def _played(record: GameRecord, number: int) -> PlayedGame:
    """The recorded game; a record has no winner after an illegal move, a played game is lost by it."""
    board, end, illegal = chess.Board(), End(record.end), None
    for uci in [*record.opening, *(turn.played for turn in record.turns if turn.played)]:
        board.push_uci(uci)
    winner = record.winner
    if end is End.illegal_move:
        winner, illegal = not board.turn, record.turns[-1].written
    return PlayedGame(number, board, len(record.opening), end, winner, illegal)
