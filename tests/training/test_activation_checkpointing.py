"""Activation checkpointing gives the same bits as training without it."""

from collections.abc import Callable

from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.step import grpo_step


def steps(run: Run) -> tuple[list[float], str]:
    """Return the gradient norms of two steps and the checksum of the weights after them."""
    context = run.context
    norms = [grpo_step(context, step).grad_norm for step in range(2)]
    return norms, checksum(context.policy.model)


def test_activation_checkpointing_changes_no_bits_packed_or_padded(make_run: Callable[..., Run]) -> None:
    for packs in (True, False):
        plain, again = (
            steps(make_run(f"model.activation_checkpointing={wanted}", packs=packs)) for wanted in ("false", "true")
        )
        assert plain == again and plain[0][0] > 0
