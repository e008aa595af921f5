"""Average centipawn loss: hand-checked losses, the games, and a strong and a random player against Stockfish."""

from collections.abc import Sequence
from contextlib import nullcontext

import chess
import chess.engine
import pytest

from rookworld_rlvr.board.evals import material_balance
from rookworld_rlvr.evaluation.acpl import (
    DEPTHS,
    Engines,
    acpl_opponent,
    acpl_suite,
    centipawn_losses,
    planned_games,
    stockfish_engines,
)
from rookworld_rlvr.evaluation.engine_player import OpponentConfig, engine_player
from rookworld_rlvr.evaluation.games import End, PlayedGame
from rookworld_rlvr.evaluation.match import MakePlayer
from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.evaluation.suite import Suite, suite_table
from rookworld_rlvr.evaluation.table import Row
from rookworld_rlvr.stockfish.engine import EngineConfig


def by_material(fens: Sequence[str]) -> list[int]:
    return [100 * material_balance(board, board.turn) for board in map(chess.Board, fens)]


BY_MATERIAL = Engines(lambda depth: nullcontext(RandomPlayer(depth)), lambda: nullcontext(by_material))


def played(*moves: str) -> PlayedGame:
    board = chess.Board()
    for move in moves:
        board.push_uci(move)
    return PlayedGame(0, board, 0, End.ply_limit, None, None)


def rows_of(suite: Suite, done: int = 0) -> list[Row]:
    return [row for chunk in suite.rows(done) for row in chunk]


def test_loss_is_the_evaluation_before_a_move_minus_the_one_after_it() -> None:
    # White loses a pawn with its second move only when Black captures, which is Black's gain and no loss of White.
    game = played("e2e4", "d7d5", "e4d5", "d8d5", "b1c3", "d5d2", "c1d2")
    evals = iter([30, -30, 10, -40, 25, 0, -60, 80])
    fens: list[str] = []

    def scripted(asked: Sequence[str]) -> list[int]:
        fens.extend(asked)
        return [next(evals) for _ in asked]

    [white] = centipawn_losses(scripted, [(game, chess.WHITE)])
    # Positions before and after each of White's moves: 30 + -30, 10 + -40 clipped at 0, 25 + 0, -60 + 80.
    assert white == [0, 0, 25, 20] and len(fens) == 8
    assert [fen.split()[1] for fen in fens] == ["w", "b"] * 4


def test_evaluations_are_clipped_and_a_mate_loses_nothing() -> None:
    fools_mate = played("f2f3", "e7e5", "g2g4", "d8h4")
    wild = {"w": -5000, "b": 4000}
    white, black = centipawn_losses(
        lambda fens: [wild[fen.split()[1]] for fen in fens], [(fools_mate, chess.WHITE), (fools_mate, chess.BLACK)]
    )
    # Clipped to -1000 for White and +1000 for Black: nothing is left to lose.
    assert white == [0, 0] and black == [0, 0]
    [black] = centipawn_losses(lambda fens: [0] * len(fens), [(fools_mate, chess.BLACK)])
    # The mated side's evaluation is -1000 without a search.
    assert black == [0, 0]
    [white] = centipawn_losses(
        lambda fens: [1500 if fen.split()[1] == "w" else 3000 for fen in fens], [(played("e2e4"), chess.WHITE)]
    )
    assert white == [2000]


def test_stalemate_counts_as_an_even_position() -> None:
    board = chess.Board("7k/8/6K1/8/8/8/5Q2/8 w - - 0 1")
    board.push_uci("f2f7")
    assert board.is_stalemate()
    game = PlayedGame(0, board, 0, End.stalemate, None, None)
    assert centipawn_losses(lambda fens: [990] * len(fens), [(game, chess.WHITE)]) == [[990]]


def test_half_of_the_games_are_against_each_depth_and_with_each_colour() -> None:
    games = planned_games(2048)
    assert len(games) == 100 and planned_games(3) == games[:3]
    for depth in DEPTHS:
        assert sum(game.depth == depth for game in games) == 50
        assert sum(game.depth == depth and game.color for game in games) in (25, 26)
    assert len(set(map(str, games))) == 100


def test_table_has_the_mean_over_games_by_depth() -> None:
    suite = acpl_suite(RandomPlayer, BY_MATERIAL, planned_games(8))
    rows = rows_of(suite)
    table = suite_table(suite, rows)
    by_depth = {
        depth: [row.values["acpl/mean"] for row in rows if f"acpl/depth_{depth}" in row.values] for depth in DEPTHS
    }
    for depth, values in by_depth.items():
        entry = table[f"acpl/depth_{depth}"]
        assert len(values) == entry.n == 4 and entry.value == pytest.approx(sum(values) / 4)
    assert table["acpl/mean"].n == 8 and table["acpl/illegal"].value == 0.0
    assert sum(table[f"acpl/{name}"].value for name in ("won", "drawn", "lost")) == pytest.approx(1.0)
    assert all("Stockfish skill 0 depth" in row.record for row in rows)
    assert rows_of(acpl_suite(RandomPlayer, BY_MATERIAL, planned_games(8)), 6) == rows[6:]


class Illegal:
    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return ["e2e9"] * len(boards)


def test_game_without_a_legal_move_is_lost_and_has_no_loss() -> None:
    rows = rows_of(acpl_suite(lambda seed: Illegal(), BY_MATERIAL, planned_games(2)))
    for row in rows:
        assert row.values["acpl/lost"] == row.values["acpl/ended/illegal_move"] == row.values["acpl/illegal"] == 1.0
        assert "acpl/mean" not in row.values


def test_opponent_searches_to_its_depth_at_skill_0(stockfish: str) -> None:
    for depth in DEPTHS:
        with engine_player(acpl_opponent("", depth)) as player:
            assert dict(player.engine.protocol.config)["Skill Level"] == 0
            info = player.engine.analyse(chess.Board(), player._limit)
            assert info["depth"] <= depth and "nodes" in info


def test_evaluations_do_not_depend_on_the_number_of_engines(stockfish: str) -> None:
    fens = [
        chess.STARTING_FEN,
        "7k/8/6K1/8/8/8/5Q2/8 w - - 0 1",
        "rnb1kbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR b KQkq - 0 1",
    ]
    results = []
    for processes in (1, 2):
        engines = stockfish_engines(EngineConfig(processes=processes), 5000, 0)
        with engines.evaluator() as evaluate:
            results.append(evaluate(fens * 3))
    assert results[0] == results[1] == results[0][:3] * 3
    even, mates, down_a_queen = results[0][:3]
    assert abs(even) < 100 and mates in (998, 999) and down_a_queen < -400


def test_stockfish_loses_little_and_a_random_player_much(stockfish: str) -> None:
    def mean_loss(player: MakePlayer) -> float:
        suite = acpl_suite(player, stockfish_engines(EngineConfig(), 5000, 0), planned_games(2))
        return suite_table(suite, rows_of(suite))["acpl/mean"].value

    with engine_player(OpponentConfig(nodes=20_000, skill=20)) as strong:
        assert mean_loss(lambda seed: strong) < 45
    assert mean_loss(RandomPlayer) > 55
