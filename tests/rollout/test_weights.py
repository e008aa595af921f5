"""The checksum that shows whether a sampler holds the trainer's weights, and averaged weights."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy, tiny_model_folder
from rookworld_rlvr.model.weights import averaged, checksum


def test_flipping_one_weight_bit_changes_the_checksum() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = checksum(model)
    bits = model[1].bias.data.view(torch.int32)
    bits ^= 1
    changed = checksum(model)
    bits ^= 1
    assert changed != before == checksum(model)


def test_checksum_depends_on_names_types_and_shapes() -> None:
    def zeros(model: nn.Module) -> str:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return checksum(model)

    models = [nn.Linear(4, 2), nn.Linear(2, 4), nn.Linear(4, 2).double(), nn.Sequential(nn.Linear(4, 2))]
    assert len({zeros(model) for model in models}) == 4
    assert zeros(nn.Linear(4, 2)) == zeros(nn.Linear(4, 2))


def test_a_model_with_a_missing_weight_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"weights missing or misshapen: model\.norm\.weight$"):
        load_policy(ModelConfig(path=str(folder)), torch.device("cpu"), Precision.fp32)


def test_averaged_gives_mean_weights_and_restores_the_exact_ones() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError), averaged(model, other, 0.25):
        assert all(torch.allclose(model.state_dict()[name], 1.5 * value) for name, value in before.items())
        raise KeyError
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    with averaged(model, other, 0):
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
