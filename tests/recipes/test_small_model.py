"""The weights in `tests/small_model`, with which most tests train, can be made again on any machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.training.sft import SFT, SFTConfig, tokenize

STORED = Path(__file__).parents[1] / "small_model" / "model.safetensors"


@pytest.mark.slow
def test_training_in_float64_makes_the_stored_small_model_again(
    new_model: Callable[[Path, int], None], corpus: Any, tmp_path: Path
) -> None:
    """In float32 the same training ends with weights that differ by 0.2 between kinds of CPU, in float64 by 2e-10."""
    new_model(tmp_path / "new", 0)
    policy = load_policy(ModelConfig(path=str(tmp_path / "new")), torch.device("cpu"), Precision.fp32)
    policy.model.double()
    training = SFT(policy, SFTConfig(steps=240, batch_size=16, lr=2e-2, warmup_steps=10, save_every=1000), seed=0)
    trained = tmp_path / "trained"
    for _ in training.run(tokenize(read_corpus(corpus.train).examples, policy.tokenizer), trained):
        pass
    made, stored = load_file(trained / STORED.name), load_file(STORED)
    assert made.keys() == stored.keys()
    for name, weights in stored.items():
        # The saved weights are bfloat16, whose values are 2⁻⁸ apart, relative to their size.
        torch.testing.assert_close(made[name], weights, rtol=2**-7, atol=1e-8, msg=f"{name}: see {trained}")
