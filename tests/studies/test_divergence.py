"""KL in both directions between a run's trained weights and the start."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.training.config import DataConfig
from rookworld_rlvr.training.data import load_data


def test_kl_is_over_the_vocabulary_on_the_first_models_samples(studies: SimpleNamespace) -> None:
    start = load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)
    other, prompts = deepcopy(start), load_data(DataConfig(), seed=0, evaluation_rows_per_task=2).held_out
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in other.model.parameters():
            weights += 0.02 * weights.std() * torch.randn_like(weights)
    values = []
    for one, two in ((start, other), (other, start)):
        sampled = studies.divergence.sample(one, prompts)
        values.append(studies.divergence.exact_kl(one, two, sampled))
        assert values[-1] == pytest.approx(_enumerated(one, two, sampled), rel=1e-4)
    assert min(values) > 0 and values[0] != pytest.approx(values[1], rel=1e-3)
    assert studies.divergence.exact_kl(start, start, sampled) == pytest.approx(0, abs=1e-6)


@torch.no_grad()
def _enumerated(one: Policy, two: Policy, sampled: list) -> float:  # type: ignore[type-arg]
    kls = []
    for prompt, (completion,) in sampled:
        tokens = torch.tensor([[*prompt, *completion.tokens]])
        first, second = (policy.model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for policy in (one, two))
        kls.append((first.exp() * (first - second)).sum(-1))
    return torch.cat(kls).mean().item()


def test_study_without_runs_here_is_refused(
    studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studies.divergence, "members", lambda *_: [])
    assert studies.divergence.main(["kl_direction"]) == 2
    assert capsys.readouterr().err == "studies: expected finished runs of kl_direction in outputs/studies, got none\n"
    assert studies.divergence.main([]) == 2


def test_start_is_the_studys_model(
    studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study = studies.study.read_study("weak_start")
    study.overrides = [f"model.path={tmp_path}"]
    monkeypatch.setattr(studies.divergence, "read_study", lambda _: study)
    monkeypatch.setattr(studies.divergence, "members", lambda *_: [SimpleNamespace(run=tmp_path)])
    assert studies.divergence.main(["weak_start"]) == 2
    assert "model.path: expected a folder with a config.json" in capsys.readouterr().err
