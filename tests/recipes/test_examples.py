"""The recipe's examples have the targets computed by hand; its fast encoder, features and export are checked too."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import chess
import numpy as np
import pytest
import torch

from rookworld_rlvr.board.evals import win_probability
from rookworld_rlvr.stockfish.move_evals import MoveEvals
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.environment.text import (
    environment_truth,
    parse_environment_prompt,
    render_environment,
    render_environment_prompt,
)
from rookworld_rlvr.tasks.move_classes import TransitionClass
from rookworld_rlvr.tasks.types import Example
from tiny_model.batches import collate_boards
from tiny_model.data import mirrored
from tiny_model.encoder import Encoder
from tiny_model.environment_examples import (
    NUMBERS,
    SHARES,
    EnvironmentExamples,
    TransitionPool,
    renumbered,
    transition_kind,
)
from tiny_model.features import token_features
from tiny_model.model import ModelWithHeads, Shape, export
from tiny_model.policy_examples import BOARD_AT, TEMPERATURE, PolicyExamples, attacks_of, coarse, move_scores
from tiny_model.tokenizer import build_tokenizer, placed_pieces

TOKENIZER: Any = build_tokenizer()
# Two moves win, one of them by mate; all other moves draw.
FEN = "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1"
MOVES = {move.uci(): 0.0 for move in chess.Board(FEN).legal_moves} | {"a1a8": 999.99, "a1a7": 5.0}
EVALS = MoveEvals(FEN, "test", MOVES)


def environment_row(fen: str, uci: str) -> Example:
    prompt = render_environment_prompt(fen, uci, [uci])
    return Example("environment", prompt, render_environment(environment_truth(parse_environment_prompt(prompt))))


@pytest.fixture(scope="module")
def transitions(make_lines: Callable[[int, int], list[str]], tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    file = tmp_path_factory.mktemp("transitions") / "rows.txt"
    file.write_text("".join(f"{line}\n" for line in make_lines(5, 20)))
    return [row for row in read_corpus(file).examples if row.task == "environment"]


def test_move_targets_follow_evals_and_omit_earlier_candidates() -> None:
    example = PolicyExamples(TOKENIZER).example(EVALS)
    words = TOKENIZER.convert_ids_to_tokens(example.tokens)
    squares = [(words[at].strip(), shares) for at, _, shares in example.soft]
    named = ["".join(pair) for pair in zip([w for w, _ in squares[::2]], [w for w, _ in squares[1::2]], strict=True)]
    assert named[:2] == ["a1a8", "a1a7"] and named[-1] == named[0] and len(set(named[:-1])) == 5
    # The mate scores 1 + 0.12, the other win 0.863: at a temperature of 0.04 the mate has nearly all of the target.
    first_shares = squares[0][1]
    assert first_shares[chess.A1] > 0.99 and first_shares.sum() == pytest.approx(1.0)
    for (word, shares), place in zip(squares[::2], range(5), strict=False):
        left = {chess.parse_square(move[:2]) for move in set(MOVES) - set(named[:place])}
        assert {square for square in chess.SQUARES if shares[square] > 0} <= left
        assert shares[chess.parse_square(word)] > 0


def test_faster_mate_is_e_times_as_likely_however_far_it_is() -> None:
    # Mates in 10, 11 and 12, a move that keeps a pawn, and one that loses it.
    evals = {"a1a2": 999.90, "a1a3": 999.89, "a1a4": 999.88, "a1a5": 1.0, "a1a6": -2.0}
    scores = move_scores(MoveEvals(FEN, "test", evals))
    assert list(np.diff(scores)[:2] / TEMPERATURE) == pytest.approx([-1, -1])
    assert scores[0] == pytest.approx(1 + 0.12 / 10) and scores[2] > scores[3] > scores[4]


def test_no_mate_scores_below_a_move_that_does_not_mate() -> None:
    scores = move_scores(MoveEvals(FEN, "test", {"a1a8": 999.99, "a1a2": 999.80, "a1a7": 9.0, "a1a6": 1.0}))
    assert scores[0] > scores[1] >= scores[2] > scores[3]


def test_later_mate_is_better_for_the_side_that_is_mated() -> None:
    scores = move_scores(MoveEvals(FEN, "test", {"a1a2": -999.95, "a1a3": -999.94, "a1a4": -999.99, "a1a5": -9.0}))
    assert scores[3] > scores[1] > scores[0] > scores[2]
    assert (scores[1] - scores[0]) / TEMPERATURE == pytest.approx(1)


def test_best_move_target_equals_the_first_candidate() -> None:
    *_, (_, _, origin), (_, _, target) = PolicyExamples(TOKENIZER).example(EVALS).soft
    assert (origin[chess.A1], target[chess.A8]) == (1.0, 1.0)


def test_most_likely_origin_square_belongs_to_the_best_move() -> None:
    # Eight king moves are each nearly as good as the best rook move; summed by origin square they would outweigh it.
    fen = "8/8/8/3K4/8/8/7p/k6R w - - 0 1"
    evals = {move.uci(): (0.5 if move.uci() == "h1h2" else 0.49) for move in chess.Board(fen).legal_moves}
    _, _, shares = PolicyExamples(TOKENIZER).example(MoveEvals(fen, "test", evals)).soft[0]
    assert int(shares.argmax()) == chess.H1


def test_every_token_of_a_completion_has_one_target() -> None:
    example = PolicyExamples(TOKENIZER).example(EVALS)
    words = TOKENIZER.convert_ids_to_tokens(example.tokens)
    hard, soft = {at for at, _ in example.hard}, {at for at, _, _ in example.soft}
    assert not hard & soft and hard | soft == set(range(words.index("M:") - 1, len(words)))
    assert words[example.win_at] == " 1" and words[example.win_at + 1].strip() != "1"


def test_board_targets_hold_move_distribution_and_legality() -> None:
    board = PolicyExamples(TOKENIZER).board(EVALS)
    assert board.legal.sum() == len(MOVES) and board.moves.sum() == pytest.approx(1.0)
    rook = board.squares.index(chess.A1, board.own_at)
    assert board.moves[rook, chess.A8] > 0.9 and board.legal[rook].sum() == 13
    assert not board.legal[: board.own_at].any()


def test_board_tokens_are_where_the_heads_read_them() -> None:
    board = PolicyExamples(TOKENIZER).board(EVALS)
    words = TOKENIZER.convert_ids_to_tokens(board.tokens)[BOARD_AT : BOARD_AT + len(board.squares)]
    pieces = (chess.A8, chess.G8, chess.F7, chess.G7, chess.H7, chess.A1, chess.H1)
    opponent, own = (chess.G8, chess.F7, chess.G7, chess.H7), (chess.A1, chess.H1)
    assert board.squares == (*pieces, *opponent, *own) and board.own_at == len(pieces) + len(opponent)
    assert [word[0] for word in words[1:]] == list("kpppRKkpppRK")


def test_move_value_halves_per_tenth_of_win_probability_lost() -> None:
    wins = {move: win_probability(pawns) for move, pawns in MOVES.items()}
    board = PolicyExamples(TOKENIZER).board(EVALS)
    assert board.repeated_at == len(placed_pieces(FEN.split()[0])) and not board.move_values[: board.own_at].any()
    for move, win in wins.items():
        piece = board.squares.index(chess.parse_square(move[:2]), board.own_at)
        value = board.move_values[piece, chess.parse_square(move[2:4])]
        assert value == pytest.approx(0.5 ** ((max(wins.values()) - win) / 0.1), abs=1e-6)
    assert np.count_nonzero(board.move_values) == len(wins)


def test_collated_boards_have_masks_of_pieces_and_attacks() -> None:
    positions = (EVALS, mirrored(EVALS), MoveEvals("7k/8/8/8/8/8/8/K7 w - - 0 1", "test", {"a1a2": 0.0}))
    boards = [PolicyExamples(TOKENIZER).board(evals) for evals in positions]
    batch = collate_boards(boards)
    assert batch.repeated_BM.sum(1).tolist() == [len(board.squares) - board.repeated_at for board in boards]
    assert batch.own_BM.sum(1).tolist() == [len(board.squares) - board.own_at for board in boards]
    assert not (batch.own_BM & ~batch.repeated_BM).any()
    for evals, board, attacks_MS in zip(positions, boards, batch.attacks_BMS, strict=True):
        length = len(board.squares)
        assert np.array_equal(attacks_MS[:length], attacks_of(chess.Board(evals.fen), board.squares))
        assert not attacks_MS[length:].any()


def test_mirrored_position_has_colours_exchanged_and_the_same_evals() -> None:
    evals = MoveEvals("8/8/8/8/8/7k/5q2/7K b - - 0 1", "ending", {"f2f1": 999.99})
    assert mirrored(evals) == MoveEvals("7k/5Q2/7K/8/8/8/8/8 w - - 0 1", "ending", {"f7f8": 999.99})


def test_attacks_equal_python_chess_attacks() -> None:
    board, squares = chess.Board(FEN), (chess.A8, chess.G8, chess.A1)
    for origin, attacks in zip(squares, attacks_of(board, squares), strict=True):
        assert {square for square in chess.SQUARES if attacks[square]} == set(board.attacks(origin))


@pytest.mark.parametrize(
    ("pawns", "expected"), [(0.04, 0.0), (-0.26, -0.3), (2.6, 2.5), (-7.4, -7.0), (999.97, 999.97), (-0.01, 0.0)]
)
def test_evals_are_rounded_more_coarsely_as_they_grow(pawns: float, expected: float) -> None:
    assert coarse(pawns) == expected and str(coarse(pawns)) != "-0.0"


def test_fast_encoder_equals_the_tokenizer(make_lines: Callable[[int, int], list[str]]) -> None:
    encode = Encoder(TOKENIZER)
    for line in make_lines(3, 60):
        assert encode(line) == TOKENIZER(line).input_ids and TOKENIZER.decode(encode(line)) == line


def test_export_to_stock_qwen3_gives_the_same_logits() -> None:
    torch.manual_seed(0)
    trained = ModelWithHeads(Shape(2, 32, 2, 1), token_features(TOKENIZER))
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.tensor([TOKENIZER(f"P: {FEN}").input_ids])
    embeddings = trained.embeddings()
    logits = trained(tokens, embeddings)[1] @ embeddings.T
    torch.testing.assert_close(export(trained, TOKENIZER)(tokens).logits, logits, atol=1e-4, rtol=1e-4)


def test_squares_in_moves_share_features_with_the_pieces_on_them() -> None:
    ids, features = TOKENIZER.get_vocab(), token_features(TOKENIZER)
    shared = features[ids[" e4"]] * features[ids["e4"]]
    assert shared.sum() >= 6 and (features[ids[" e4"]] * features[ids["d5"]]).sum() < shared.sum()
    assert len(torch.unique(features[features.sum(1) > 0], dim=0)) == int((features.sum(1) > 0).sum())


def test_transitions_are_sampled_by_class_and_illegal_ones_by_kind() -> None:
    counts = {"quiet": 9, "illegal geometry": 3, "illegal blocked": 1}
    moves = {"quiet": "e2e4", "illegal geometry": "e2e5", "illegal blocked": "a1a3"}
    rows = [environment_row(chess.STARTING_FEN, moves[kind]) for kind, count in counts.items() for _ in range(count)]
    pool, rng = TransitionPool(rows), random.Random(0)
    sampled = Counter(transition_kind(pool.sample(rng).prompt) for _ in range(2000))
    quiet, rest = SHARES[TransitionClass.quiet], 1 - sum(SHARES.values())
    assert sampled["quiet"] / 2000 == pytest.approx(quiet / (quiet + rest), abs=0.04)
    assert sampled["illegal geometry"] == pytest.approx(sampled["illegal blocked"], rel=0.2)


def test_renumbered_row_gets_a_matching_completion(transitions: list[Example]) -> None:
    for row in transitions:
        other = renumbered(row, 1)
        before, after = parse_environment_prompt(row.prompt), parse_environment_prompt(other.prompt)
        assert after.fen.split()[:-1] == before.fen.split()[:-1] and after.fen.split()[-1] == "1"
        assert (after.uci, after.history) == (before.uci, before.history)
        assert other.completion == render_environment(environment_truth(after))
        assert renumbered(other, int(before.fen.split()[-1])) == row
    pool, rng = TransitionPool(transitions), random.Random(5)
    numbers = [parse_environment_prompt(pool.sample(rng).prompt).fen.split()[-1] for _ in range(2000)]
    assert {str(number) for number in range(1, NUMBERS + 1)} <= set(numbers)


@pytest.mark.parametrize(
    ("fen", "uci", "outcome", "moved"),
    [
        (chess.STARTING_FEN, "e2e5", 0, set()),
        (chess.STARTING_FEN, "e2e4", 1, {"P"}),
        # The rook's token replaces the token of the empty square a8.
        (FEN, "a1a8", 2, {"R"}),
        ("7k/8/6K1/5Q2/8/8/8/8 w - - 0 1", "f5f7", 3, {"Q"}),
    ],
)
def test_an_environment_example_has_an_outcome_and_copied_pieces(
    fen: str, uci: str, outcome: int, moved: set[str]
) -> None:
    example = EnvironmentExamples(TOKENIZER).example(environment_row(fen, uci))
    assert example.outcome == outcome
    words = TOKENIZER.convert_ids_to_tokens(example.tokens[example.prompt_length :])
    on_board = [
        (word, same) for word, same in zip(words, example.copied, strict=True) if "\ue000" <= word[-1] < "\ue040"
    ]
    assert {word[0] for word, same in on_board if not same} == moved


@pytest.mark.parametrize(
    ("fen", "uci", "targets"),
    [
        (chess.STARTING_FEN, "e2e5", {"e3", "e4"}),
        (chess.STARTING_FEN, "a1a3", set()),
        (chess.STARTING_FEN, "e7e5", set()),
        (chess.STARTING_FEN, "e4e5", set()),
        ("4r2k/8/8/8/8/8/4R3/4K3 w - - 0 1", "e2d2", {f"e{n}" for n in range(3, 9)}),
    ],
)
def test_legal_targets_are_predicted_at_the_origin_square(fen: str, uci: str, targets: set[str]) -> None:
    example = EnvironmentExamples(TOKENIZER).example(environment_row(fen, uci))
    assert TOKENIZER.convert_ids_to_tokens(example.tokens[example.origin_at]) == uci[:2]
    assert TOKENIZER.convert_ids_to_tokens(example.tokens[example.origin_at - 1]) == "+"
    assert {chess.square_name(square) for square in example.targets.nonzero()[0]} == targets
