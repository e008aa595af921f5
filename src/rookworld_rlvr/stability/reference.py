"""The reference model of the KL penalty: frozen, or replaced by a copy of the policy at intervals.

A refresh is made as a whole between two steps, and its result is in the next checkpoint. KL is reported to the current
reference and to the original one, so a refresh hides no drift.

With an adapter (`model.adapter`) there is no second copy of the weights: the original is the policy's model without its
adapter, and a reference that is refreshed has an adapter of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..model.adapter import copy_sharing_frozen, has_adapter, without_adapter
from ..model.policy import Policy
from ..model.sharded import load_full_state, reshard
from ..model.weights import cpu_state_dict, load_training_state, training_state


@dataclass(slots=True)
class ReferenceConfig:
    """The refreshes of the reference model."""

    refresh_every: int = 0
    """Number of steps after which the reference becomes a copy of the policy; 0 keeps the starting model."""

    def __post_init__(self) -> None:
        if self.refresh_every < 0:
            raise ValueError(f"reference.refresh_every: expected 0 or more, got {self.refresh_every}")


def make_reference(policy: Policy) -> Policy:
    """Return a frozen copy of the policy, with dropout off. Of a model with an adapter, only the adapter is copied."""
    return replace(policy, model=copy_sharing_frozen(policy.model).eval().requires_grad_(False))


def make_original(policy: Policy) -> Policy:
    """Return the starting model, frozen and with dropout off; called before any update."""
    reference = make_reference(policy)
    return replace(reference, model=without_adapter(reference.model))


class References:
    """The current reference and the original one, which are one model if the reference never moves."""

    def __init__(self, policy: Policy, config: ReferenceConfig) -> None:
        self._config, self._policy = config, policy
        self.original = make_original(policy)
        self.current = make_reference(policy) if config.refresh_every else self.original
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
            # Frozen weights are the policy's own.
            if ours is not theirs[name]:
                ours.copy_(theirs[name])
        self.refreshes += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of both on the CPU. None for the original if it is the same model or has no adapter.

        With an adapter, the current one is None as well while it is the original.
        """
        adapted = has_adapter(self._policy.model)
        return {
            "current": None if adapted and not self.moves else training_state(self.current.model),
            "original": cpu_state_dict(self.original.model) if self.moves and not adapted else None,
            "refreshes": self.refreshes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, refreshed or not: KL to the original stays KL to the starting model."""
        if has_adapter(self._policy.model):
            self._load_adapter(state)
        else:
            self._load_models(state)
        self.refreshes = state["refreshes"]

    def _load_adapter(self, state: Mapping[str, Any]) -> None:
        if state["current"] is None:
            return
        if not self.moves:
            self.current = make_reference(self._policy)
        load_training_state(self.current.model, state["current"])

    def _load_models(self, state: Mapping[str, Any]) -> None:
        load_full_state(self.current.model, state["current"])
        if state["original"] is not None and not self.moves:
            if self.current.sharded:
                raise ValueError("expected the saved reference.refresh_every, because weights in shards are not copied")
            self.original = make_reference(self.current)
        if self.moves:
            load_full_state(self.original.model, state["original"] or state["current"])
