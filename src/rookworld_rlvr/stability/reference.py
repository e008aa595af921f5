"""The reference model of the KL penalty: frozen, or replaced by a copy of the policy at intervals.

A refresh is made as a whole between two steps, and its result is in the next checkpoint. KL is reported to the current
reference and to the original one, so a refresh hides no drift.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..model.policy import Policy
from ..model.sharded import load_full_state, reshard
from ..model.weights import cpu_state_dict


@dataclass(slots=True)
class ReferenceConfig:
    """The refreshes of the reference model."""

    refresh_every: int = 0
    """Number of steps after which the reference becomes a copy of the policy; 0 keeps the starting model."""

    def __post_init__(self) -> None:
        if self.refresh_every < 0:
            raise ValueError(f"reference.refresh_every: expected 0 or more, got {self.refresh_every}")


def make_reference(policy: Policy) -> Policy:
    """Return a frozen copy of the policy, with dropout off."""
    model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return replace(policy, model=model)


class References:
    """The current reference and the original one, which are one model if the reference never moves."""

    def __init__(self, policy: Policy, config: ReferenceConfig) -> None:
        self._config = config
        self.current = make_reference(policy)
        self.original = make_reference(policy) if config.refresh_every else self.current
        self.refreshes = 0

    @property
    def moves(self) -> bool:
        """True if the reference may differ from the original one."""
        return self.original is not self.current

    @torch.no_grad()
    def maybe_refresh(self, policy: Policy, *, step: int) -> None:
        """Make the reference a copy of the policy if that is due after `step`, counted from 1."""
        every = self._config.refresh_every
        if not every or step % every:
            return
        reshard(self.current.model)
        # A state_dict would list tied weights under each of their names.
        theirs = {**dict(policy.model.named_parameters()), **dict(policy.model.named_buffers())}
        for name, ours in (*self.current.model.named_parameters(), *self.current.model.named_buffers()):
            ours.copy_(theirs[name])
        self.refreshes += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of both on the CPU; None for the original if it is the same model."""
        return {
            "current": cpu_state_dict(self.current.model),
            "original": cpu_state_dict(self.original.model) if self.moves else None,
            "refreshes": self.refreshes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, refreshed or not: KL to the original stays KL to the starting model."""
        load_full_state(self.current.model, state["current"])
        if state["original"] is not None and not self.moves:
            if self.current.sharded:
                raise ValueError("expected the saved reference.refresh_every, because weights in shards are not copied")
            self.original = make_reference(self.current)
        if self.moves:
            load_full_state(self.original.model, state["original"] or state["current"])
        self.refreshes = state["refreshes"]
