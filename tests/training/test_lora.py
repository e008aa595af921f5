"""Adapters are trained and nothing else; the reference is the model without them; what is saved has them merged."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.lora import merged_parameters
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.step import grpo_step

LORA = ("model.lora.rank=4", "optim.lr=0.004")
Train = Callable[..., Path]


@pytest.fixture
def context(make_config: Callable[..., RunConfig]) -> Any:
    return build_unsaved_run(make_config(*LORA, "steps=4")).context


def test_the_base_stays_bit_for_bit_and_adapters_move_the_policy_away_from_it(context: Any) -> None:
    before = {name: p.clone() for name, p in context.policy.model.named_parameters()}
    reports = [grpo_step(context, step) for step in range(3)]
    moved = {name for name, p in context.policy.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all(".lora_" in name for name in moved)
    assert reports[0].tokens.kl_max == 0.0 < reports[2].tokens.kl_exact_sum
    # The reference is the base, and no copy of it.
    base = {p.data_ptr() for name, p in context.policy.model.named_parameters() if ".lora_" not in name}
    assert {p.data_ptr() for p in context.references.current.model.parameters()} == base
    trained = [p for group in context.optimizer.param_groups for p in group["params"]]
    assert sum(p.numel() for p in trained) < sum(p.numel() for p in context.policy.model.parameters()) / 2


def test_what_is_saved_gives_the_log_probs_of_the_adapted_model(train: Train) -> None:
    folder = train(*LORA, "steps=3", "evaluation_rows=0", "checkpoint_every=3")
    plain = AutoModelForCausalLM.from_pretrained(folder / "checkpoints/step-3", dtype=torch.float32).eval()
    begun = AutoModelForCausalLM.from_pretrained(folder / "checkpoints/step-0", dtype=torch.float32).eval()
    state = torch.load(folder / "checkpoints/step-3/trainer_state.pt", weights_only=True)["policy"]
    assert any(".lora_" in name for name in state) and not any(".lora_" in name for name, _ in plain.named_parameters())
    import peft

    adapted: Any = copy.deepcopy(begun)
    settings = peft.LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", fan_in_fan_out=True)
    peft.inject_adapter_in_model(settings, adapted)
    adapted.load_state_dict(state)
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        ours, theirs, base = (torch.log_softmax(m.eval()(tokens).logits, -1) for m in (plain, adapted, begun))
    # Log-probs of tokens that are ever drawn: beyond, 1e-5 is less than the last digit.
    drawn = ours > -10
    torch.testing.assert_close(ours[drawn], theirs[drawn], atol=1e-5, rtol=0)
    assert float((ours - base).abs().max()) > 1e-3
    # What a sampler elsewhere is given is the same.
    merged = dict(merged_parameters(adapted))
    assert merged.keys() == {name for name, _ in plain.named_parameters()}
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(merged[name], parameter.detach(), atol=1e-6, rtol=0)


def test_a_run_with_adapters_goes_on_to_the_same_weights(train: Train) -> None:
    given = (*LORA, "evaluation_rows=0", "checkpoint_every=2")
    whole = train(*given, "steps=4", root="whole")
    part = train(*given, "steps=2", root="part")
    assert main(["train", f"resume={part}", "steps=4"]) == 0
    # The schedule of the first part was a shorter one.
    again = train(*given, "steps=4", root="again")
    ours, theirs = ((run / "checkpoints/step-4/model.safetensors").read_bytes() for run in (whole, again))
    assert ours == theirs and (part / "checkpoints/step-4").is_dir()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.lora.targets=nothing"], "model.lora.targets: expected modules of this model, got nothing"),
        (["reference.mode=ema"], "reference.mode: expected frozen with model.lora.rank=4, got ema"),
        (["model.lora.alpha=0"], "model.lora: expected rank from 0, alpha above 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    overrides: list[str], told: str, small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *small_overrides, *LORA, *overrides]) == 2
    error = capfd.readouterr().err
    assert told in error and error.count("\n") == 1
