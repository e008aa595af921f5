"""Reference completions: a malformed one is our mistake, never a bad score."""

from typing import TypeVar

from ..tasks.types import EnvironmentAnswer, ParseFailure, PolicyAnswer

A = TypeVar("A", PolicyAnswer, EnvironmentAnswer)


class LabelError(ValueError):
    """A malformed label: ours to mend."""


def require_answer(label: str, parsed: A | ParseFailure) -> A:
    """What the strict parser made of `label`. Raises LabelError if that is a failure."""
    if isinstance(parsed, ParseFailure):
        raise LabelError(f"expected a label that parses, got {label!r}: {parsed.reason} {parsed.detail}")
    return parsed
