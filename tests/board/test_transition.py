import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import chess
import pytest

from rookworld_rlvr.board.transition import Transition, step


def legal(next_fen: str) -> Transition:
    return Transition(next_fen, 0.001, terminated=False, truncated=False)


def ended(next_fen: str, reward: float) -> Transition:
    return Transition(next_fen, reward, terminated=True, truncated=False)


def illegal(fen: str) -> Transition:
    return Transition(fen, -1.0, terminated=False, truncated=True)


@dataclass(frozen=True, slots=True)
class Case:
    """An action in a random game, and its transition by python-chess."""

    game: chess.Board
    """The board before the action, with all moves of the game on its stack."""
    fen: str
    uci: str
    expected: Transition


def legal_ucis(game: chess.Board) -> list[str]:
    return [move.uci() for move in game.legal_moves]


def reference(game: chess.Board, fen: str, uci: str, legal_moves: list[str]) -> Transition:
    """Return the transition by python-chess's own legal moves, `fen` and `outcome`."""
    if uci not in legal_moves:
        return illegal(fen)
    game.push_uci(uci)
    outcome, next_fen = game.outcome(claim_draw=False), game.fen()
    game.pop()
    if outcome is None:
        return legal(next_fen)
    return ended(next_fen, 0.5 if outcome.winner is None else 1.0)


def random_action(rng: random.Random, legal_moves: list[str]) -> str:
    """Return a legal move in most cases, otherwise any two squares, a misspelt legal move, or no move."""
    uci = rng.choice(legal_moves)
    match rng.choices(("legal", "squares", "misspelt"), weights=(70, 20, 10))[0]:
        case "squares":
            return "".join(rng.sample(chess.SQUARE_NAMES, 2)) + rng.choice(["", "", "q"])
        case "misspelt":
            return rng.choice([uci.upper(), uci + " ", uci[:3], uci + "k", "0000", "", "e1h1", "O-O"])
    return uci


def random_game(rng: random.Random) -> Iterator[Case]:
    """Yield actions from the start to the end of one game. Legal actions are played."""
    game, fen = chess.Board(), chess.STARTING_FEN
    while game.outcome(claim_draw=False) is None:
        legal_moves = legal_ucis(game)
        uci = random_action(rng, legal_moves)
        expected = reference(game, fen, uci, legal_moves)
        yield Case(game, fen, uci, expected)
        fen = expected.next_fen
        if not expected.truncated:
            game.push_uci(uci)


def random_games(rng: random.Random) -> Iterator[Case]:
    while True:
        yield from random_game(rng)


@pytest.mark.parametrize("transitions", [10_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_random_transitions_equal_python_chess(transitions: int) -> None:
    kinds = Counter[tuple[bool, bool]]()
    for case in islice(random_games(random.Random(20)), transitions):
        assert step(case.fen, case.uci) == case.expected
        kinds[case.expected.terminated, case.expected.truncated] += 1
    assert kinds.total() == transitions
    assert len(kinds) == 3, "legal, ended and illegal"
    assert min(kinds.values()) > transitions / 1000


@pytest.mark.parametrize(
    ("fen", "uci", "next_fen"),
    [
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 4 9", "e1g1", "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 5 9"),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 4 9", "e1c1", "r3k2r/8/8/8/8/8/8/2KR3R b kq - 5 9"),
        ("r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 4 9", "e8c8", "2kr3r/8/8/8/8/8/8/R3K2R w KQ - 5 10"),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 4 9", "a1a8", "R3k2r/8/8/8/8/8/8/4K2R b Kk - 0 9"),
        # En passant: a capture, a square that is set because it can be captured, and two that are not set.
        (
            "rnbqkbnr/ppp2ppp/8/3Pp3/8/8/PPPP1PPP/RNBQKBNR w KQkq e6 0 3",
            "d5e6",
            "rnbqkbnr/ppp2ppp/4P3/8/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 3",
        ),
        ("4k3/8/8/8/3p4/8/4P3/4K3 w - - 0 1", "e2e4", "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1"),
        (chess.STARTING_FEN, "e2e4", "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"),
        ("8/8/8/8/R2p3k/8/4P3/4K3 w - - 0 1", "e2e4", "8/8/8/8/R2pP2k/8/8/4K3 b - - 0 1"),
        ("8/P6k/8/8/8/8/8/K7 w - - 9 50", "a7a8n", "N7/7k/8/8/8/8/8/K7 b - - 0 50"),
        ("8/P6k/8/8/8/8/8/K7 w - - 9 50", "a7a8q", "Q7/7k/8/8/8/8/8/K7 b - - 0 50"),
    ],
)
def test_special_moves_give_expected_fen(fen: str, uci: str, next_fen: str) -> None:
    after = step(fen, uci)
    assert after.next_fen == next_fen
    assert not after.truncated


@pytest.mark.parametrize(
    ("fen", "uci", "expected"),
    [
        # Scholar's mate, and fool's mate by Black: the mover has won.
        (
            "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4",
            "h5f7",
            ended("r1bqkb1r/pppp1Qpp/2n2n2/4p3/2B1P3/8/PPPP1PPP/RNB1K1NR b KQkq - 0 4", 1.0),
        ),
        (
            "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2",
            "d8h4",
            ended("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3", 1.0),
        ),
        # Stalemate.
        ("7k/8/5KQ1/8/8/8/8/8 w - - 0 1", "g6f7", ended("7k/5Q2/5K2/8/8/8/8/8 b - - 1 1", 0.5)),
        # Insufficient material: only the kings remain, or the kings and a bishop.
        ("8/8/8/8/8/8/1r6/K6k w - - 0 1", "a1b2", ended("8/8/8/8/8/8/1K6/7k b - - 0 1", 0.5)),
        ("8/P6k/8/8/8/8/8/K7 w - - 9 50", "a7a8b", ended("B7/7k/8/8/8/8/8/K7 b - - 0 50", 0.5)),
        # The 150th ply without capture or pawn move draws, the 149th does not, and a mate on the 150th wins.
        ("7k/8/8/8/8/8/R7/K7 w - - 149 90", "a2b2", ended("7k/8/8/8/8/8/1R6/K7 b - - 150 90", 0.5)),
        ("7k/8/8/8/8/8/R7/K7 w - - 148 90", "a2b2", legal("7k/8/8/8/8/8/1R6/K7 b - - 149 90")),
        ("7k/8/6K1/8/8/8/R7/8 w - - 149 90", "a2a8", ended("R6k/8/6K1/8/8/8/8/8 b - - 150 90", 1.0)),
        # A check does not end the game. Nor do fifty moves, because a player would have to claim the draw.
        ("7k/8/8/8/8/8/R7/K7 w - - 0 1", "a2h2", legal("7k/8/8/8/8/8/7R/K7 b - - 1 1")),
        ("7k/8/8/8/8/8/R7/K7 w - - 99 90", "a2b2", legal("7k/8/8/8/8/8/1R6/K7 b - - 100 90")),
    ],
)
def test_step_terminates_only_by_the_rules(fen: str, uci: str, expected: Transition) -> None:
    assert step(fen, uci) == expected


@pytest.mark.parametrize(
    "uci",
    ["e1h1", "e1a1", "0000", "e1g1 ", " e1g1", "E1G1", "e1g1\n", "", "e1e1", "e8g8", "h1h8q", "O-O", "e1e3"],
)
def test_text_that_is_not_a_legal_move_truncates_and_keeps_position(uci: str) -> None:
    fen = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 4 9"
    assert step(fen, uci) == illegal(fen)


def test_illegal_move_returns_fen_as_printed_by_python_chess() -> None:
    phantom = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"
    assert step(phantom, "e7e3") == illegal(phantom.replace(" e3 ", " - "))


def test_promotion_without_piece_is_illegal() -> None:
    assert step("8/P6k/8/8/8/8/8/K7 w - - 9 50", "a7a8").truncated


@pytest.mark.parametrize("fen", ["", "8/8/8/8 w - - 0 1", chess.STARTING_FEN[:-2], chess.STARTING_FEN + " x"])
def test_an_unparsable_fen_raises_value_error(fen: str) -> None:
    with pytest.raises(ValueError):
        step(fen, "e2e4")
