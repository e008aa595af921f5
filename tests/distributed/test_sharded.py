"""Sharded training (`distributed=fsdp2`) equals `ddp`, and each rank holds about half of weights and moments."""

from collections.abc import Callable
from typing import Any

import pytest

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.sharded import require_sharding

Ranks = Callable[..., list[Any]]
KL = ["kl.coef=0.05", "objective.prompts_per_step=3", "optim.micro_batch_size=4"]
# Three micro-batches for two ranks: in the second round one rank repeats a pass that does not count.
CASES = {
    "default": KL,
    "several updates, KL in the reward": [*KL, "kl.form=in_reward", "objective.epochs=2", "objective.minibatches=2"],
    "values of all legal moves": [*KL, "rubric.source=cached", "data.train=default", "data.held_out=default"],
    "a refreshed reference": [*KL, "reference.refresh_every=1"],
    "blocks computed again in backward": [*KL, "model.activation_checkpointing=true"],
}
# One micro-batch for four ranks in each update; then 64 completions for each rank, sampled by two threads.
FEW_PIECES = [*KL, "objective.epochs=2", "kl.form=in_reward", "optim.micro_batch_size=16"]
MANY_COMPLETIONS = ["threads=2", "objective.prompts_per_step=16", "objective.group_size=8"]
COMPARED = ("loss", "grad_norm", "logprobs", "kl", "reward")
SAME = ("groups", "updates", "fault")
TOLERANCE = 1e-5
MOST_MEMORY = 0.6


def steps_of(ended: list[Any]) -> list[dict[str, Any]]:
    """Return the reports of rank 0 for all steps of all cases."""
    assert all(one.code == 0 for one in ended), "\n".join(one.text for one in ended)
    return [step for case in ended[0].reports for step in case]


def assert_alike(sharded: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    for ours, theirs in zip(sharded, whole, strict=True):
        for key in COMPARED:
            assert ours[key] == pytest.approx(theirs[key], rel=TOLERANCE, abs=TOLERANCE), (key, ours, theirs)
        assert [ours[key] for key in SAME] == [theirs[key] for key in SAME]


@pytest.mark.slow
def test_two_sharded_ranks_match_ddp_with_at_most_0_6_of_its_memory(ranks: Ranks) -> None:
    cases = list(CASES.values())
    # A single process writes the completions that the others train on.
    ranks(1, *cases)
    whole, sharded = (steps_of(ranks(2, *cases, kind=kind)) for kind in ("ddp", "fsdp2"))
    assert_alike(sharded, whole)
    for ours, theirs in zip(sharded, whole, strict=True):
        assert ours["held_bytes"] <= MOST_MEMORY * theirs["held_bytes"]
    assert sum(step["updates"] for step in sharded) > len(sharded) / 2


@pytest.mark.slow
def test_four_sharded_ranks_with_one_micro_batch_match_ddp(ranks: Ranks) -> None:
    ranks(1, FEW_PIECES)
    whole, sharded = (steps_of(ranks(4, FEW_PIECES, kind=kind)) for kind in ("ddp", "fsdp2"))
    assert_alike(sharded, whole)


@pytest.mark.slow
def test_threaded_sampling_from_shards_matches_ddp(ranks: Ranks) -> None:
    whole, sharded = (
        steps_of(ranks(2, MANY_COMPLETIONS, kind=kind, steps=2, replayed=False)) for kind in ("ddp", "fsdp2")
    )
    assert_alike(sharded, whole)


def test_a_torch_without_the_needed_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.distributed.fsdp.FSDPModule.reset_iter_state")
    with pytest.raises(UserError, match=r"distributed=fsdp2: expected torch 2\.13 or newer"):
        require_sharding()
