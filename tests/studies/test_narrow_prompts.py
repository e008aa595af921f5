"""Choice of the training positions on which rewards vary little within a group."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rookworld_rlvr.rollout.groups import Collected
from rookworld_rlvr.tasks.policy import parse_policy_prompt
from rookworld_rlvr.training.data import load_data


def test_groups_without_or_with_large_variance_are_left_out(studies: SimpleNamespace) -> None:
    rewards_PG = torch.tensor([[0.6, 0.6, 0.6, 0.6], [0.62, 0.68, 0.71, 0.65], [0.5, 0.7, 0.5, 0.7]])
    sampled = Collected(("equal", "near", "far"), rewards_PG, torch.ones(3, 4, dtype=torch.bool))  # type: ignore[arg-type]
    kept = studies.narrow_prompts.narrow(sampled)
    assert kept.groups == ("near",) and torch.equal(kept.rewards_PG, rewards_PG[1:2])


@pytest.mark.slow
def test_written_positions_are_training_positions_and_can_be_trained_on(
    studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow, selected = studies.narrow_prompts, []
    monkeypatch.setattr(narrow, "FILE", tmp_path / "train.fen")
    real = narrow.select
    monkeypatch.setattr(narrow, "select", lambda config: selected.append(real(config, limit=48)) or selected[0])
    assert narrow.main() == 0
    written = (tmp_path / "train.fen").read_text(encoding="utf-8").splitlines()
    assert 0 < len(written) < 48 and f"{len(written)} positions" in capsys.readouterr().out
    assert written == [parse_policy_prompt(group.example.prompt).fen for group in selected[0].groups]
    shipped = {row.prompt for row in load_data(studies.study.composed([]).data, seed=0).train}
    config = studies.study.composed(["experiment=policy_only", f"data.train={tmp_path / 'train.fen'}"])
    read = load_data(config.data, seed=0).train
    assert [row.prompt for row in read] == [f"P: {fen}" for fen in written] and shipped >= {row.prompt for row in read}
