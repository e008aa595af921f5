"""Fixtures: runs of the small model, built by the code that the command line uses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rookworld_rlvr.app.build import build_run, build_unsaved_run
from rookworld_rlvr.stability import guards, recovery
from rookworld_rlvr.training import health, loop
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.run import Run


@pytest.fixture
def make_config(small_overrides: list[str], tmp_path: Path) -> Callable[..., RunConfig]:
    """Return a function that makes the small run's configuration with overrides, without a command line."""

    def make(*overrides: str) -> RunConfig:
        given = OmegaConf.from_dotlist([*small_overrides, f"output_root={tmp_path / 'outputs'}", *overrides])
        config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), given))
        assert isinstance(config, RunConfig)
        return config

    return make


@pytest.fixture
def make_run(make_config: Callable[..., RunConfig]) -> Callable[..., Run]:
    """Return a function that builds a run without a folder, if wanted with padded rows in place of packed ones."""

    def make(*overrides: str, packs: bool = True) -> Run:
        run = build_unsaved_run(make_config(*overrides))
        for policy in (run.context.policy, run.context.references.current, run.context.references.original):
            policy.packs = packs
        return run

    return make


@pytest.fixture
def make_saved_run(make_config: Callable[..., RunConfig]) -> Callable[..., Run]:
    """Return a function that builds a run with its folder and sinks."""

    def make(*overrides: str) -> Run:
        config = make_config(*overrides)
        return build_run(config, OmegaConf.structured(config))

    return make


@pytest.fixture
def set_limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets constants of recovery, guards, health and the loop by name, for one test."""

    def set_values(**values: float) -> None:
        for name, value in values.items():
            [module] = [module for module in (recovery, guards, health, loop) if hasattr(module, name)]
            monkeypatch.setattr(module, name, value)

    return set_values
