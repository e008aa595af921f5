"""Overrides that hydra's grammar cannot read, because a value needs quotes: one line that shows how to write them."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from ..errors import UserError
from ..shell import quoted, shell_word

OPTION = re.compile(r"([+~]{0,2}[\w./@-]+)=(.*)", re.DOTALL)


def require_quotes(overrides: Sequence[str], *, sweep: bool) -> None:
    """Raise UserError for the first override that hydra cannot read and could with quotes, with the quotes in place.

    Without `sweep`, a value with a comma is refused, too: it would be a choice of several values. Other errors are left
    to hydra.
    """
    for override in overrides:
        option = OPTION.fullmatch(override)
        if option is None:
            continue
        name, value = option.groups()
        parsed = _parsed(override)
        if parsed is None and (better := _quoted(name, value, sweep=sweep)):
            raise UserError(
                f"{name}: expected quotes around a value with {_reason(value)}, got {override}; type "
                f"{shell_word(f'{name}={better}')}"
            )
        if parsed is not None and not sweep and _is_choice(parsed):
            text, several = shell_word(f"{name}={quoted(value)}"), shell_word(f"{name}=[{value}]")
            wanted = f"one value, got {override} with a comma"
            raise UserError(f"{name}: expected {wanted}; type {text}, or for a list {several}")


def _parsed(override: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException:
        return None


def _is_choice(override: Override) -> bool:
    value = override.value()
    return isinstance(value, ChoiceSweep) and value.simple_form


def _quoted(name: str, value: str, *, sweep: bool) -> str:
    """Return the value with quotes around it, or around those elements of a list that need them; empty if none help."""
    is_list = value.startswith("[") and value.endswith("]")
    elements = (value[1:-1] if is_list else value).split(",") if is_list or sweep else [value]
    better = ",".join(one if _parsed(f"{name}={one}") else quoted(one) for one in elements)
    better = f"[{better}]" if is_list else better
    return better if _parsed(f"{name}={better}") else ""


def _reason(value: str) -> str:
    """Name the characters that hydra cannot read as they stand."""
    inside = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    wrong = [character for character in dict.fromkeys(inside) if _parsed(f"a=b{character}b") is None]
    return " and ".join(f'"{one}"' if one == "'" else f"'{one}'" for one in wrong) or "these characters"
