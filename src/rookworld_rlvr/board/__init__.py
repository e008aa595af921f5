"""Chess itself, as pure functions over python-chess."""

from .fen import FenField, differing_fields, is_valid_fen, normalize_fen, parse_fen, position_key
from .moves import Legality, MoveFault, MoveVerdict, is_legal_uci, is_uci, judge_move
from .transition import Transition, step, step_game

__all__ = [
    "FenField",
    "Legality",
    "MoveFault",
    "MoveVerdict",
    "Transition",
    "differing_fields",
    "is_legal_uci",
    "is_uci",
    "is_valid_fen",
    "judge_move",
    "normalize_fen",
    "parse_fen",
    "position_key",
    "step",
    "step_game",
]
