import chess

from rookworld_rlvr.tasks.corpus import example_key, exclude_positions, split_by_position
from rookworld_rlvr.tasks.environment.text import render_environment_prompt
from rookworld_rlvr.tasks.policy.text import render_policy_prompt
from rookworld_rlvr.tasks.types import Example

FEN = "8/8/8/4k3/8/8/4P3/4K3 w - - 3 60"
NEXT_FEN = "8/8/8/4k3/8/4P3/8/4K3 b - - 0 60"
P_PROMPT, P_COMPLETION = f"P: {FEN}", "      M: e2e3 e2e4      E: 0.5 -0.1     B: e2e3"
A_PROMPT, A_COMPLETION = f"A: {FEN}+e2e3+e5e6 e2e3+", f"{NEXT_FEN}+0.001+0+0"
P_EXAMPLE = Example("policy", P_PROMPT, P_COMPLETION)
A_EXAMPLE = Example("environment", A_PROMPT, A_COMPLETION)
# The first sixteen bits of `printf "0:$key" | sha256sum` for the start position's key, as a fraction.
START_UNIFORM = 0xA76A / 0x10000


def playout_examples(plies: int) -> list[Example]:
    """Return prompts of both tasks for the positions of one deterministic game."""
    board, rows = chess.Board(), []
    for ply in range(plies):
        uci = sorted(move.uci() for move in board.legal_moves)[ply * 7 % board.legal_moves.count()]
        rows.append(Example("policy", render_policy_prompt(board.fen()), None))
        rows.append(Example("environment", render_environment_prompt(board.fen(), uci, [uci]), None))
        board.push_uci(uci)
    return rows


def test_example_key_is_the_position_of_its_prompt() -> None:
    assert example_key(P_EXAMPLE) == example_key(A_EXAMPLE) == "8/8/8/4k3/8/8/4P3/4K3 w - -"


def test_split_keeps_every_row_in_order_and_shares_no_position() -> None:
    rows = playout_examples(300)
    train, held_out = split_by_position(rows, 0.2, seed=0)
    assert sorted([*train, *held_out], key=rows.index) == rows
    assert [row for row in rows if row in set(train)] == list(train)
    assert not {example_key(row) for row in train} & {example_key(row) for row in held_out}
    assert 0.12 < len(held_out) / len(rows) < 0.28


def test_split_depends_only_on_position_and_seed() -> None:
    rows = playout_examples(200)
    _, held_out = split_by_position(rows, 0.3, seed=1)
    assert set(split_by_position(list(reversed(rows))[:150], 0.3, seed=1)[1]) == set(held_out) & set(rows[-150:])
    assert split_by_position(rows, 0.3, seed=2)[1] != held_out
    assert set(split_by_position(rows, 0.1, seed=1)[1]) < set(held_out)


def test_split_follows_the_sha256_of_the_position_key() -> None:
    start = Example("policy", render_policy_prompt(chess.STARTING_FEN), None)
    assert split_by_position([start], START_UNIFORM - 1e-4, seed=0) == ((start,), ())
    assert split_by_position([start], START_UNIFORM + 1e-4, seed=0) == ((), (start,))


def test_split_with_fraction_0_or_1_keeps_all_rows_on_one_side() -> None:
    rows = tuple(playout_examples(5))
    assert split_by_position(rows, 0, seed=0) == (rows, ())
    assert split_by_position(rows, 1, seed=0) == ((), rows)


def test_excluded_positions_lose_all_their_rows() -> None:
    rows = playout_examples(10)
    keys = {example_key(rows[0]), example_key(rows[7])}
    assert exclude_positions(rows, keys) == tuple(rows[2:6] + rows[8:])
    assert exclude_positions(rows, ()) == tuple(rows)
