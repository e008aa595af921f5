"""Moves by class, illegal moves by kind, games by source, and rows that agree with python-chess."""

import random
from collections import Counter

import chess
import pytest

from rookworld_rlvr.board.moves import is_legal_uci
from rookworld_rlvr.tasks.corpus import split_line
from rookworld_rlvr.tasks.environment import environment_truth, parse_environment, parse_environment_prompt
from rookworld_rlvr.tasks.sources import Source, engine_game, has_mate_in_one, random_game, softmax_move, sourced_game
from rookworld_rlvr.tasks.transitions import (
    IllegalKind,
    TransitionClass,
    illegal_kind,
    illegal_move,
    rows_from_positions,
    transition_class,
    transition_game,
)
from rookworld_rlvr.tasks.types import Example

PINNED = "4r1k1/8/8/8/8/8/4N3/4K2R w K - 0 1"
PAWNS = "8/P6k/8/8/8/8/7K/8 w - - 0 1"
THROUGH_CHECK = "5rk1/8/8/8/8/8/8/4K2R w K - 0 1"
T = TransitionClass
CLASSES = [
    ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "e2e5", T.illegal),
    ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "nonsense", T.illegal),
    ("6k1/5ppp/8/8/8/8/8/R3K2R w KQ - 0 1", "a1a8", T.mate),
    ("7k/8/5K2/6Q1/8/8/8/8 w - - 0 1", "g5g6", T.stalemate),
    ("8/8/8/8/8/1k6/8/K2n4 w - - 0 1", "a1b1", T.insufficient_material),
    ("4k3/8/8/8/8/8/8/R3K3 w - - 149 99", "a1a2", T.seventy_five_moves),
    ("4k3/8/8/8/8/8/8/R3K3 w - - 148 99", "a1a2", T.quiet),
    ("4k3/8/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1", T.castling),
    ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "e5d6", T.en_passant),
    ("3rk3/4P3/8/8/8/8/8/4K3 w - - 0 1", "e7d8q", T.promotion),
    ("4k3/8/8/3p4/4P3/8/8/4K2R w - - 0 1", "e4d5", T.capture),
    ("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "e2e4", T.quiet),
]


@pytest.mark.parametrize(("fen", "uci", "name"), CLASSES)
def test_transition_class_is_the_first_that_applies(fen: str, uci: str, name: TransitionClass) -> None:
    assert transition_class(chess.Board(fen), uci) is name


@pytest.mark.parametrize(
    ("fen", "uci", "kind"),
    [
        (chess.STARTING_FEN, "e4e5", "no_piece"),
        (chess.STARTING_FEN, "e7e5", "other_side"),
        (chess.STARTING_FEN, "e1g1", "castling"),
        (THROUGH_CHECK, "e1g1", "castling"),
        (PAWNS, "a7a8", "promotion"),
        (PAWNS, "h2h3q", "promotion"),
        (chess.STARTING_FEN, "e2e5", "geometry"),
        (chess.STARTING_FEN, "a1b2", "geometry"),
        (chess.STARTING_FEN, "a1a3", "blocked"),
        (chess.STARTING_FEN, "d1d2", "blocked"),
        (chess.STARTING_FEN, "e2d3", "blocked"),
        (PINNED, "e2c3", "check"),
    ],
)
def test_illegal_move_has_expected_kind(fen: str, uci: str, kind: str) -> None:
    board = chess.Board(fen)
    assert not is_legal_uci(board, uci) and illegal_kind(board, uci) == kind


def test_generated_illegal_moves_cover_every_kind() -> None:
    rng, kinds = random.Random(0), Counter[str]()
    for fen in (chess.STARTING_FEN, PINNED, PAWNS, THROUGH_CHECK):
        board = chess.Board(fen)
        for _ in range(60):
            uci = illegal_move(board, rng)
            assert not is_legal_uci(board, uci)
            kinds[illegal_kind(board, uci)] += 1
    assert set(kinds) == set(IllegalKind)


def row_of(line: str) -> Example:
    example = split_line(line)
    assert isinstance(example, Example)
    return example


def rows_of_games(count: int) -> list[list[str]]:
    """Return source, kind and line of each row of games that need no engine."""
    return [row.split("\t") for number in range(count) for row in transition_game(random.Random(number))]


def test_transition_rows_match_python_chess_and_cover_rare_classes() -> None:
    kinds, sources = Counter[str](), Counter[str]()
    for source, kind, line in rows_of_games(60):
        kinds[kind] += 1
        sources[source] += 1
        example = row_of(line)
        prompt = parse_environment_prompt(example.prompt)
        assert parse_environment(example.completion or "") == environment_truth(prompt)
        assert is_legal_uci(chess.Board(prompt.fen), prompt.uci) is not kind.startswith("illegal")
    assert set(sources) == {"opening", "random"} and min(sources.values()) > 100
    illegal = sum(count for kind, count in kinds.items() if kind.startswith("illegal"))
    assert 0.15 < illegal / sum(kinds.values()) < 0.5
    assert min(kinds[kind] for kind in ("mate", "castling", "promotion", "insufficient_material")) > 3


def test_opening_rows_begin_at_the_first_move() -> None:
    positions = [line.split("+")[0] for source, _, line in rows_of_games(20) if source == "opening"]
    assert any(chess.STARTING_FEN in position for position in positions)
    assert all(int(position.split(" ")[6]) <= 9 for position in positions)


def test_game_is_rebuilt_with_history_from_its_positions() -> None:
    board, fens = chess.Board(), [chess.STARTING_FEN]
    for uci in ("e2e4", "e7e5", "g1f3", "b8c6", "f1c4"):
        board.push_uci(uci)
        fens.append(board.fen())
    games = (rows_from_positions(fens, random.Random(seed)) for seed in range(40))
    rows = [row.split("\t") for game in games for row in game]
    histories = {parse_environment_prompt(row_of(line).prompt).history for _, kind, line in rows if kind == "quiet"}
    assert ("e2e4", "e7e5", "g1f3") in histories and {source for source, _, _ in rows} == {"engine"}
    # A position that no legal move reaches ends the game.
    assert list(rows_from_positions([fens[0], fens[3]], random.Random(0))) == []


def even(board: chess.Board) -> dict[str, float]:
    """Return evals that are equal for all legal moves except mates."""
    evals = dict.fromkeys(sorted(move.uci() for move in board.legal_moves), 0.0)
    for uci in evals:
        board.push_uci(uci)
        if board.is_checkmate():
            evals[uci] = 999.99
        board.pop()
    return evals


def test_sourced_games_have_evals_of_all_legal_moves() -> None:
    sources = Counter[str]()
    for number in range(12):
        for verdict in sourced_game(random.Random(number), even):
            sources[verdict.source] += 1
            assert verdict.evals_pawns.keys() == {move.uci() for move in chess.Board(verdict.fen).legal_moves}
    assert set(sources) >= {Source.engine, Source.ending, Source.random}


def test_mate_in_one_position_is_kept_with_mate_as_source() -> None:
    start = chess.Board("6k1/5ppp/8/8/8/8/8/R6K w - - 0 1")
    assert has_mate_in_one(start)
    first = next(random_game(random.Random(1), start, even))
    assert (first.fen, first.source, max(first.evals_pawns.values())) == (start.fen(), Source.mate, 999.99)


def test_softmax_move_prefers_good_moves_at_low_temperature() -> None:
    evals = {"e2e4": 3.0, "a2a3": 0.0}
    rng = random.Random(0)
    assert {softmax_move(rng, evals, 0.01) for _ in range(50)} == {"e2e4"}
    assert {softmax_move(rng, evals, 1.0) for _ in range(50)} == set(evals)
    rows = list(engine_game(rng, chess.Board(), even, source=Source.engine, plies=5))
    assert [chess.Board(row.fen).ply() for row in rows] == [0, 1, 2, 3, 4]
