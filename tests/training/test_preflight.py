"""The preflight checks pass on a sound model, and each names the bug that it is meant to find."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model import loading
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.training import preflight
from rookworld_rlvr.training.preflight import preflight_examples, preflight_input, require_passed, run_preflight
from rookworld_rlvr.training.run import Run

CHECKS = ["kl_step_0", "ratio_step_0", "dropout_off", "padding_neutral", "sampler_agrees", "sampler_synced"]
MakeRun = Callable[..., Run]


def refused(run: Run) -> list[str]:
    given = preflight_input(run.context, preflight_examples(run.data.train))
    return [check.name for check in run_preflight(given) if not check.passed]


def smoke_in(tmp_path: Path, overrides: list[str], *more: str) -> int:
    return main(["smoke", *overrides, f"output_root={tmp_path / 'outputs'}", *more])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_all_checks_pass_on_a_sound_model(make_run: MakeRun, precision: str, temperature: float) -> None:
    run = make_run(f"precision={precision}", f"generator.temperature={temperature}")
    results = run_preflight(preflight_input(run.context, preflight_examples(run.data.train)))
    require_passed(results)
    assert [check.name for check in results] == CHECKS
    assert all(check.measured <= check.bound for check in results)


def test_smoke_shows_completions_and_checks_and_writes_no_files(
    small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert smoke_in(tmp_path, small_overrides) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert shown.out.count("\ncompletion ") == 4 and shown.out.count("  components ") == 4
    assert shown.out.count("\nexpected ") == 2
    assert "KL(step 0) 0.00e+00  ratio - 1 0.00e+00" in shown.out
    assert shown.out.count("passed ") == 6 and "REFUSED" not in shown.out
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_model_passes_smoke(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert smoke_in(tmp_path, ["device=cpu", "threads=1"]) == 0
    assert capfd.readouterr().out.count("passed ") == 6


def test_smoke_of_a_model_without_the_form_says_what_teaches_it(
    chat_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["experiment=chat", f"model.path={chat_model}", "threads=1", "generator.max_new_tokens=2"]
    assert smoke_in(tmp_path, given) == 0
    shown = capfd.readouterr().out
    assert "no completion is well-formed: rewards of its parts teach the form" in shown and "rookworld sft" in shown
    # All these completions earn the same, and without KL none of their tokens is trained.
    assert "no token trained" in shown and "ratio - 1" not in shown


def test_dropout_is_refused_by_name(
    small_overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "DROPOUT", 0.1)
    assert smoke_in(tmp_path, small_overrides) == 3
    shown = capfd.readouterr()
    assert re.search(r"check dropout_off +REFUSED", shown.out)
    assert "preflight refused" in shown.err and "dropout_off" in shown.err and shown.err.count("\n") == 1


def test_refused_training_run_exits_with_code_3_and_keeps_latest_link(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = train("steps=1", "evaluation.rows=0")
    monkeypatch.setattr(loading, "DROPOUT", 0.1)
    assert train("steps=2", exit_code=3) == good
    assert "dropout_off" in capfd.readouterr().err
    [refused] = [path.parent for path in tmp_path.glob("outputs/*/*/config.yaml") if path.parent != good]
    assert not (refused / "metrics.jsonl").exists() and not (refused / "summary.json").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_positions_counted_from_the_pads_are_refused_by_name(
    precision: str,
    small_overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def from_the_pads(attention_BT: Tensor) -> Tensor:
        return torch.arange(attention_BT.shape[1]).expand(attention_BT.shape)

    monkeypatch.setattr(preflight, "position_ids", from_the_pads)
    assert smoke_in(tmp_path, [*small_overrides, f"precision={precision}"]) == 3
    error = capfd.readouterr().err
    assert "padding_neutral" in error and "dropout_off" not in error


def test_attention_to_pads_is_refused(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    real = preflight.padded

    def all_ones(*arguments: object) -> tuple[Tensor, Tensor]:
        tokens_BT, attention_BT = real(*arguments)  # type: ignore[arg-type]
        return tokens_BT, torch.ones_like(attention_BT)

    monkeypatch.setattr(preflight, "padded", all_ones)
    assert refused(make_run()) == ["padding_neutral"]


class NeverSyncs(HFGenerator):
    def sync(self, model: torch.nn.Module) -> None:
        del model


def stale_generator(run: Run, change: float) -> HFGenerator:
    policy = run.context.policy
    model = copy.deepcopy(policy.model)
    with torch.no_grad():
        model.transformer.ln_f.weight += change
    return NeverSyncs(
        model, GeneratorConfig(max_new_tokens=24), eos_id=policy.tokenizer.eos_token_id, pad_id=policy.pad_id
    )


def test_a_sampler_with_other_weights_is_refused_by_name(make_run: MakeRun) -> None:
    run = make_run()
    run.context.sampler.generator = stale_generator(run, 0.0)
    assert refused(run) == []
    run.context.sampler.generator = stale_generator(run, 1e-6)
    assert refused(run) == ["sampler_synced"]
    run.context.sampler.generator = stale_generator(run, 0.3)
    assert refused(run) == ["sampler_agrees", "sampler_synced"]


def test_bound_of_bf16_follows_from_the_roundings_of_the_model(make_run: MakeRun) -> None:
    run = make_run("precision=bf16")
    with torch.no_grad():
        for policy in (run.context.policy, run.context.references.current):
            policy.model.transformer.ln_f.weight *= 200
            policy.model.transformer.ln_f.bias *= 200
    given = preflight_input(run.context, preflight_examples(run.data.train))
    [check] = [check for check in run_preflight(given) if check.name == "sampler_agrees"]
    assert check.passed and check.bound > check.measured > preflight.SAMPLER_BOUND_NAT[run.context.policy.precision]


def test_policy_that_differs_from_reference_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    with torch.no_grad():
        run.context.references.current.model.transformer.ln_f.weight += 0.3
    assert refused(run) == ["kl_step_0", "ratio_step_0"]


def test_nan_weights_fail_all_checks_except_weight_sync(make_run: MakeRun) -> None:
    run = make_run()
    given = preflight_input(run.context, preflight_examples(run.data.train))
    with torch.no_grad():
        run.context.policy.model.transformer.ln_f.weight[0] = torch.nan
    assert [check.name for check in run_preflight(given) if not check.passed] == CHECKS[:5]
