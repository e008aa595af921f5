"""`rookworld inspect` replays the batch of a fault and refuses any other file in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rookworld_rlvr.app import build
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.loading import load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.stability import recovery
from rookworld_rlvr.training import step
from rookworld_rlvr.training.all_moves import expected_value

Train = Callable[..., Path]
# The runs here have good steps first, then faults; the last fault ends the run.
GIVEN = (
    "steps=9",
    "evaluation.rows=0",
    "generator.max_new_tokens=8",
    "recovery.max_consecutive_nans=1",
)


@pytest.fixture(autouse=True)
def no_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let faults be skipped, and a fault that damages the weights end the run."""
    monkeypatch.setattr(recovery, "RESTORE_AFTER", 9)
    monkeypatch.setattr(recovery, "MAX_RESTORES", 0)


@pytest.fixture
def overflowing(train: Train) -> Path:
    """Return the fault batch of a run whose KL term overflows, because KL is above 1 nat after one update."""
    folder = train(*GIVEN, "kl.coef=3e38", "optim.lr=0.1", "recovery.kl_limit=0", exit_code=4)
    return folder / "faults/step-3.pt"


def test_replayed_fault_recurs_and_shows_its_loss_terms(overflowing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["inspect", str(overflowing)]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0] == "step 3: loss: loss: expected a finite number, got inf"
    assert lines[-1] == "again: loss (loss: expected a finite number, got inf)"
    assert "weights: those of the fault" in lines
    completions = [line for line in lines if line.startswith("reward ")]
    assert len(completions) == 8 and all("  →  " in line for line in completions)
    terms = dict(line.rsplit(maxsplit=1) for line in lines if not line.startswith(("step", "again", "reward")))
    assert float(terms["kl term mean"]) > 1 and float(terms["largest ratio"]) == 1.0
    assert {"loss", "surrogate mean", "entropy mean", "largest kl"} <= terms.keys()


def test_survived_fault_is_replayed_from_the_previous_checkpoint(
    overflowing: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    earlier = overflowing.with_name("step-2.pt")
    assert torch.load(earlier)["policy"] is None
    capfd.readouterr()
    assert main(["inspect", str(earlier)]) == 0
    out = capfd.readouterr().out
    assert f"weights: {overflowing.parents[1]}/checkpoints/step-0\n" in out
    # At the checkpoint KL is 0, so nothing overflows: the weights of the fault were not saved.
    assert out.endswith("not again: forward and backward pass are finite and usual here\n")


def test_kl_above_its_limit_recurs_in_the_replay(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    folder = train(*GIVEN, "recovery.kl_limit=1e-9", exit_code=4)
    [fault] = (folder / "faults").iterdir()
    capfd.readouterr()
    assert main(["inspect", str(fault)]) == 0
    first, *_, last = capfd.readouterr().out.splitlines()
    assert first.startswith("step 2: kl_limit: kl/exact: ") and last.startswith("again: kl_limit (kl/exact: ")


def test_replay_names_the_module_of_an_overflowing_weight(
    train: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def with_a_large_weight(*arguments: object) -> Policy:
        policy: Policy = load_policy(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(build, "load_policy", load_policy)
        seen = iter(range(10**6))

        def enlarge(_module: object, _inputs: object) -> None:
            # Only training passes count; the preflight checks before them run without gradients.
            if torch.is_grad_enabled() and next(seen) == 1:
                # The weight is finite, but its product with an activation above 1.13 is not.
                policy.model.transformer.ln_f.weight.data[0] = 3e38

        policy.model.base_model.register_forward_pre_hook(enlarge)
        return policy

    monkeypatch.setattr(build, "load_policy", with_a_large_weight)
    folder = train(*GIVEN, exit_code=4)
    assert "first bad       policy: output of transformer.ln_f\n" in (folder / "diagnosis.txt").read_text(
        encoding="utf-8"
    )
    capfd.readouterr()
    assert main(["inspect", str(folder / "faults/step-3.pt")]) == 0
    assert "again: logprobs (policy: output of transformer.ln_f: a log-prob is not finite)" in capfd.readouterr().out


def test_all_moves_fault_is_replayed_with_its_expected_value(
    train: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def spoiled(*arguments: object, **options: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        value, entropy, logprobs = expected_value(*arguments, **options)  # type: ignore[arg-type]
        return value, entropy, logprobs * torch.nan

    shipped = ("model.path=tiny", "rubric.source=cached", "data.train=default", "data.tasks=[policy,environment:0]")
    with monkeypatch.context() as patch:
        patch.setattr(step, "expected_value", spoiled)
        folder = train(*GIVEN, *shipped, exit_code=4)
    assert "fault           logprobs\n" in (folder / "diagnosis.txt").read_text(encoding="utf-8")
    capfd.readouterr()
    saved = max((folder / "faults").glob("step-*.pt"))
    assert main(["inspect", str(saved)]) == 0
    lines = capfd.readouterr().out.splitlines()
    # Files of earlier versions have no temperature over the legal moves.
    older = torch.load(saved, weights_only=True)
    assert older.pop("moves_temperature") == 0
    torch.save(older, saved)
    assert main(["inspect", str(saved)]) == 0 and capfd.readouterr().out.splitlines() == lines
    value = next(float(line.split()[-1]) for line in lines if line.startswith("expected value "))
    assert 0 < value < 1 and lines[-1] == "not again: forward and backward pass are finite and usual here"


def complaint(argument: str, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    assert main(["inspect", argument]) == 2
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.startswith("rookworld: inspect: ") and shown.err.count("\n") == 1
    return shown.err


def test_file_without_a_fault_batch_is_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, tensor, other = tmp_path / "text.pt", tmp_path / "tensor.pt", tmp_path / "other.pt"
    text.write_text("no batch\n")
    torch.save(torch.zeros(3), tensor)
    torch.save({"batch": None}, other)
    whole = tmp_path / "whole.pt"
    torch.save({"batch": list(range(10_000))}, whole)
    cut = tmp_path / "cut.pt"
    cut.write_bytes(whole.read_bytes()[:100])
    (tmp_path / "empty.pt").touch()
    for path in (text, tensor, other, cut, tmp_path / "empty.pt", tmp_path / "absent.pt", tmp_path):
        line = complaint(str(path), capfd)
        assert "expected a batch that a run saved under faults/, got " in line and str(path) in line
        assert "weights_only" not in line, "torch's advice would run whatever the file holds"


def test_fault_batch_outside_its_run_is_refused_in_one_line(
    overflowing: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "elsewhere" / "faults" / "step-3.pt"
    moved.parent.mkdir(parents=True)
    overflowing.rename(moved)
    capfd.readouterr()
    assert main(["inspect", str(moved)]) == 2
    error = capfd.readouterr().err
    assert f"inspect: expected the run's config.yaml in {moved.parents[1]}" in error and error.count("\n") == 1


def test_inspect_requires_a_batch_file_and_help_exits_with_code_0(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 2
    assert capfd.readouterr().err == "rookworld: inspect: the following arguments are required: BATCH\n"
    with pytest.raises(SystemExit) as done:
        main(["inspect", "--help"])
    assert done.value.code == 0 and "faults/step-N.pt" in capfd.readouterr().out
