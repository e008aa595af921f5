"""What two evaluations must have in common for their rows to be compared, and what is told where it differs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation.suite import SuiteName
from .rows_file import MISSING, leaves

# Where something lies or is written: what was read from there is compared row by row, by checksum or engine's name.
PLACES = ("path", "file", "pgn", "config.retention.baseline")
# What policy/win_probability_loss depends on.
OF_THE_LOSS = ("config.evaluation_nodes", "config.stockfish.", "facts.policy.engine")
MODEL = "config.model.path"


def differing_settings(
    heads: tuple[Mapping[str, Any], Mapping[str, Any]], suites: Sequence[str], files: tuple[Path, Path]
) -> dict[str, tuple[Any, Any]]:
    """What else differs beside the model, by name, between two evaluations that both have `suites`.

    Raises UserError where the figures would not be of the same thing: another seed, other facts or settings of a
    common suite, another engine or other nodes behind a loss that both have. Names of files may differ.
    """
    first, second = (dict(_told(head, suites)) for head in heads)
    names = [name for name in dict.fromkeys([*first, *second]) if name != MODEL]
    both = {name: (first.get(name, MISSING), second.get(name, MISSING)) for name in names}
    found = {name: values for name, values in both.items() if values[0] != values[1]}
    loss = all("engine" in head["facts"].get(SuiteName.policy, {}) for head in heads)
    for name, values in found.items():
        if _binds(name, suites, loss):
            told = " and ".join(f"{value!r} in {path}" for value, path in zip(values, files, strict=True))
            raise UserError(f"expected two results of one evaluation, got others: {name} is {told}")
    return found


def _told(head: Mapping[str, Any], suites: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The settings and facts of one, less those of suites that are not compared."""
    others = {name.value for name in SuiteName} - set(suites)
    for part in ("config", "facts", "software"):
        kept = {name: value for name, value in head[part].items() if name not in others}
        yield from leaves(kept, part)


def _binds(name: str, suites: Sequence[str], loss: bool) -> bool:
    if name in PLACES or name.rpartition(".")[2] in PLACES:
        return False
    if name.startswith(OF_THE_LOSS):
        return loss and SuiteName.policy in suites
    return name == "config.seed" or name.split(".")[1] in suites
