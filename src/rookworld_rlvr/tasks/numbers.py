"""Reading of numbers in completions."""

import re

# Bounded, so that no digit string overflows to infinity.
_NUMBER = re.compile(r"[+-]?\d{1,6}(?:\.\d{1,6})?", re.ASCII)


def parse_number(text: str) -> float | None:
    """Parse a plain decimal number; None for anything else, including NaN, inf, exponents and underscores.

    >>> parse_number("-2.07"), parse_number("nan"), parse_number("1e3")
    (-2.07, None, None)
    """
    return float(text) if _NUMBER.fullmatch(text) else None
