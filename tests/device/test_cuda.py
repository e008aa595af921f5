"""The shipped model on a CUDA device passes preflight, matches the CPU and resumes. Skipped without a CUDA device."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch, prompt_tokens
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.training.data import default_file

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
ROWS = 4


def logprobs_of_labels(device: str, precision: Precision) -> tuple[Tensor, Tensor]:
    """Return the log-probs of some rows' labels and the embeddings' gradient of their sum, both moved to the CPU."""
    policy = load_policy(ModelConfig(), torch.device(device), precision)
    groups = []
    for row in read_corpus(default_file("train.txt")).examples[:ROWS]:
        tokens = tuple(policy.tokenizer.encode(row.completion, add_special_tokens=False))
        label = SampledCompletion(tokens, (0.0,) * len(tokens), True)
        sample = Sample(label, row.completion or "", Score(0.0, {}, None))
        groups.append(Group(row, prompt_tokens(policy.tokenizer, row.prompt), (sample,)))
    batch = make_batch(groups, pad_id=policy.pad_id, device=torch.device(device))
    logprobs = policy.statistics(batch, temperature=1.0).logprobs
    logprobs.sum().backward()
    gradient = policy.model.get_input_embeddings().weight.grad
    return logprobs.detach().cpu(), gradient.cpu()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_preflight_checks_pass_on_cuda(precision: str) -> None:
    assert main(["smoke", "device=cuda", f"precision={precision}"]) == 0


# On a CPU, bf16 differs from fp32 by 0.06 nats in the log-probs and by 0.015 (relative) in the gradient.
@pytest.mark.parametrize(("precision", "nats"), [(Precision.fp32, 1e-3), (Precision.bf16, 0.2)])
def test_cuda_logprobs_and_gradient_match_the_cpu(precision: Precision, nats: float) -> None:
    logprobs, gradient = logprobs_of_labels("cpu", Precision.fp32)
    cuda_logprobs, cuda_gradient = logprobs_of_labels("cuda", precision)
    torch.testing.assert_close(cuda_logprobs, logprobs, rtol=0, atol=nats)
    assert float((cuda_gradient - gradient).norm() / gradient.norm()) < nats


def test_a_run_on_cuda_can_be_resumed(train: Callable[..., Path]) -> None:
    folder = train("device=cuda", "steps=1", "checkpoint_every=1")
    resumed = train("device=cuda", "steps=2", f"resume={folder}")
    steps = [json.loads(line)["step"] for line in (resumed / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
