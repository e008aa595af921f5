"""Games by source, with the evals of all legal moves."""

import random
from collections import Counter

import chess

from rookworld_rlvr.generation.sources import (
    Source,
    engine_game,
    has_mate_in_one,
    overwhelming_ending,
    random_game,
    softmax_move,
    sourced_game,
    won_ending,
)


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
        for label in sourced_game(random.Random(number), even):
            sources[label.source] += 1
            assert label.evals_pawns.keys() == {move.uci() for move in chess.Board(label.fen).legal_moves}
    assert set(sources) >= {Source.engine, Source.ending, Source.random}


def test_won_endings_have_each_material_for_either_color() -> None:
    rng, seen = random.Random(0), Counter[tuple[str, str]]()
    for _ in range(800):
        board = won_ending(rng)
        assert board.is_valid() and any(board.legal_moves)
        pieces = [board.piece_at(square) for square in sorted(board.piece_map())]
        sides = ("".join(sorted(p.symbol().upper() for p in pieces if p and p.color is c)) for c in chess.COLORS)
        seen[next(sides), next(sides)] += 1
    assert {("KQ", "K"), ("K", "KR"), ("KR", "KP"), ("BKNPPP", "KPPP"), ("KR", "KPPPPPR")} <= seen.keys()
    assert len(seen) == 14 and min(seen.values()) > 10


def test_overwhelming_endings_leave_few_pawns_to_one_side() -> None:
    rng, armies, lone, blocked = random.Random(0), Counter[int](), Counter[str](), 0
    for _ in range(200):
        board = overwhelming_ending(rng)
        assert board.is_valid() and any(board.legal_moves)
        sides = [(len(board.piece_map(mask=board.occupied_co[color])), color) for color in chess.COLORS]
        (_, weak), (strong, _) = sorted(sides)
        pieces = board.piece_map(mask=board.occupied_co[weak]).values()
        lone["".join(sorted(piece.symbol().upper() for piece in pieces))] += 1
        armies[strong] += 1
        pawns = board.pieces(chess.PAWN, weak)
        blocked += any(board.piece_at(pawn + (8 if weak else -8)) for pawn in pawns)
    assert set(lone) == {"K", "KP", "KPP", "KPPP"} and sum(armies[size] for size in range(8, 17)) > 133
    assert blocked > 20


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
