"""Features of the tokens: zeros and ones that say which piece, square, side and digits a token stands for."""

import re
from collections.abc import Mapping

import chess
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .tokenizer import (
    board_pieces,
    opponent_token,
    own_token,
    piece_symbols,
    piece_token,
    prompt_token,
)

NUMBER = re.compile(r"(?P<lead>[ +.]?)(?P<digits>[0-9]{1,2})")


def token_features(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return (V, features): 1 where a token has a feature, else 0.

    A piece on a square has features of its piece, colour, kind, square, file, rank and diagonals. On the board of a
    prompt it also has features of its side (own or opponent's) and of the square as the side to move sees it. The name
    of a square in a move shares the features of the square. A number has features of its digits.
    """
    features = _Features(tokenizer.get_vocab())
    for square in chess.SQUARES:
        _add_board_tokens(features, square)
    features.add_numbers()
    for square in chess.SQUARES:
        for turn in chess.COLORS:
            _add_repeated_tokens(features, square, turn)
    return features.matrix()


class _Features:
    """Features by name, in the order in which they are added, with the tokens that have them."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids, self._names = ids, dict[str, int]()
        self._rows: list[list[int]] = [[] for _ in ids]

    def add(self, token: str, *features: str) -> None:
        self._rows[self._ids[token]] += [self._names.setdefault(feature, len(self._names)) for feature in features]

    def add_numbers(self) -> None:
        # Sorted by id, because the order of a vocabulary differs from run to run.
        for token in sorted(self._ids, key=self._ids.__getitem__):
            if number := NUMBER.fullmatch(token):
                lead, digits = number["lead"], number["digits"]
                places = [f"digit {place} {digit}" for place, digit in enumerate(reversed(digits))]
                self.add(token, f"number {lead!r}", f"digits {len(digits)}", *places)

    def matrix(self) -> Tensor:
        features_VF = torch.zeros(len(self._rows), len(self._names))
        for number, columns in enumerate(self._rows):
            features_VF[number, columns] = 1.0
        return features_VF


def _add_board_tokens(features: _Features, square: int) -> None:
    for piece in board_pieces(square):
        features.add(piece_token(piece, square), "board", *_square(square), *_piece(piece))
        for turn in chess.COLORS:
            sides = _side(piece, turn)
            rank = chess.square_rank(square if turn else chess.square_mirror(square))
            side_on_rank = [f"{side} relative rank {rank}" for side in sides]
            place = [*_square(square), *_piece(piece), *sides, *_relative(square, turn), f"turn {turn}"]
            features.add(prompt_token(piece, square, turn), "prompt board", *place, *side_on_rank)
    for lead in ("", " "):
        features.add(lead + chess.square_name(square), f"name {lead!r}", *_square(square))


def _add_repeated_tokens(features: _Features, square: int, turn: chess.Color) -> None:
    for name, side, token in (("own", turn, own_token), ("opponent", not turn, opponent_token)):
        for piece in piece_symbols(side):
            of_piece = [*_piece(piece), *_side(piece, turn), f"turn {turn}"]
            repeated = f"repeated {name}"
            features.add(token(piece, square, turn), repeated, *_square(square), *of_piece, *_relative(square, turn))


def _relative(square: int, turn: chess.Color) -> list[str]:
    """Return the features of a square as the side to move sees it."""
    return [f"relative {feature}" for feature in _square(square if turn else chess.square_mirror(square))]


def _square(square: int) -> list[str]:
    file, rank = chess.square_file(square), chess.square_rank(square)
    lines = [f"file {file}", f"rank {rank}", f"diagonal {file + rank}", f"antidiagonal {file - rank}"]
    return [f"square {square}", *lines, f"shade {(file + rank) % 2}"]


def _piece(piece: str) -> list[str]:
    if piece.upper() not in "PNBRQK":
        return ["blank"]
    return [f"piece {piece}", f"kind {piece.upper()}", f"white {piece.isupper()}"]


def _side(piece: str, turn: chess.Color) -> list[str]:
    if piece.upper() not in "PNBRQK":
        return ["blank in a prompt"]
    own = piece.isupper() == turn
    return [f"own {own}", f"own {own} {piece.upper()}"]
