"""Study: its question, its arms and the criteria of its verdict, declared in `studies/NAME.yaml` before any run."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from rookworld_rlvr.app.arguments import conf_folder
from rookworld_rlvr.app.hydra_command import store_schema, to_dataclass
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.keys import is_tested
from rookworld_rlvr.rewards import Rubric
from rookworld_rlvr.shell import setting
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.run_files import CONFIG_FILE, SUMMARY, is_unfinished

# Overrides of every member. Those of its study and of its arm come after them. The precision is given because `auto`
# would make members on machines with and without bf16 instructions differ.
MEMBER = [
    *("steps=100", "threads=1", "precision=fp32", "evaluation.rows=1024", "evaluation.sampled_rows=0"),
    *("evaluation.match_pairs=0", "evaluation.curve_every=0"),
]
# The same as the options were at the commit of answered studies, whose results are found by their overrides.
MEMBER_AT = {
    "354d25a": [
        *("steps=100", "threads=1", "precision=fp32", "evaluation_rows=1024", "sampled_rows=0", "match_pairs=0"),
        *("validation.every=0", "rollouts_every=0"),
    ]
}
# Options that a study must not override, because `run.py` decides them.
RESERVED_OPTIONS = {"seed", "output_root", "resume", "name", "processes", "distributed", "max_minutes"}
STUDIES, OUTPUTS, DOCS = Path("studies"), Path("outputs", "studies"), Path("docs", "studies")
# File in a member's folder with its overrides, commits, seconds and failure.
MEMBER_FILE = "member.json"
FOLDER_NAME = re.compile(r"\w[\w.+-]*")


@dataclass(slots=True)
class Study:
    """The declaration of a study. Raises ValueError on values that contradict each other."""

    question: str
    """One sentence that is answered by yes or no."""
    source: str
    """Source of the question: a seed document, by number and claim, or another source."""
    arms: dict[str, list[str]]
    """Overrides by the name of the arm. The first is the control."""
    comparison: str
    """The arm whose difference to the control answers the question."""
    smallest_effect: float
    """The smallest difference of the primary key that matters, in the key's unit; above 0 for either direction."""
    key: str = "policy/win_probability_loss"
    """The primary key: the evaluation key that decides the verdict."""
    guards: list[str] = field(default_factory=lambda: ["policy/mate_in_one", "environment/recall_legal"])
    """Two keys that must not get worse."""
    curve: str = ""
    """Metric of the steps whose rise the page shows too, as the first step at which it reaches `level`; empty: none."""
    level: float = 0.5
    """See `curve`."""
    overrides: list[str] = field(default_factory=list)
    """Overrides of all arms."""
    seeds: int = 3
    """Number of seeds of an arm; they are counted from 0."""
    comparison_seeds: int = 5
    """Number of seeds of the control and of `comparison`."""
    removed_arms: int = 0
    """Number of declared arms that were removed since, with their options or unrun. Holm's correction counts them."""
    repeatable_at: str = ""
    """Commit whose options and scripts the overrides name, once the study is answered; empty: today's options."""
    note: str = ""
    """What the study leaves out, or how its arms were chosen."""

    def __post_init__(self) -> None:
        for name in self.arms:
            if not FOLDER_NAME.fullmatch(name):
                raise ValueError(f"arms: expected names of letters, digits, and . + - _, got {name!r}")
        if self.repeatable_at and self.repeatable_at not in MEMBER_AT:
            raise ValueError(f"repeatable_at: expected one of {', '.join(MEMBER_AT)}, got {self.repeatable_at!r}")
        if len(self.arms) < 2 or self.comparison not in list(self.arms)[1:]:
            raise ValueError(f"comparison: expected an arm after the first, got {self.comparison!r}")
        if not 2 <= self.seeds <= self.comparison_seeds:
            raise ValueError(
                f"expected seeds from 2 and comparison_seeds from that, got {self.seeds} and {self.comparison_seeds}"
            )
        if not self.smallest_effect > 0:
            raise ValueError(f"smallest_effect: expected above 0, got {self.smallest_effect}")
        for key in (self.key, *self.guards):
            if not is_tested(key):
                raise ValueError(f"expected an evaluation key that has a direction, got {key!r}")
        if len({self.key, *self.guards}) != 3:
            raise ValueError(f"guards: expected two keys beside {self.key}, got {self.guards}")
        for override in [*self.overrides, *(one for arm in self.arms.values() for one in arm)]:
            if override.split("=", 1)[0].lstrip("+~") in RESERVED_OPTIONS:
                raise ValueError(f"expected overrides of other options, got {override!r}, which run.py gives itself")

    @property
    def control(self) -> str:
        return next(iter(self.arms))

    def seeds_of(self, arm: str) -> range:
        return range(self.comparison_seeds if arm in (self.control, self.comparison) else self.seeds)

    @property
    def shared(self) -> list[str]:
        """The overrides of all arms; if an option occurs twice, the later override counts."""
        return [*MEMBER_AT.get(self.repeatable_at, MEMBER), *self.overrides]

    def overrides_of(self, arm: str) -> list[str]:
        """Return the overrides of an arm's members, without the seed and the folder."""
        return [*self.shared, *self.arms[arm]]


RunKey = tuple[tuple[str, ...], int]
"""Overrides and seed: what a run is, in whatever study."""


@dataclass(frozen=True, slots=True)
class Member:
    """An arm of a study with a seed."""

    folder: Path
    arm: str
    seed: int
    overrides: Sequence[str]
    """The overrides of `rookworld train`, without the seed and the folder."""

    @property
    def key(self) -> str:
        """Its folder relative to that of all studies: study, arm and seed."""
        return self.folder.relative_to(OUTPUTS).as_posix()

    @property
    def run_key(self) -> RunKey:
        """Its overrides and its seed, by which its result is found."""
        return tuple(self.overrides), self.seed

    @property
    def command(self) -> list[str]:
        """The command that resumes the newest run in its folder with that run's configuration, or starts a new run."""
        begun = [path.parent for path in self.folder.glob(f"*/*/{CONFIG_FILE}")]
        given = [
            *self.overrides,
            f"seed={self.seed}",
            f"name={self.folder.parts[-2]}",
            setting("output_root", self.folder),
        ]
        program = [sys.executable, "-m", "rookworld_rlvr", "train"]
        return [*program, *([setting("resume", max(begun))] if begun else given)]

    @property
    def run(self) -> Path | None:
        """The folder of its finished run, None if there is none yet."""
        finished = [path.parent for path in self.folder.glob(f"*/*/{SUMMARY}") if not is_unfinished(path.parent)]
        return max(finished, default=None)

    def record(self) -> dict[str, Any]:
        """Return its `overrides`, `commits`, `seconds` of all processes, and `failure` (empty: none)."""
        path = self.folder / MEMBER_FILE
        if not path.is_file():
            return {"overrides": list(self.overrides), "commits": [], "seconds": 0.0, "failure": ""}
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record


def members(name: str, study: Study) -> list[Member]:
    """Return all members; control and comparison come first, seed by seed, so that a study cut short has paired seeds.

    Arms with the same overrides share their runs, in the folder of the study that is first in alphabetical order.
    """
    folders: dict[tuple[str, ...], Path] = {}
    for other, declared in {**{each: declaration(each) for each in names()}, name: study}.items():
        for arm in declared.arms:
            folders.setdefault(tuple(declared.overrides_of(arm)), OUTPUTS / other / arm)
    decisive = (study.control, study.comparison)
    every = [
        Member(folders[tuple(overrides)] / f"seed={seed}", arm, seed, overrides)
        for seed in range(study.comparison_seeds)
        for arm, overrides in ((arm, study.overrides_of(arm)) for arm in study.arms)
        if seed in study.seeds_of(arm)
    ]
    return sorted(every, key=lambda member: member.arm not in decisive)


def read_study(name: str) -> Study:
    """Return the declaration `studies/<name>.yaml`. Raises UserError.

    It is also raised if an arm of a study that is not answered yet is no configuration.
    """
    study = declaration(name)
    for arm in study.arms if not study.repeatable_at else ():
        try:
            Rubric(composed(study.overrides_of(arm)).rubric)
        except (UserError, ValueError) as error:
            raise UserError(f"{_path(name)}: {arm}: {error}") from error
    return study


def declaration(name: str) -> Study:
    """Return the declaration as `read_study` does, but without checking the overrides. Raises UserError."""
    path = _path(name)
    if not path.is_file():
        raise UserError(f"expected a study, one of {', '.join(names()) or 'none here'}; got {name!r}")
    try:
        study: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.load(path)))
    except (ValueError, TypeError, AttributeError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: {_one_line(error)}") from error
    assert isinstance(study, Study)
    return study


def _path(name: str) -> Path:
    return STUDIES / f"{name}.yaml"


def names() -> list[str]:
    """Return the names of the declared studies, in alphabetical order."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def composed(overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of `rookworld train` with these overrides. Raises UserError."""
    store_schema("train", RunConfig)
    try:
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            raw = compose("train", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from error
    config: RunConfig = to_dataclass(raw)
    return config


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " | ".join(line for line in lines if line) or type(error).__name__
