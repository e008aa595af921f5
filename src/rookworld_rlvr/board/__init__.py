"""Chess rules as pure functions on top of python-chess."""

from .fen import is_valid_fen, parse_fen, position_key
from .moves import is_legal_uci, is_mate, is_uci
from .transition import Transition, step

__all__ = [
    "Transition",
    "is_legal_uci",
    "is_uci",
    "is_valid_fen",
    "is_mate",
    "parse_fen",
    "position_key",
    "step",
]
