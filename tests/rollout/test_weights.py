"""The checksum that says whether a sampler holds the trainer's weights."""

import torch
from torch import nn

from rookworld_rlvr.model.weights import checksum


def test_one_bit_of_one_weight_changes_the_checksum_and_back() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = checksum(model)
    bits = model[1].bias.data.view(torch.int32)
    bits ^= 1
    changed = checksum(model)
    bits ^= 1
    assert changed != before == checksum(model)


def test_names_types_and_shapes_count_beside_the_bytes() -> None:
    def zeros(model: nn.Module) -> str:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return checksum(model)

    models = [nn.Linear(4, 2), nn.Linear(2, 4), nn.Linear(4, 2).double(), nn.Sequential(nn.Linear(4, 2))]
    assert len({zeros(model) for model in models}) == 4
    assert zeros(nn.Linear(4, 2)) == zeros(nn.Linear(4, 2))
