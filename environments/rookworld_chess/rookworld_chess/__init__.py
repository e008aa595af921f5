"""Chess tasks for verifiers."""

from rookworld_chess.taskset import RookworldChessTaskset

__all__ = ["RookworldChessTaskset"]
