"""Illegal moves of every kind, and rows of the environment task that agree with python-chess."""

import random
from collections import Counter

import chess

from rookworld_rlvr.board.moves import is_legal_uci
from rookworld_rlvr.generation.transitions import illegal_move, rows_from_positions, transition_game
from rookworld_rlvr.tasks.corpus import split_line
from rookworld_rlvr.tasks.environment.text import environment_truth, parse_environment, parse_environment_prompt
from rookworld_rlvr.tasks.move_classes import IllegalKind, illegal_kind
from rookworld_rlvr.tasks.types import Example

PINNED = "4r1k1/8/8/8/8/8/4N3/4K2R w K - 0 1"
PAWNS = "8/P6k/8/8/8/8/7K/8 w - - 0 1"
THROUGH_CHECK = "5rk1/8/8/8/8/8/8/4K2R w K - 0 1"


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
