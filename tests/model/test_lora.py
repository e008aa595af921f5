"""Options of LoRA, and adapters in folders: loaded with the model that they belong to, or refused, never left out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model import lora
from rookworld_rlvr.model.adapter import adapter_weights, has_adapter
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LoRAConfig, require_no_adapter, save_adapter
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum

TOKENS = torch.tensor([[5, 9, 7, 12, 8]])


def load(folder: Path, **options: Any) -> Policy:
    return load_policy(ModelConfig(path=str(folder), **options), torch.device("cpu"), Precision.fp32)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    out: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return out


@pytest.fixture
def by_peft(family: Any, tmp_path: Path) -> Callable[..., tuple[Path, torch.Tensor]]:
    """Return a function that lets peft save an adapter, and returns its folder and the logits with it."""

    def make(base: Path | str = family.folder, **options: Any) -> tuple[Path, torch.Tensor]:
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_pretrained(family.folder, dtype=torch.float32)
        adapted: Any = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", **options))
        for name, own in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(own, std=0.1)
        adapted.peft_config["default"].base_model_name_or_path = str(base)
        adapted.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", logits(adapted)

    return make


def test_adapter_of_peft_is_merged_into_its_base_model(family: Any, by_peft: Any) -> None:
    folder, expected = by_peft()
    assert not (folder / "config.json").exists() and not (folder / "tokenizer_config.json").exists()
    policy = load(folder)
    assert not has_adapter(policy.model) and type(policy.model) is type(family.load().model)
    torch.testing.assert_close(logits(policy.model), expected, rtol=1e-4, atol=1e-4)
    assert (expected - logits(family.load().model)).abs().max() > 0.01
    assert len(policy.tokenizer) == len(family.load().tokenizer)


def test_adapters_of_other_kinds_are_merged_too(by_peft: Any) -> None:
    folder, expected = by_peft(use_rslora=True, use_dora=True)
    torch.testing.assert_close(logits(load(folder).model), expected, rtol=1e-4, atol=1e-4)


def test_peft_reads_an_adapter_that_we_wrote(family: Any, tmp_path: Path) -> None:
    policy = family.adapted()
    save_adapter(policy.model, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(family.folder, dtype=torch.float32)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, tmp_path)), logits(policy.model))
    assert checksum(load(tmp_path).model) == checksum(policy.model)


def test_base_model_is_found_beside_its_adapter(
    family: Any, by_peft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = by_peft(base="../base")
    shutil.copytree(family.folder, folder.parent / "base")
    # Another folder of this name, where the program is started, is no model.
    for name in ("base", "here"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere/here")
    torch.testing.assert_close(logits(load(folder).model), expected, rtol=1e-4, atol=1e-4)


def test_adapter_can_be_trained_on_top_of_an_adapter(by_peft: Any, tmp_path: Path) -> None:
    folder, expected = by_peft()
    policy = load(folder, lora=LoRAConfig(rank=2))
    torch.testing.assert_close(logits(policy.model), expected, rtol=1e-4, atol=1e-4)
    second = tmp_path / "second"
    second.mkdir()
    with torch.no_grad():
        for factor in adapter_weights(policy.model).values():
            factor.add_(0.05)
    save_adapter(policy.model, second)
    assert checksum(load(second).model) == checksum(policy.model)


def test_folder_with_weights_and_an_adapter_is_refused(family: Any, by_peft: Any) -> None:
    folder, _ = by_peft()
    shutil.copytree(family.folder, folder, dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"^model\.path: expected weights or an adapter, got both in [^\n]*$"):
        load(folder)


@pytest.mark.parametrize("base", ["/nope/base", "", "../adapter"])
def test_adapter_without_its_base_model_is_refused_in_one_line(by_peft: Any, base: str) -> None:
    folder, _ = by_peft(base=base)
    with pytest.raises(UserError, match=r"^model\.path: expected the base model of the adapter [^\n]*$"):
        load(folder)


def test_adapter_with_a_missing_weight_or_for_other_layers_is_refused(by_peft: Any) -> None:
    folder, _ = by_peft()
    weights = load_file(folder / ADAPTER_WEIGHTS)
    name, value = weights.popitem()
    for broken in (weights, weights | {name: value, "base_model.model.other.lora_A.weight": value.clone()}):
        save_file(broken, folder / ADAPTER_WEIGHTS)
        with pytest.raises(UserError, match="weights of the adapter missing or unknown"):
            load(folder)
    save_file(weights | {name: value[:, :-1].contiguous()}, folder / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=r"^model\.path: expected a causal language model, got [^\n]*$"):
        load(folder)


def test_malformed_adapter_settings_are_refused_in_one_line(by_peft: Any) -> None:
    folder, _ = by_peft()
    settings = json.loads((folder / ADAPTER_CONFIG).read_text())
    for text in ("{", json.dumps(settings | {"peft_type": "NOPE"})):
        (folder / ADAPTER_CONFIG).write_text(text)
        with pytest.raises(UserError, match=r"^model\.path: [^\n]*$"):
            load(folder)


def test_targets_choose_layers_and_unknown_ones_are_refused(family: Any) -> None:
    wanted = {"gpt2": "c_fc", "llama": "v_proj"}[family.name]
    adapter = adapter_weights(family.adapted(targets=[wanted]).model)
    assert adapter and all(f".{wanted}." in name for name in adapter)
    for unknown in ("lm_head", "nope"):
        with pytest.raises(UserError, match=rf"^model\.lora\.targets: expected .*{wanted}.*, got {unknown}$"):
            family.adapted(targets=[wanted, unknown])


def test_without_peft_an_adapter_is_refused_in_one_line(
    family: Any, by_peft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = by_peft()
    monkeypatch.setattr(lora.importlib.util, "find_spec", lambda _name: None)
    line = r"expected peft to be installed for an adapter: pip install 'rookworld-rlvr\[lora\]'$"
    with pytest.raises(UserError, match=r"^model\.lora\.rank: " + line):
        family.adapted()
    with pytest.raises(UserError, match=r"^model\.path: " + line):
        load(folder)
    assert family.load().packs


def test_adapter_is_refused_with_weights_in_shards() -> None:
    require_no_adapter(LoRAConfig())
    with pytest.raises(UserError, match=r"^model\.lora\.rank: expected 0 with distributed=fsdp2"):
        require_no_adapter(LoRAConfig(rank=4))
