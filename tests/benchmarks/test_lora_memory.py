"""The arithmetic of `benchmarks/lora_memory.py`, and the table of the documents that it made."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import LlamaConfig

from rookworld_rlvr.model.adapter import adapter_weights
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.lora import LoRAConfig

SCALING = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


@pytest.fixture(scope="module")
def lora_memory(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("lora_memory")


def test_the_documents_have_the_computed_table(lora_memory: ModuleType) -> None:
    assert "\n".join(lora_memory.table(16)) in SCALING.read_text(encoding="utf-8")


def test_counts_are_those_of_a_shape_by_hand_and_of_a_real_adapter(lora_memory: ModuleType) -> None:
    # One layer of width 8: attention 8·(8 + 4 + 4 + 8), MLP 3·8·16, two norms of 8; then embedding and last norm.
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
    config = LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    counts = lora_memory.counts(config, 2)
    assert counts.model == 8 * 24 + 3 * 8 * 16 + 16 + 32 * 8 + 8
    assert counts.adapter == 2 * (16 + 12 + 12 + 16 + 3 * 24)
    assert counts.full_gib == pytest.approx(24 * counts.model / 2**30)
    assert counts.lora_gib == pytest.approx((4 * counts.model + 20 * counts.adapter) / 2**30)
    policy = load_policy(ModelConfig(lora=LoRAConfig(rank=16)), torch.device("cpu"), Precision.fp32)
    own = lora_memory.counts(policy.model.config, 16)
    assert own.adapter == sum(factor.numel() for factor in adapter_weights(policy.model).values())
