"""Chess itself, as pure functions over python-chess."""

from .fen import FenField, differing_fields, is_valid_fen, normalize_fen, parse_fen, position_key
from .moves import is_legal_uci, is_mate, is_uci
from .transition import Transition, step, step_game

__all__ = [
    "FenField",
    "Transition",
    "differing_fields",
    "is_legal_uci",
    "is_uci",
    "is_valid_fen",
    "is_mate",
    "normalize_fen",
    "parse_fen",
    "position_key",
    "step",
    "step_game",
]
