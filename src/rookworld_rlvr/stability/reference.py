"""The reference model of the KL penalty: frozen, or updated from the policy at intervals.

A refresh is made as a whole between two steps, and its result is in the next checkpoint. KL is reported to the current
reference and to the original one, so a refresh hides no drift.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch

from ..model.policy import Policy
from ..model.sharded import load_full_state, reshard


class ReferenceMode(StrEnum):
    """Rule by which the reference takes over the policy's weights."""

    frozen = "frozen"
    """Never: the reference remains the starting model."""
    every = "every"
    """Every refresh_every steps it becomes a copy of the policy."""
    ema = "ema"
    """Every refresh_every steps it moves 0.6 of the way to the policy (TR-DPO, arXiv 2404.09656)."""
    on_improvement = "on_improvement"
    """Every refresh_every steps it becomes a copy, but only if the validation score has not fallen since the last
    refresh."""


EMA_FRACTION = 0.6
"""The value that TR-DPO found best."""


@dataclass(slots=True)
class ReferenceConfig:
    """The reference model and its refreshes."""

    mode: ReferenceMode = ReferenceMode.frozen
    refresh_every: int = 50
    """Number of steps between refreshes; not used by frozen."""

    def __post_init__(self) -> None:
        if self.refresh_every < 1:
            raise ValueError(f"reference.refresh_every: expected 1 or more, got {self.refresh_every}")


def make_reference(policy: Policy) -> Policy:
    """Return a frozen copy of the policy, with dropout off."""
    model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return replace(policy, model=model)


class References:
    """The current reference and the original one, which are one model if the reference never moves."""

    def __init__(self, policy: Policy, config: ReferenceConfig) -> None:
        self._config = config
        self.current = make_reference(policy)
        self.original = self.current if config.mode is ReferenceMode.frozen else make_reference(policy)
        self.refreshes = 0
        self._score = 0.0

    @property
    def moves(self) -> bool:
        """True if the reference may differ from the original one."""
        return self.original is not self.current

    def begin(self, score: float) -> None:
        """Set the validation score with which on_improvement compares the first refresh."""
        self._score = score

    def maybe_refresh(self, policy: Policy, *, step: int, score: Callable[[], float]) -> bool:
        """Refresh the reference if that is due after `step`, counted from 1; return whether it was refreshed.

        `score` is called only if the mode needs it.
        """
        mode = self._config.mode
        due = mode is not ReferenceMode.frozen and step % self._config.refresh_every == 0
        if due and mode is ReferenceMode.on_improvement:
            due = self._improved(score())
        if due:
            self._move_to(policy, EMA_FRACTION if mode is ReferenceMode.ema else 1.0)
            self.refreshes += 1
        return due

    def _improved(self, score: float) -> bool:
        if score < self._score:
            return False
        self._score = score
        return True

    @torch.no_grad()
    def _move_to(self, policy: Policy, fraction: float) -> None:
        """Move each tensor once, by the fraction; a state_dict would list tied weights under each of their names."""
        reshard(self.current.model)
        theirs = dict(policy.model.named_parameters())
        for name, ours in self.current.model.named_parameters():
            ours.lerp_(theirs[name], fraction)
        buffers = dict(policy.model.named_buffers())
        for name, buffer in self.current.model.named_buffers():
            buffer.copy_(buffers[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of both; None for the original if it is the same model."""
        return {
            "current": self.current.model.state_dict(),
            "original": self.original.model.state_dict() if self.moves else None,
            "refreshes": self.refreshes,
            "score": self._score,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, whichever mode saved it: KL to the original stays KL to the starting model."""
        load_full_state(self.current.model, state["current"])
        if state["original"] is not None and not self.moves:
            if self.current.sharded:
                raise ValueError("expected the saved reference.mode, because weights in shards are not copied")
            self.original = make_reference(self.current)
        if self.moves:
            load_full_state(self.original.model, state["original"] or state["current"])
        self.refreshes, self._score = state["refreshes"], state["score"]
