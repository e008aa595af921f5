"""The small model as a policy, and prompts of both tasks whose lengths differ."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import Generator, GeneratorConfig
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.rollout.native_generator import NativeGenerator

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PROMPTS = [f"P: {START} ", f"A: {START}+e2e4+e2e4+", f"A: {START}+g1f3+e2e4 e7e5 g1f3+", "P: 8/"]


@pytest.fixture
def policy(small_model: Path) -> Policy:
    return load_policy(ModelConfig(path=str(small_model)), torch.device("cpu"), Precision.fp32)


@pytest.fixture(params=[HFGenerator, NativeGenerator])
def engine(request: pytest.FixtureRequest) -> Any:
    """A generator's class."""
    return request.param


@pytest.fixture
def generator(engine: Any, policy: Policy) -> Generator:
    config = GeneratorConfig(max_new_tokens=24)
    return engine(policy.model, config, eos_id=policy.tokenizer.eos_token_id, pad_id=policy.pad_id)


@pytest.fixture
def prompts(policy: Policy) -> list[tuple[int, ...]]:
    rows = [prompt_tokens(policy.tokenizer, prompt) for prompt in PROMPTS]
    assert len({len(row) for row in rows}) == 4
    return rows
