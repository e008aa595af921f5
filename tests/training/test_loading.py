"""Loaded models of other families: what is refused, what pads its rows, and that the rest packs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DeepseekV3Config,
    DogeConfig,
    Gemma2Config,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    NemotronConfig,
    SeedOssConfig,
)

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.batch import collate
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorKind

Load = Callable[..., Policy]
LATENT_HEADS = {
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
}  # fmt: skip


@pytest.fixture
def load(small_model: Path, tmp_path: Path) -> Load:
    """A function that saves a new random model of one layer and loads it with the small model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(small_model)

    def load_random(config_class: Any, **options: Any) -> Policy:
        torch.manual_seed(0)
        sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": len(tokenizer)}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}
        model = AutoModelForCausalLM.from_config(config_class(**sizes, **heads, **options))
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return load_policy(ModelConfig(path=str(tmp_path)), torch.device("cpu"), Precision.fp32)

    return load_random


@pytest.mark.parametrize(
    ("config_class", "options"),
    [(NemotronConfig, {}), (DogeConfig, {}), (DeepseekV3Config, LATENT_HEADS)],
    ids=["arguments not passed on", "mask by keyword", "narrower values"],
)
def test_models_whose_attention_cannot_be_replaced_pad_rows(
    load: Load, config_class: Any, options: dict[str, Any]
) -> None:
    policy = load(config_class, **options)
    assert not policy.shares and not policy.packs
    with pytest.raises(UserError, match=r"generator\.kind=hf samples from any"):
        make_generator(policy, GeneratorConfig())
    generator = make_generator(policy, GeneratorConfig(kind=GeneratorKind.hf, max_new_tokens=4))
    [[completion]] = generator.generate([(5, 6, 7)], group_size=1, temperature=0.0)
    assert completion.tokens


def test_plain_attention_packs_its_rows(load: Load) -> None:
    policy = load(LlamaConfig)
    assert policy.shares and policy.packs


def test_model_that_scales_its_logits_is_refused(load: Load) -> None:
    options = {"initializer_range": 0.5, "tie_word_embeddings": False}
    assert load(GraniteConfig, logits_scaling=1.0, **options).packs
    refusal = r"^model\.path: expected a model whose logits are its output layer .* by up to "
    with pytest.raises(UserError, match=refusal):
        load(GraniteConfig, logits_scaling=8.0, **options)


def test_model_that_caps_its_logits_is_refused_while_they_are_small(load: Load) -> None:
    capped = {"head_dim": 16, "attn_logit_softcapping": None}
    load(Gemma2Config, final_logit_softcapping=None, **capped)
    with pytest.raises(UserError, match="changes them afterwards"):
        load(Gemma2Config, final_logit_softcapping=30.0, **capped)


def test_dropout_under_an_unusual_name_is_turned_off(load: Load) -> None:
    policy = load(SeedOssConfig, residual_dropout=0.5, attention_dropout=0.5, head_dim=16)
    batch = collate([((5, 6, 7), (8, 9, 10))], pad_id=0, device=policy.device)
    once, again = (policy.statistics(batch, temperature=1.0).logprobs for _ in range(2))
    assert torch.equal(once, again)


def test_model_without_hidden_states_is_refused_in_one_line(load: Load) -> None:
    with pytest.raises(UserError, match="base model returns its last hidden states, got Llama4ForCausalLM"):
        load(Llama4TextConfig, num_local_experts=2, head_dim=16, intermediate_size_mlp=32)


def test_model_path_is_read_from_the_home_folder(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(small_model.parent))
    paths = (f"~/{small_model.name}", str(small_model))
    ours, theirs = (load_policy(ModelConfig(path=path), torch.device("cpu"), Precision.fp32) for path in paths)
    assert checksum(ours.model) == checksum(theirs.model)


@pytest.mark.parametrize("path", ["gpt2", "~/nope"])
def test_model_path_of_neither_a_folder_nor_owner_and_name_is_refused(path: str) -> None:
    with pytest.raises(UserError, match=r"expected a folder with a config\.json or a hub name \(owner/name\), got"):
        load_policy(ModelConfig(path=path), torch.device("cpu"), Precision.fp32)


def test_automatic_precision_is_fp32_where_torch_may_not_use_bf16_instructions() -> None:
    code = (
        "import torch; from rookworld_rlvr.model.device import Precision, resolve_precision; "
        "print(resolve_precision(Precision.auto, torch.device('cpu')))"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "fp32\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_git_lfs_pointer_in_a_model_folder_is_named(name: str, small_model: Path, tmp_path: Path) -> None:
    for file in small_model.iterdir():
        if file.name != name:
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n")
    with pytest.raises(UserError, match=f"expected a model, got .*{name}: a Git LFS pointer .*git lfs pull"):
        load_policy(ModelConfig(path=str(tmp_path)), torch.device("cpu"), Precision.fp32)


def test_folder_of_a_run_is_named_with_its_models(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=f"a run's folder, whose models are in {tmp_path / 'checkpoints'}"):
        load_policy(ModelConfig(path=str(tmp_path)), torch.device("cpu"), Precision.fp32)
