"""The suite `llm_chess`: games with Black against a random player, by the rules of the LLM Chess leaderboard.

A game that reaches 200 plies is drawn. A third illegal attempt at one move loses it. Unlike the leaderboard's models, a
player is not asked whether it wants to see the board or the legal moves first.
Source: github.com/maxim-saplin/llm_chess, `llm_chess.py`, `custom_agents.py` and `aggregate_models_to_csv.py`;
arXiv 2512.01992.
"""

from collections.abc import Sequence
from typing import Any

import chess

from ..board.evals import material_balance
from .games import End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from .match import OPPONENT_SEED, MakePlayer
from .players import RandomPlayer, RetryingPlayer
from .suite import Suite, SuiteName, by_chunks
from .table import Row

GAMES, MAX_PLIES = 30, 200
# Illegal attempts at one move that lose the game, here and in AIcrowd's challenge.
MISTAKES = 3
# Games in a chunk. An interruption loses at most one chunk.
SIDE_BY_SIDE = 15


def forgiven_player(player: MakePlayer, seed: int) -> RetryingPlayer:
    """Return a player that samples again after an illegal move, and plays the last of MISTAKES illegal ones."""
    return RetryingPlayer(player(seed), player(seed + 1), MISTAKES - 1, seed, rescue=False)


def llm_chess_suite(player: MakePlayer, *, games: int = GAMES, seed: int = 0, name: str = "model") -> Suite:
    """Return the suite, with a row per game whose record is the game. `games` above GAMES are not played.

    `seed` decides the random player's moves and the player's samples. `name` is the player's name in records. Values:
    `llm_chess/won`, `/drawn`, `/lost`; `/illegal`, illegal attempts over the plies of both sides, which the leaderboard
    reports per 1,000; `/material`, the player's pieces minus the opponent's at the end, in pawns; `/plies`; and
    `/ended/<reason>` for the reason of the game's end.
    """
    ours, theirs = forgiven_player(player, seed), RandomPlayer(seed + OPPONENT_SEED)

    def answer(_first: int, chunk: Sequence[Any]) -> list[Row]:
        played = play([Pairing(game.number, game.board(), theirs, ours) for game in chunk], MAX_PLIES)
        headers = {"Event": SuiteName.llm_chess.value, "White": "random", "Black": name}
        return [
            Row(game.number, item, _values(game, ours.mistakes[game.number]), pgn_text(game, headers))
            for item, game in zip(chunk, played, strict=True)
        ]

    planned = [PlannedGame(number, Start.standard, seed) for number in range(min(GAMES, games))]
    return Suite(SuiteName.llm_chess, planned, by_chunks(planned, SIDE_BY_SIDE, answer), SIDE_BY_SIDE)


def outcome_values(game: PlayedGame, color: chess.Color) -> dict[str, float]:
    """Return `won`, `drawn`, `lost` and `ended/<reason>` of a game, each 1.0 or 0.0, for the player of `color`."""
    score = game.score(color)
    outcome = {"won": float(score == 1.0), "drawn": float(score == 0.5), "lost": float(score == 0.0)}
    return outcome | {f"ended/{end}": float(game.end is end) for end in End}


def _values(game: PlayedGame, mistakes: int) -> dict[str, float]:
    # The leaderboard also counts the move that stays illegal.
    tried = game.plies + (game.end is End.illegal_move)
    values = outcome_values(game, chess.BLACK) | {
        "illegal": mistakes / tried,
        "material": float(material_balance(game.board, chess.BLACK)),
        "plies": float(game.plies),
    }
    return {f"llm_chess/{key}": value for key, value in values.items()}
