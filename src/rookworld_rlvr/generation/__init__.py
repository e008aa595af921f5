"""Generation of data: rows of both tasks from numbered games, and move evaluations of existing rows.

Begin with `dataset.py`. Other packages import only the names below.
"""

from .dataset import CARD_FILE, GENERATED, Request, generate
from .move_evals import positions_with_moves, write_move_evals

__all__ = ["CARD_FILE", "GENERATED", "Request", "generate", "positions_with_moves", "write_move_evals"]
