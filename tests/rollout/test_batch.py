"""Batches hold exactly what was sampled, checked against values written by hand."""

from dataclasses import replace

import pytest
import torch

from rookworld_rlvr.model.batch import Batch, micro_batches, padded, position_ids
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch
from rookworld_rlvr.tasks.types import Example

CPU = torch.device("cpu")
PAD, EOS = 99, 0


def group(prompt: tuple[int, ...], *completions: tuple[int, ...]) -> Group:
    samples = [
        Sample(
            SampledCompletion(tokens, tuple(-0.5 * (i + 1) for i in range(len(tokens))), tokens[-1] == EOS),
            "",
            Score(0.0, {}, None),
        )
        for tokens in completions
    ]
    return Group(Example("policy", "", None), prompt, tuple(samples))


@pytest.fixture
def batch() -> Batch:
    groups = [group((11, 12, 13), (21, EOS), (31, 32, 33)), group((14,), (41, 42, EOS), (EOS,))]
    batch = make_batch(groups, pad_id=PAD, device=CPU)
    assert batch.advantages_B.tolist() == [0, 0, 0, 0] and batch.old_logprobs_BT is None
    return replace(batch, advantages_B=torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_rows_are_prompt_then_sampled_tokens_then_pads(batch: Batch) -> None:
    assert batch.tokens_BT.tolist() == [
        [11, 12, 13, 21, 0, 99],
        [11, 12, 13, 31, 32, 33],
        [14, 41, 42, 0, 99, 99],
        [14, 0, 99, 99, 99, 99],
    ]
    assert batch.attention_BT.sum(1).tolist() == [5, 6, 4, 2]


def test_loss_mask_covers_exactly_the_sampled_tokens(batch: Batch) -> None:
    assert batch.loss_mask_BT.int().tolist() == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
    ]
    assert batch.targets_BT()[batch.loss_mask_BT].tolist() == [21, 0, 31, 32, 33, 41, 42, 0, 0]
    assert batch.trained_tokens() == 9


def test_sampler_logprob_is_at_the_position_that_predicts_its_token(batch: Batch) -> None:
    assert batch.sampler_logprobs_BT.tolist() == [
        [0, 0, -0.5, -1.0, 0, 0],
        [0, 0, -0.5, -1.0, -1.5, 0],
        [-0.5, -1.0, -1.5, 0, 0, 0],
        [-0.5, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(("size", "shapes"), [(1, [2, 4, 5, 6]), (2, [4, 6]), (3, [5, 6]), (4, [6]), (9, [6])])
def test_micro_batches_partition_the_rows_and_cut_only_pads(batch: Batch, size: int, shapes: list[int]) -> None:
    pieces = list(micro_batches(batch, size, by_prompt=False))
    assert [piece.tokens_BT.shape[1] for piece in pieces] == shapes
    assert max(piece.tokens_BT.shape[0] for piece in pieces) <= size
    seen = [
        (float(advantage), [t for t in row.tolist() if t != PAD], mask.tolist(), logprobs.tolist())
        for piece in pieces
        for row, mask, logprobs, advantage in zip(
            piece.tokens_BT, piece.loss_mask_BT, piece.sampler_logprobs_BT, piece.advantages_B, strict=True
        )
    ]
    assert [row[:2] for row in sorted(seen, key=lambda row: row[0])] == [
        (1.0, [11, 12, 13, 21, 0]),
        (2.0, [11, 12, 13, 31, 32, 33]),
        (3.0, [14, 41, 42, 0]),
        (4.0, [14, 0]),
    ]
    assert sum(sum(mask) for _, _, mask, _ in seen) == 9
    assert sum(sum(logprobs) for *_, logprobs in seen) == -1.5 - 3.0 - 3.0 - 0.5


def test_position_ids_skip_padding_on_either_side() -> None:
    tokens_BT, attention_BT = padded([(7,), (7, 8, 9)], PAD, CPU, "left")
    assert tokens_BT.tolist() == [[99, 99, 7], [7, 8, 9]]
    assert attention_BT.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert position_ids(attention_BT).tolist() == [[0, 0, 0], [0, 1, 2]]
    tokens_BT, attention_BT = padded([(7,), (7, 8, 9)], PAD, CPU, "right")
    assert tokens_BT.tolist() == [[7, 99, 99], [7, 8, 9]]
    assert attention_BT.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert position_ids(torch.tensor([[0, 0, 1, 1, 1]])).tolist() == [[0, 0, 0, 1, 2]]


def test_selected_rows_keep_their_data_and_are_cut_to_width(batch: Batch) -> None:
    batch = replace(batch, old_logprobs_BT=torch.arange(24.0).reshape(4, 6))
    for rows in (torch.tensor([3, 1]), torch.tensor([False, True, False, True])):
        picked = batch.select(rows, 3)
        order = [3, 1] if rows.dtype == torch.int64 else [1, 3]
        assert picked.tokens_BT.tolist() == [batch.tokens_BT[i, :3].tolist() for i in order]
        assert picked.loss_mask_BT.tolist() == [batch.loss_mask_BT[i, :3].tolist() for i in order]
        assert picked.positions_BT.shape == picked.attention_BT.shape == picked.sampler_logprobs_BT.shape == (2, 3)
        assert picked.advantages_B.tolist() == [float(i + 1) for i in order]
        assert picked.old_logprobs_BT is not None
        assert picked.old_logprobs_BT.tolist() == [[6.0 * i, 6.0 * i + 1, 6.0 * i + 2] for i in order]
    assert batch.to(CPU).old_logprobs_BT is not None and batch.select(torch.tensor([0])).tokens_BT.shape == (1, 6)
