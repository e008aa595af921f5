"""Activation checkpointing gives the same bits as training without it."""

from collections.abc import Callable

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.step import grpo_step


def steps(config: RunConfig) -> tuple[list[float], str]:
    """Return the gradient norms of two steps and the checksum of the weights after them."""
    context = build_unsaved_run(config).context
    norms = [grpo_step(context, step).grad_norm for step in range(2)]
    return norms, checksum(context.policy.model)


def test_activation_checkpointing_changes_no_bits_packed_or_padded(make_config: Callable[..., RunConfig]) -> None:
    for packing in ("true", "false"):
        plain, again = (
            steps(make_config(f"model.packing={packing}", f"model.activation_checkpointing={wanted}"))
            for wanted in ("false", "true")
        )
        assert plain == again and plain[0][0] > 0
