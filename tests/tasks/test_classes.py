"""Prompts of each class of transition: what python-chess says of them, and what decides them."""

import chess
import pytest

from rookworld_rlvr.board.fen import position_key
from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.classes import TransitionClass, class_prompts, transition_class
from rookworld_rlvr.tasks.corpus import example_key
from rookworld_rlvr.tasks.types import EnvironmentPrompt, Example

ROWS = 2
T = TransitionClass
CASES = [
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


@pytest.fixture(scope="module")
def prompts() -> dict[TransitionClass, list[Example]]:
    return {name: class_prompts(name, ROWS, seed=7) for name in T}


def asked(example: Example) -> tuple[chess.Board, EnvironmentPrompt]:
    prompt = parse_prompt(example.prompt)
    assert isinstance(prompt, EnvironmentPrompt)
    return chess.Board(prompt.fen), prompt


@pytest.mark.parametrize(("fen", "uci", "name"), CASES)
def test_a_moves_class_is_the_first_that_holds(fen: str, uci: str, name: TransitionClass) -> None:
    assert transition_class(chess.Board(fen), uci) is name


def test_each_prompt_is_of_its_class_by_the_rules(prompts: dict[TransitionClass, list[Example]]) -> None:
    for name, examples in prompts.items():
        assert len(examples) == ROWS
        for example in examples:
            board, prompt = asked(example)
            legal = prompt.uci in {move.uci() for move in board.legal_moves}
            assert legal is (name is not T.illegal) and example.completion is None
            if not legal:
                continue
            move = chess.Move.from_uci(prompt.uci)
            before = (board.is_castling(move), board.is_en_passant(move), board.is_capture(move), bool(move.promotion))
            board.push(move)
            outcome = board.outcome(claim_draw=False)
            if name in (T.castling, T.en_passant, T.promotion, T.capture, T.quiet):
                assert outcome is None
                assert before[:2] == (name is T.castling, name is T.en_passant)
                assert before[3] is (name is T.promotion)
                assert name is T.promotion or before[2] is (name in (T.capture, T.en_passant))
            else:
                assert outcome is not None
                ends = {"mate": "CHECKMATE", "seventy_five_moves": "SEVENTYFIVE_MOVES"}
                assert outcome.termination.name == ends.get(name, name.upper())


def test_positions_are_valid_and_histories_are_the_moves_that_led_there(
    prompts: dict[TransitionClass, list[Example]],
) -> None:
    for examples in prompts.values():
        for example in examples:
            board, prompt = asked(example)
            assert board.is_valid() and 1 <= len(prompt.history) <= 10 and prompt.history[-1] == prompt.uci
            # The move before last was the opponent's, and its piece stands where it went.
            for uci in prompt.history[-2:-1]:
                piece = board.piece_at(chess.parse_square(uci[2:4]))
                assert piece is not None and piece.color is not board.turn


def test_a_seed_gives_the_same_prompts_and_more_rows_go_on_behind_fewer() -> None:
    more = class_prompts(T.capture, 5, seed=3)
    assert class_prompts(T.capture, 2, seed=3) == more[:2]
    assert class_prompts(T.capture, 2, seed=4) != more[:2]


def test_positions_differ_and_excluded_ones_are_passed_over() -> None:
    first = class_prompts(T.quiet, 4, seed=0)
    assert len({example_key(example) for example in first}) == 4
    excluded = {position_key(asked(first[0])[0])}
    without = class_prompts(T.quiet, 4, seed=0, excluded=excluded)
    assert len(without) == 4 and not excluded & {example_key(example) for example in without}
