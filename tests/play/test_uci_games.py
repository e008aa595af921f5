"""A hundred short games against Stockfish, with clocks: no illegal move, no move too late, no answer that is missing.

The figures are printed: `pytest -m slow -s tests/play/test_uci_games.py`.
"""

import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import chess
import chess.engine
import pytest

from rookworld_rlvr.board.openings import drawn_opening

GAMES, PLIES, AT_A_TIME = 100, 8, 3
# Clocks of each side: seconds for the game, and for each move. Long enough for a machine on which much else runs: what
# a move takes is printed, not tested.
CLOCK_S, INCREMENT_S = 60.0, 5.0


@dataclass(slots=True)
class Tally:
    """Counts and times of the games of one share."""

    endings: Counter[str] = field(default_factory=Counter)
    """Number of games by result and ending."""
    seconds: list[float] = field(default_factory=list)
    """Time of each move of the model."""
    time_losses: int = 0


def play(model: chess.engine.SimpleEngine, other: chess.engine.SimpleEngine, number: int, tally: Tally) -> None:
    """Play a game and count it. python-chess raises an EngineError for an illegal move or an engine that has died."""
    board, clocks, model_color = drawn_opening(number, 0), {chess.WHITE: CLOCK_S, chess.BLACK: CLOCK_S}, number % 2 == 0
    first = len(board.move_stack)
    while not board.is_game_over(claim_draw=True) and len(board.move_stack) < first + PLIES:
        limit = chess.engine.Limit(
            white_clock=clocks[chess.WHITE],
            black_clock=clocks[chess.BLACK],
            white_inc=INCREMENT_S,
            black_inc=INCREMENT_S,
            depth=None if board.turn == model_color else 1,
        )
        started = time.perf_counter()
        move = (model if board.turn == model_color else other).play(board, limit, game=number).move
        spent_s = time.perf_counter() - started
        if board.turn == model_color:
            tally.seconds.append(spent_s)
            tally.time_losses += spent_s > clocks[board.turn]
        assert move is not None and move in board.legal_moves
        clocks[board.turn] += INCREMENT_S - spent_s
        board.push(move)
    tally.endings[ending(board, model_color)] += 1


def ending(board: chess.Board, model_color: chess.Color) -> str:
    """Return the model's result and how the game ended."""
    outcome = board.outcome(claim_draw=True)
    if outcome is None:
        return "stopped at the ply limit"
    result = "drawn" if outcome.winner is None else "won" if outcome.winner == model_color else "lost"
    return f"{result} by {outcome.termination.name.lower().replace('_', ' ')}"


def play_share(stockfish: str, first: int) -> Tally:
    """Play every AT_A_TIME-th game from `first` on, each in the same two processes, and return what happened."""
    tally, command = Tally(), [sys.executable, "-m", "rookworld_rlvr", "uci"]
    with (
        chess.engine.SimpleEngine.popen_uci(command, timeout=60) as model,
        chess.engine.SimpleEngine.popen_uci(stockfish) as other,
    ):
        other.configure({"Skill Level": 0, "Threads": 1})
        # The model is loaded behind the answer to `uci`. A tournament waits for `readyok` before it starts a clock.
        model.ping()
        for number in range(first, GAMES, AT_A_TIME):
            play(model, other, number, tally)
            print(f"game {number}: {dict(tally.endings)}", flush=True)
    return tally


@pytest.mark.slow(minutes=5)
def test_hundred_games_have_no_forfeit_no_time_loss_and_no_illegal_move(stockfish: str) -> None:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        shares = list(pool.map(lambda first: play_share(stockfish, first), range(AT_A_TIME)))
    endings = sum((share.endings for share in shares), start=Counter())
    seconds = [second for share in shares for second in share.seconds]
    slowest, mean = max(seconds), sum(seconds) / len(seconds)
    print(f"\n{dict(endings)}; {len(seconds)} moves of the model, {mean:.2f} s each, {slowest:.2f} s at most")
    assert endings.total() == GAMES and sum(share.time_losses for share in shares) == 0
