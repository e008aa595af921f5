"""Declarations of evaluation keys: the scale, the direction and the meaning of their values."""

from dataclasses import dataclass
from enum import Enum
from math import inf


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of graded values."""

    lowest: float
    """Lowest value. It may be minus infinity."""
    highest: float
    """Highest value. It may be infinity."""

    @property
    def width(self) -> float:
        return self.highest - self.lowest


class Direction(Enum):
    """The direction in which a key improves."""

    higher = "higher"
    lower = "lower"
    neutral = "neutral"
    """Neither direction is better: the key is a property of games or of the opponent."""


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of a key's values. A key without a text is not in the generated documentation."""

    direction: Direction
    scale: Scale | None = None
    """Range of the values. None if they are right or wrong."""
    unit: str = ""
    meaning: str = ""
    healthy: str = ""
    """Value or trend to expect of a model that plays well."""


FRACTION, COUNT, REAL = Scale(0.0, 1.0), Scale(0.0, inf), Scale(-inf, inf)


def higher(meaning: str, healthy: str = "rises", scale: Scale | None = None, unit: str = "fraction") -> Key:
    """Return a key whose higher values are better."""
    return Key(Direction.higher, scale, unit, meaning, healthy)


def lower(meaning: str, healthy: str = "falls", scale: Scale | None = None, unit: str = "fraction") -> Key:
    """Return a key whose lower values are better."""
    return Key(Direction.lower, scale, unit, meaning, healthy)


def neutral(meaning: str, healthy: str = "–", scale: Scale | None = None) -> Key:
    """Return a key of which no direction is better."""
    return Key(Direction.neutral, scale, "fraction", meaning, healthy)
