"""Examples made ahead, in a file of packed arrays, of which a step's batches are made without a Python object for each.

A `P:` example is stored as its board, the tokens after it, and the legal moves with their evals; an `A:` example as its
tokens and targets. What follows from these (tokens of the board, squares, attacks, distributions) is computed for a
whole batch. The batches equal those of `DrawnExamples`, up to rounding in the last bits of a sum.

The file is a `.npz` whose members are compressed by LZMA, with these arrays, where N is the number of examples of a
task, and `_R` (ragged) means that each example has as many entries as its count says:

    board (N, 32) uint8            two squares a byte, from a8 to h1; see `CODES`
    black (N,) bool                True if Black is to move
    prompt_length (N,) uint8       tokens of the prompt
    rest_count (N,), rest_R uint16 tokens that follow the board's
    move_count (N,), move_R uint16 legal moves, 64 · first square + second square
    eval_R uint16                  differences, modulo 2^16, of the evals' numbers in `evals` (float64, pawns)
    a_count (N,), a_token_R uint16 tokens of the `A:` examples
    a_prompt_length, a_outcome, a_origin_at (N,) uint8
    a_targets (N,) uint64          bits of the squares
    a_copied_R uint8               bits, one for each token of a completion
    settings uint8                 JSON of what decides the examples
"""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from lzma import LZMAError
from pathlib import Path
from typing import Any

import chess
import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rookworld_rlvr.errors import UserError, first_line
from rookworld_rlvr.files import replacing
from rookworld_rlvr.stockfish.move_evals import MoveEvals
from rookworld_rlvr.tasks.policy.text import MAX_CANDIDATES

from .batches import BoardBatch, EnvironmentBatch, PolicyBatch
from .config import TrainingConfig
from .drawing import DrawnExamples, by_length
from .environment_examples import EnvironmentExample
from .policy_examples import (
    BOARD_AT,
    EVAL_WEIGHT,
    HALVING_LOSS,
    LAYOUT_WEIGHT,
    LEAST_SHARE,
    NAMED_LOGIT,
    SQUARES,
    TEMPERATURE,
    Array,
    PolicyExample,
    scores_of,
    square_ids,
    win_probability_of,
)
from .tokenizer import BLANK, BOARD_ORDER, board_pieces, opponent_token, own_token, prompt_token

# Codes of the pieces on a board; 0 is an empty square.
CODES = "." + "PNBRQKpnbrqk"
FIRST_BLACK = CODES.index("p")
DECIDING = (
    "policy_examples", "environment_examples", "check_share", "mate_share", "ending_share", "bare_king_share",
)  # fmt: skip


def settings_of(config: TrainingConfig, seed: int) -> dict[str, Any]:
    """Return the options that decide the examples, by name."""
    return {"seed": seed, **{f"training.{name}": getattr(config, name) for name in DECIDING}}


def pack(drawn: DrawnExamples, steps: range) -> dict[str, Array]:
    """Return the arrays of the examples of these steps. `eval_R` has the evals themselves, in pawns; see `write`."""
    policy, environment = list[tuple[MoveEvals, PolicyExample]](), list[EnvironmentExample]()
    for step in steps:
        of_policy, of_environment = drawn.draw(step)
        policy += of_policy
        environment += of_environment
    boards = np.array([_codes(evals.fen) for evals, _ in policy], np.uint8)
    heads = [BOARD_AT + len(example.board.squares) for _, example in policy]
    moves = [
        64 * chess.parse_square(move[:2]) + chess.parse_square(move[2:4])
        for evals, _ in policy
        for move in evals.evals_pawns
    ]
    targets = np.array([example.targets for example in environment], np.uint8)
    return {
        "board": boards[:, ::2] | boards[:, 1::2] << 4,
        "black": np.array([evals.fen.split(" ")[1] == "b" for evals, _ in policy]),
        "prompt_length": np.array([len(example.board.tokens) for _, example in policy], np.uint8),
        "rest_count": np.array(
            [len(row.tokens) - head for (_, row), head in zip(policy, heads, strict=True)], np.uint8
        ),
        "rest_R": _joined([row.tokens[head:] for (_, row), head in zip(policy, heads, strict=True)]),
        "move_count": np.array([len(evals.evals_pawns) for evals, _ in policy], np.uint8),
        "move_R": np.array(moves, np.uint16),
        "eval_R": np.array([pawns for evals, _ in policy for pawns in evals.evals_pawns.values()]),
        "a_count": np.array([len(example.tokens) for example in environment], np.uint16),
        "a_token_R": _joined([example.tokens for example in environment]),
        "a_prompt_length": np.array([example.prompt_length for example in environment], np.uint8),
        "a_outcome": np.array([example.outcome for example in environment], np.uint8),
        "a_origin_at": np.array([example.origin_at for example in environment], np.uint8),
        "a_targets": np.packbits(targets, axis=1, bitorder="little").view(np.uint64)[:, 0],
        "a_copied_R": np.array([same for example in environment for same in example.copied]),
    }


def write(path: Path, parts: Sequence[Mapping[str, Array]], settings: Mapping[str, Any]) -> None:
    """Write the arrays of consecutive steps to one file."""
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    arrays["evals"], numbers = np.unique(arrays["eval_R"], return_inverse=True)
    assert len(arrays["evals"]) <= 1 << 16, "evals are whole centipawns of less than 1,000 pawns, and few are large"
    # Moves are in the order of their evals, so differences are small numbers.
    arrays["eval_R"] = np.diff(numbers.astype(np.uint16), prepend=np.uint16(0))
    arrays["a_copied_R"] = np.packbits(arrays["a_copied_R"])
    arrays["settings"] = np.frombuffer(json.dumps(dict(settings)).encode(), np.uint8)
    with replacing(path) as writing, zipfile.ZipFile(writing, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def read(path: Path) -> dict[str, Array]:
    """Return the arrays of a file that `write` has written. Raises UserError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, LZMAError, zlib.error) as error:
        raise UserError(f"examples: expected a file of examples made ahead, got {path}: {first_line(error)}") from error


class PackedExamples:
    """`drawing.Examples` from a file."""

    def __init__(self, path: Path, config: TrainingConfig, seed: int, tokenizer: PreTrainedTokenizerFast) -> None:
        """Read the file. Raises UserError if it is damaged or was made with other options."""
        self._arrays = arrays = read(path)
        settings = json.loads(arrays["settings"].tobytes())
        for option, wanted in settings_of(config, seed).items():
            if settings[option] != wanted:
                raise UserError(f"{option}: expected {settings[option]}, as in {path}, got {wanted}")
        if config.steps > settings["steps"]:
            raise UserError(f"training.steps: expected at most {settings['steps']}, as in {path}, got {config.steps}")
        self.source: str = settings["source"]
        self._config, self._tables = config, _Tables(tokenizer)
        self._starts = {name: _starts(arrays[f"{name}_count"]) for name in ("rest", "move", "a")}
        self._copied_starts = _starts(arrays["a_count"] - arrays["a_prompt_length"])
        self._copied = np.unpackbits(arrays["a_copied_R"], count=int(self._copied_starts[-1])).astype(bool)
        self._numbers = np.cumsum(arrays["eval_R"], dtype=np.uint16)
        self._wins = np.array([win_probability_of(pawns) for pawns in arrays["evals"].tolist()])

    def batches(self, step: int) -> tuple[list[PolicyBatch], list[EnvironmentBatch]]:
        """See `drawing.Examples.batches`."""
        policy, environment = (
            np.arange(step * count, (step + 1) * count)
            for count in (self._config.policy_examples, self._config.environment_examples)
        )
        lengths = self._boards(policy).ends + self._arrays["rest_count"][policy]
        return (
            [self._policy_batch(policy[part]) for part in by_length(lengths.tolist())],
            [
                self._environment_batch(environment[part])
                for part in by_length(self._arrays["a_count"][environment].tolist())
            ],
        )

    def _boards(self, rows: Array) -> "_Boards":
        packed = self._arrays["board"][rows]
        codes = np.stack([packed & 15, packed >> 4], 2).reshape(len(rows), SQUARES)
        return _Boards(codes, self._arrays["black"][rows], self._tables)

    def _policy_batch(self, rows: Array) -> PolicyBatch:
        boards, tables = self._boards(rows), self._tables
        at, within, flat = _ragged(self._starts["rest"], rows)
        rest = np.full((len(rows), int((boards.ends + self._arrays["rest_count"][rows]).max())), tables.pad, np.int64)
        rest[at, boards.ends[at] + within] = self._arrays["rest_R"][flat]
        tokens_BT = boards.with_tokens(rest)
        lengths = boards.ends + self._arrays["rest_count"][rows]
        moves = _Moves(self._starts["move"], rows, self._arrays["move_R"], self._numbers)
        wins = moves.padded(self._wins, -np.inf)
        scores = scores_of(moves.padded(self._arrays["evals"], -np.inf), wins)
        soft_at, soft_first, soft = _soft_targets(tokens_BT, scores / TEMPERATURE, moves, tables)
        marker_m, marker_e, marker_b = ((tokens_BT == marker).argmax(1)[:, None] for marker in tables.markers)
        places = np.arange(tokens_BT.shape[1])
        hard = (places >= marker_m - 1) & (places < lengths[:, None])
        hard[soft_at] = False
        hard_rows, hard_places = hard.nonzero()
        of_eval = ((places > marker_e) & (places < marker_b))[hard_rows, hard_places]
        return PolicyBatch(
            torch.from_numpy(tokens_BT),
            boards.batch(moves, softmax(scores / TEMPERATURE, axis=1), wins),
            (torch.from_numpy(hard_rows), torch.from_numpy(hard_places - 1)),
            torch.from_numpy(tokens_BT[hard_rows, hard_places]),
            _float(np.where(of_eval, EVAL_WEIGHT, LAYOUT_WEIGHT)),
            (torch.from_numpy(soft_at[0]), torch.from_numpy(soft_at[1] - 1)),
            torch.from_numpy(soft_first),
            _float(soft),
            torch.from_numpy(self._arrays["prompt_length"][rows].astype(np.int64) - 1),
            _float(scores.max(1)),
        )

    def _environment_batch(self, rows: Array) -> EnvironmentBatch:
        arrays = self._arrays
        lengths, prompts = arrays["a_count"][rows], arrays["a_prompt_length"][rows].astype(np.int64)
        tokens_BT = np.full((len(rows), int(lengths.max())), self._tables.pad, np.int64)
        at, within, flat = _ragged(self._starts["a"], rows)
        tokens_BT[at, within] = arrays["a_token_R"][flat]
        at, within, flat = _ragged(self._copied_starts, rows)
        bits = np.ascontiguousarray(arrays["a_targets"][rows]).view(np.uint8).reshape(len(rows), 8)
        return EnvironmentBatch(
            torch.from_numpy(tokens_BT),
            (torch.from_numpy(at), torch.from_numpy(prompts[at] + within)),
            torch.from_numpy(self._copied[flat]),
            torch.from_numpy(prompts - 1),
            torch.from_numpy(arrays["a_outcome"][rows].astype(np.int64)),
            torch.from_numpy(arrays["a_origin_at"][rows].astype(np.int64)),
            _float(np.unpackbits(bits, axis=1, bitorder="little")),
        )


class _Tables:
    """Token ids by piece and square, and what a piece attacks."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        ids = tokenizer.get_vocab()
        self.pad = int(tokenizer.pad_token_id)
        self.prefix = ids["P: "]
        self.markers = [ids[name] for name in ("M:", "E:", "B:")]
        self.is_first = np.zeros(len(ids), bool)
        self.is_first[square_ids(tokenizer)[1].numpy()] = True
        # By place (prompt, opponent's again, own again), Black to move, code and number of the square from a8 on.
        self.ids = np.zeros((3, 2, len(CODES), SQUARES), np.int64)
        for kind, token in enumerate((prompt_token, opponent_token, own_token)):
            for black in (0, 1):
                for number, square in enumerate(BOARD_ORDER):
                    for piece in board_pieces(square):
                        code = 0 if piece == BLANK else CODES.index(piece)
                        self.ids[kind, black, code, number] = ids.get(token(piece, square, not black), self.pad)
        self.order = np.array(BOARD_ORDER)
        self.reach = np.zeros((len(CODES), SQUARES, SQUARES), bool)
        for code, symbol in enumerate(CODES[1:], start=1):
            for square in chess.SQUARES:
                alone = chess.BaseBoard.empty()
                alone.set_piece_at(square, chess.Piece.from_symbol(symbol))
                self.reach[code, square, list(alone.attacks(square))] = True
        self.between = np.array([[chess.between(a, b) for b in chess.SQUARES] for a in chess.SQUARES], np.uint64)


class _Boards:
    """The tokens of a batch's boards: all pieces, then the opponent's and the own ones again."""

    def __init__(self, codes: Array, black: Array, tables: _Tables) -> None:
        """`codes` (B, 64) from a8 to h1."""
        self._codes, self._tables = codes, tables
        is_white, is_black = (codes > 0) & (codes < FIRST_BLACK), codes >= FIRST_BLACK
        own = np.where(black[:, None], is_black, is_white)
        opponent = np.where(black[:, None], is_white, is_black)
        shown = codes > 0
        # The square a8 always has a token.
        shown[:, 0] = True
        present = np.concatenate([shown, opponent, own], 1)
        self.repeated_at, self.counts = shown.sum(1), present.sum(1)
        self.own_at = self.repeated_at + opponent.sum(1)
        self.ends = BOARD_AT + self.counts
        """Number of tokens up to the last one of the board."""
        rows, columns = present.nonzero()
        kinds, numbers = columns // SQUARES, columns % SQUARES
        self._at = rows, (np.cumsum(present, 1) - 1)[rows, columns]
        self._squares, self._pieces = tables.order[numbers], codes[rows, numbers]
        self._ids = tables.ids[kinds, black[rows].astype(np.int64), self._pieces, numbers]
        self._own_index = np.zeros((len(codes), SQUARES), np.int64)
        again = kinds == 2
        self._own_index[rows[again], self._squares[again]] = self._at[1][again]

    def with_tokens(self, tokens_BT: Array) -> Array:
        """Write the prefix and the board's tokens into `tokens_BT`, and return it."""
        tokens_BT[:, 0] = self._tables.prefix
        tokens_BT[self._at[0], BOARD_AT + self._at[1]] = self._ids
        return tokens_BT

    def batch(self, moves: "_Moves", shares: Array, wins: Array) -> BoardBatch:
        """Return the targets of the heads, for the share and the win probability of each move (B, moves)."""
        rows, longest = len(self._codes), int(self.counts.max())
        at = moves.rows, self._own_index[moves.rows, moves.origins], moves.targets
        of_moves, legal, values = np.zeros((3, rows, longest, SQUARES), np.float32)
        np.add.at(of_moves, at, shares[moves.at].astype(np.float32))
        legal[at] = 1
        lost = wins.max(1, keepdims=True) - wins
        np.maximum.at(values, at, (0.5 ** (lost / HALVING_LOSS))[moves.at].astype(np.float32))
        places = np.arange(longest)
        ends = places < self.counts[:, None]
        return BoardBatch(
            torch.from_numpy((places >= self.repeated_at[:, None]) & ends),
            torch.from_numpy((places >= self.own_at[:, None]) & ends),
            *map(torch.from_numpy, (of_moves, legal, self._attacks(longest), values)),
        )

    def _attacks(self, longest: int) -> Array:
        bits = np.uint64(1) << self._tables.order.astype(np.uint64)
        occupied = np.where(self._codes > 0, bits, np.uint64(0)).sum(1, dtype=np.uint64)
        blocked = self._tables.between[self._squares] & occupied[self._at[0], None]
        attacks = np.zeros((len(self._codes), longest, SQUARES), np.float32)
        attacks[self._at] = self._tables.reach[self._pieces, self._squares] & (blocked == 0)
        return attacks


class _Moves:
    """The N legal moves of a batch's positions."""

    def __init__(self, starts: Array, rows: Array, moves: Array, numbers: Array) -> None:
        self.rows, within, flat = _ragged(starts, rows)
        self.at = self.rows, within
        """Row and number of each move, (N,) each."""
        self.counts = starts[rows + 1] - starts[rows]
        self.origins, self.targets = (part.astype(np.int64) for part in divmod(moves[flat], SQUARES))
        self._numbers = numbers[flat]

    def padded(self, values: Array, fill: float) -> Array:
        """Return the value of each move's eval, (B, most moves), where a missing move has `fill`."""
        padded = np.full((len(self.counts), int(self.counts.max())), fill)
        padded[self.at] = values[self._numbers]
        return padded


def _soft_targets(
    tokens_BT: Array, logits: Array, moves: _Moves, tables: _Tables
) -> tuple[tuple[Array, Array], Array, Array]:
    """Return row and position, True for a first square, and the shares (…, 64), of each square's token in a move.

    See `PolicyExamples._targets`, which computes the same for one example.
    """
    rows = np.arange(len(tokens_BT))
    marker_m, marker_e, marker_b = ((tokens_BT == marker).argmax(1) for marker in tables.markers)
    places = np.arange(tokens_BT.shape[1])
    firsts = tables.is_first[tokens_BT] & (places > marker_m[:, None]) & (places < marker_e[:, None])
    # Positions of the candidates' first squares, in their order, then that of the best move.
    first_at = np.where(firsts, places, len(places)).argsort(1, kind="stable")[:, :MAX_CANDIDATES]
    first_at = np.concatenate([first_at, marker_b[:, None] + 1], 1)
    ranked = np.argsort(-logits, axis=1, kind="stable")
    named = [ranked[:, min(number, ranked.shape[1] - 1)] for number in range(MAX_CANDIDATES)]
    valid = np.array([moves.counts > number for number in range(MAX_CANDIDATES)] + [moves.counts > 0]).T
    left, soft = np.ones(logits.shape, bool), np.zeros((len(rows), MAX_CANDIDATES + 1, 2, SQUARES))
    for number, chosen in enumerate(named):
        # A row without such a candidate is left out below.
        shares = softmax(np.where(left | ~valid[:, [number]] | np.isneginf(logits), logits, NAMED_LOGIT), axis=1)
        soft[:, number] = _square_targets(shares, chosen, moves)
        left[rows, chosen] = False
    best = np.zeros(logits.shape)
    best[rows, named[0]] = 1.0
    soft[:, -1] = _square_targets(best, named[0], moves)
    kept = np.repeat(valid[:, :, None], 2, 2)
    at = first_at[:, :, None] + np.arange(2)
    row_of = np.broadcast_to(rows[:, None, None], at.shape)
    first = np.broadcast_to(np.array([True, False]), at.shape)
    return (row_of[kept], at[kept]), first[kept], soft[kept]


def _square_targets(probabilities: Array, chosen: Array, moves: _Moves) -> Array:
    """Return (B, 2, 64): targets of the two squares of the move `chosen` in each row; see `policy_examples`."""
    rows, count = np.arange(len(chosen)), len(chosen)
    origins = np.zeros(probabilities.shape, np.int64)
    origins[moves.at] = moves.origins
    shares = np.where(origins == origins[rows, chosen][:, None], probabilities, 0.0)
    alone = shares.sum(1) < LEAST_SHARE
    shares[alone] = 0.0
    shares[rows[alone], chosen[alone]] = 1.0
    first, second = np.zeros((2, count, SQUARES))
    np.maximum.at(first, (moves.rows, moves.origins), probabilities[moves.at])
    np.add.at(second, (moves.rows, moves.targets), (shares / shares.sum(1, keepdims=True))[moves.at])
    return np.stack([first / first.sum(1, keepdims=True), second], 1)


def _starts(counts: Array) -> Array:
    """Return where the entries of each example begin, and the number of all."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _ragged(starts: Array, examples: Array) -> tuple[Array, Array, Array]:
    """Return, for each entry of these examples, the row of its example, its number there, and its place in all."""
    counts = starts[examples + 1] - starts[examples]
    rows = np.repeat(np.arange(len(examples)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, within, starts[examples][rows] + within


def _joined(rows: Sequence[Sequence[int]]) -> Array:
    return np.array([token for row in rows for token in row], np.uint16)


def _float(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _codes(fen: str) -> list[int]:
    """Return the codes of the 64 squares, from a8 to h1."""
    board = chess.BaseBoard(fen.split(" ")[0])
    pieces = (board.piece_at(square) for square in BOARD_ORDER)
    return [CODES.index(piece.symbol()) if piece else 0 for piece in pieces]
