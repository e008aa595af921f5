"""Small models of two families, as folders and as policies with an adapter whose two factors are not 0."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from rookworld_rlvr.model.adapter import adapter_weights
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.lora import LoRAConfig
from rookworld_rlvr.model.policy import Policy

RANK, ALPHA = 3, 12.0
# Layers with an adapter by default: GPT-2 computes query, key and value as one; Llama's MLP has three matrices.
LAYERS = {"gpt2": 4, "llama": 2 * 7}


@dataclass(frozen=True)
class Family:
    """A family of models: its folder, and functions that load from it."""

    name: str
    folder: Path
    load: Callable[[], Policy]
    """Load it without an adapter."""
    adapted: Callable[..., Policy]
    """Load it with an adapter, trained as if by chance, or `fresh` as it begins."""

    @property
    def layers(self) -> int:
        return LAYERS[self.name]


@pytest.fixture(scope="session")
def llama(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with two query heads per key head, tied embeddings, and the small model's tokens."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        pad_token_id=1,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(params=LAYERS)
def family(request: pytest.FixtureRequest, small_model: Path, llama: Path) -> Family:
    folder = {"gpt2": small_model, "llama": llama}[request.param]

    def load(**lora: Any) -> Policy:
        config = ModelConfig(path=str(folder), lora=LoRAConfig(**lora))
        return load_policy(config, torch.device("cpu"), Precision.fp32)

    def adapted(*, fresh: bool = False, **lora: Any) -> Policy:
        torch.manual_seed(2)
        policy = load(**({"rank": RANK, "alpha": ALPHA} | lora))
        if not fresh:
            with torch.no_grad():
                for factor in adapter_weights(policy.model).values():
                    factor.add_(0.05 * torch.randn_like(factor))
        return policy

    return Family(request.param, folder, load, adapted)
