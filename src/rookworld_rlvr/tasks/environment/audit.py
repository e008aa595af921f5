"""Audit of labelled `A:` rows by the fields in which they differ from python-chess, and the same rows corrected."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from ...board.fen import is_valid_fen
from ...board.transition import Transition
from ..task import TaskAudit
from ..types import EnvironmentPrompt, Example, FailureReason, ParseFailure
from .text import environment_truth, render_environment


class EnvironmentAudit(TaskAudit):
    """Counts of the findings of `environment_findings` in labelled rows."""

    def __init__(self) -> None:
        self.found, self._rewards = Counter[str](), Counter[str]()

    def add(self, query: EnvironmentPrompt, label: Transition) -> None:
        """Add a row; see `TaskAudit.add`."""
        self.found.update(environment_findings(query, label))
        self._rewards[str(label.reward)] += 1

    @property
    def defects(self) -> int:
        """Number of rows that differ in any field or are impossible. One row may be both."""
        return self.found["differing"] + self.found["impossible"]

    def lines(self) -> Iterator[str]:
        """Yield the findings as sentences; nothing if there are no rows."""
        found = self.found
        if found["rows"]:
            counts = ", ".join(f"{name} {found[name]}" for name in ("next_fen", "reward", "terminated", "truncated"))
            yield (
                f"{found['rows']} A: rows; {found['differing']} differ from python-chess ({counts}); "
                f"{found['illegal_as_legal']} record an illegal move as legal"
            )
        if found["impossible"]:
            yield f"{found['impossible']} of {found['rows']} A: rows begin in an impossible position"

    def card(self) -> dict[str, object]:
        """Return the number of rows of each reward."""
        return {"reward_classes": dict(sorted(self._rewards.items()))}


def environment_findings(query: EnvironmentPrompt, label: Transition) -> Iterator[str]:
    """Yield the name of each count to which a row belongs.

    - `rows`: every row. `impossible`: its position breaks the rules of chess, for example without a king.
    - `differing`: it differs in any field; and the names of the fields. A fivefold repetition, which no prompt can
      prove, counts as a difference in `terminated`.
    - `illegal_as_legal`: its move is illegal and not marked as truncated.
    """
    truth = environment_truth(query)
    yield "rows"
    if not is_valid_fen(query.fen):
        yield "impossible"
    if label != truth:
        yield "differing"
    yield from (f.name for f in fields(truth) if getattr(label, f.name) != getattr(truth, f.name))
    if truth.truncated and not label.truncated:
        yield "illegal_as_legal"


def corrected_environment(example: Example, query: EnvironmentPrompt, label: Transition) -> Example | ParseFailure:
    """Return a row with python-chess's completion. A row of an impossible position is dropped."""
    if not is_valid_fen(query.fen):
        return ParseFailure(FailureReason.bad_prompt, f"impossible position {query.fen}")
    truth = environment_truth(query)
    if label == truth:
        return example
    return Example(example.task, example.prompt, render_environment(truth), example.source)
