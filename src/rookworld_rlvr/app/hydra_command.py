"""Commands with a hydra configuration: composition, sweeps, and errors reported in one clear line."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from math import prod
from typing import Any

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import (
    BAD_INPUT,
    DONE,
    GAVE_UP,
    INTERRUPTED,
    RAISED_ON,
    REFUSED,
    PreflightError,
    TrainingGaveUpError,
    UserError,
)
from ..model.world import RankError
from ..rewards import ScorerError
from ..rollout.generator import GeneratorError
from .arguments import conf_folder, groups
from .old_names import refuse_old_names
from .quotes import require_quotes

EXIT_CODES: dict[type[Exception], int] = {
    UserError: BAD_INPUT,
    PreflightError: REFUSED,
    TrainingGaveUpError: GAVE_UP,
    # Another rank has failed or does not answer.
    RankError: GAVE_UP,
    # Raised outside a step, in the preflight checks or an evaluation, where there is no recovery.
    GeneratorError: GAVE_UP,
    ScorerError: GAVE_UP,
    # In an evaluation or a checkpoint outside a step.
    torch.OutOfMemoryError: GAVE_UP,
}
MULTIRUN_FLAGS = ("-m", "--multirun")
# Start of hydra's advice for adding an unknown option. It is left out, because a dataclass refuses unknown options.
ADVICE = "To append to your "
MPS_ADVICE = "on a Mac training runs on the CPU for now: device=cpu"
NO_SUCH_GROUP = "No match in the defaults list."
NO_SUCH_OPTION = re.compile(r"Could not override '([\w.]+)'")
# A group of options was given a value.
NO_CHOICE = re.compile(r"Error merging override (\w+)=.*Invalid type assigned")
MOST_LIKE = 3
# Largest number of characters of a sweep's overrides in the name of a folder.
LABEL_CHARACTERS = 80


class _InterruptedError(BaseException):
    """Ends a sweep. It is a BaseException, because hydra continues a sweep after any Exception."""


@cache
def store_schema(name: str, schema: type) -> None:
    """Let hydra check `conf/<name>.yaml` against a dataclass. Cached, because it takes half the time of composing."""
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)


def run_command(name: str, schema: type, argv: list[str], task: Callable[[Any, DictConfig], int | None]) -> int:
    """Compose `conf/<name>.yaml` with the overrides in argv and call `task(config, raw)`, once per member of a sweep.

    Returns the exit code, which is the result of `task` (None counts as 0); for a sweep, the highest of its members. An
    interrupted member ends the sweep.
    """
    given = [argument for argument in argv if "=" in argument and not argument.startswith("-")]
    try:
        refuse_old_names(name, given)
        require_quotes(given, sweep=any(flag in argv for flag in MULTIRUN_FLAGS))
    except UserError as error:
        return _complain(error)
    store_schema(name, schema)
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=name)
    def job(raw: DictConfig) -> None:
        codes.append(_guarded(task, raw))
        if codes[-1] == INTERRUPTED:
            raise _InterruptedError

    # Makes hydra raise its errors instead of printing them and exiting with code 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Flags go first, because hydra's argparse refuses overrides after a flag that stands between overrides.
    argv = sorted(argv, key=lambda argument: argument not in MULTIRUN_FLAGS)
    arguments, sys.argv = sys.argv, ["rookworld", *argv]
    try:
        job()
    except _InterruptedError:
        pass
    except (HydraException, OmegaConfBaseException, OSError) as error:
        return _complain(error, _advice(_one_line(error), name, schema))
    finally:
        sys.argv = arguments
    return max(codes, default=DONE)


def overrides() -> list[str]:
    """Return the overrides of this run, `key=value` each."""
    return list(HydraConfig.get().overrides.task)


@dataclass(frozen=True, slots=True)
class SweepMember:
    """Position of a run in a sweep."""

    number: int
    """Number of this member, from 1."""
    count: int
    """Number of members."""
    own: Sequence[str]
    """This member's values of the overrides that the sweep varies, `key=value` each."""

    @property
    def label(self) -> str:
        """Varied overrides as part of a folder's name. Without `=`, for which hydra would need quotes."""
        return re.sub(r"[^\w.+-]+", "-", "_".join(self.own)).strip("-")[:LABEL_CHARACTERS]

    def __str__(self) -> str:
        return f"[{self.number}/{self.count}] {' '.join(self.own)}"


def sweep_member() -> SweepMember | None:
    """Return the position of this run in a sweep; None if there is no sweep."""
    mode = HydraConfig.get().mode
    if mode is None or mode.name != "MULTIRUN":
        return None
    given = [argument for argument in sys.argv[1:] if argument not in MULTIRUN_FLAGS]
    parsed = OverridesParser.create().parse_overrides(given)
    swept = {override.get_key_element(): override for override in parsed if override.is_sweep_override()}
    count = prod(len(list(override.sweep_string_iterator())) for override in swept.values())
    own = [override for override in overrides() if override.split("=", 1)[0] in swept]
    return SweepMember(int(HydraConfig.get().job.num) + 1, count, own)


def to_dataclass(raw: DictConfig) -> Any:
    """Convert the configuration to its dataclasses, which check their values. Raises UserError."""
    try:
        return OmegaConf.to_object(raw)
    except (ValueError, AttributeError, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from error


def _guarded(task: Callable[[Any, DictConfig], int | None], raw: DictConfig) -> int:
    try:
        return task(to_dataclass(raw), raw) or DONE
    except tuple(EXIT_CODES) as error:
        _complain(error)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except OSError as error:
        # For example a full disk or a closed pipe. If the error left this function, hydra would print another line.
        return _complain(error)


def _complain(error: Exception, advice: str = "") -> int:
    rank = os.environ.get("RANK", "0")
    raised_on = [note for note in getattr(error, "__notes__", []) if note.startswith(RAISED_ON)]
    # If several ranks end with the same error, only one of them reports it.
    if raised_on in ([], [f"{RAISED_ON}{rank}"]):
        who = f"rookworld: rank {rank}" if rank != "0" else "rookworld"
        message = " | ".join(part for part in (_one_line(error), advice) if part)
        print(f"{who}: {message}", file=sys.stderr)
    return BAD_INPUT


def _advice(message: str, name: str, schema: type) -> str:
    """Return advice on what to type instead: the existing groups, or options with a similar name; empty if none."""
    if NO_SUCH_GROUP in message:
        return f"expected group=choice, the groups of {name}: {', '.join(groups(name)) or 'none'}"
    if "'mps'" in message:
        return MPS_ADVICE
    if group := NO_CHOICE.search(message):
        inside = [option for option in _options(schema()) if option.startswith(f"{group[1]}.")]
        return f"{group[1]} has options: {', '.join(inside)}"
    unknown = NO_SUCH_OPTION.search(message)
    options = _options_like(unknown[1], list(_options(schema()))) if unknown else []
    return f"did you mean {' or '.join(options)}?" if options else ""


def _options(config: Any, path: str = "") -> Iterator[str]:
    for option in fields(config):
        value = getattr(config, option.name)
        yield from _options(value, f"{path}{option.name}.") if is_dataclass(value) else [f"{path}{option.name}"]


def _options_like(unknown: str, options: Sequence[str]) -> list[str]:
    """Return at most MOST_LIKE options that end like the unknown one or, if none does, have a similar name.

    >>> _options_like("rows", ["evaluation.rows", "optim.lr", "seed"]), _options_like("optim.lrr", ["optim.lr", "seed"])
    (['evaluation.rows'], ['optim.lr'])
    """
    last = unknown.split(".")[-1]
    alike = [option for option in options if re.split(r"[._]", option)[-1] == last or option.split(".")[-1] == last]
    return (alike or get_close_matches(unknown, options))[:MOST_LIKE]


def _one_line(error: BaseException) -> str:
    """Join a message of hydra or omegaconf, which has several lines, and that of its cause into one line."""
    texts = [str(error)] + ([str(error.__cause__)] if isinstance(error.__cause__, OmegaConfBaseException) else [])
    lines = [line.strip() for text in texts for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(ADVICE)]
    return " | ".join(dict.fromkeys(kept)) or type(error).__name__
