"""The reference model that KL is measured to: frozen, or refreshed every N steps."""

import copy
from dataclasses import dataclass

import torch

from .policy import Policy


@dataclass(slots=True)
class ReferenceConfig:
    """When the reference takes over the policy's weights."""

    refresh_every: int = 0
    """Steps between refreshes; 0: never, the reference is the starting model."""

    def __post_init__(self) -> None:
        if self.refresh_every < 0:
            raise ValueError(f"reference.refresh_every: expected 0 or more, got {self.refresh_every}")


def make_reference(policy: Policy) -> Policy:
    """A frozen copy of the policy, dropout off."""
    model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return Policy(model, policy.tokenizer, policy.precision, policy.device)


def refresh_due(config: ReferenceConfig, step: int) -> bool:
    """Whether the reference is refreshed after `step` (1 is the first) is done."""
    return config.refresh_every > 0 and step % config.refresh_every == 0


@torch.no_grad()
def refresh(reference: Policy, policy: Policy) -> None:
    """The reference becomes a copy of the policy; KL to it is 0 again."""
    reference.model.load_state_dict(policy.model.state_dict())
