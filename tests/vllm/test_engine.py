"""The engine in this process: its weights are read back from its kernels, and a sync leaves nothing stale."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorError
from rookworld_rlvr.rollout.vllm_engine import VLLMGenerator
from rookworld_rlvr.rollout.vllm_weights import expected_weights, require_weights

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")


def moved(model: Any, scale: float = 0.05) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn_like(parameter)
    return model


def named_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.2.self_attn.o_proj.weight",
        "model.layers.3.mlp.gate_proj.weight",
        "model.layers.4.mlp.up_proj.weight",
        "model.layers.5.mlp.down_proj.weight",
        "model.norm.weight",
    ],
)
def test_flipped_weight_bit_in_the_engine_is_detected(engine: Any, policy: Policy, name: str) -> None:
    engine.sync(policy.model)
    assert engine.weights_checksum() == checksum(policy.model)
    weights = named_weights(policy.model)
    weights[name].view(torch.int32).view(-1)[-1] ^= 1
    engine._engine.llm.collective_rpc("rookworld_load", args=(weights,))
    assert engine.weights_checksum() != checksum(policy.model)


def test_stale_lm_head_in_vllm_is_detected(engine: Any, policy: Policy) -> None:
    engine.sync(policy.model)
    weights = named_weights(moved(policy.model))
    engine._engine.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
    assert engine.weights_checksum().endswith("stale lm_head")
    with pytest.raises(GeneratorError, match=r"expected the trainer's weights .* stale lm_head"):
        # Every sync ends with this check.
        expected = expected_weights(policy.model, torch.float32)
        require_weights(expected, engine._engine.checksum(expected.names))
    engine.sync(policy.model)
    assert engine.weights_checksum() == checksum(policy.model)


def test_weight_sync_clears_the_prefix_cache(engine: Any, policy: Policy, prompts: Any) -> None:
    # Longer than a block of the cache, which holds 128 tokens.
    long = (prompts[0] * 9)[:200]

    def first_logprob() -> tuple[int, float]:
        [[done]] = engine.generate([long], group_size=1, temperature=0.0)
        return done.tokens[0], done.logprobs[0]

    engine.sync(policy.model)
    first_logprob()
    moved(policy.model, 0.02)
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(torch.tensor([long])).logits[0, -1], dim=-1)
    # Without a sync, the new weights read keys and values that the old weights cached.
    engine._engine.llm.collective_rpc("rookworld_load", args=(named_weights(policy.model),))
    token, logprob = first_logprob()
    assert abs(logprob - float(logprobs[token])) > 1e-3
    engine.sync(policy.model)
    token, logprob = first_logprob()
    assert abs(logprob - float(logprobs[token])) < 1e-4


def test_a_second_engine_in_the_process_of_a_rank_is_refused(engine: Any, policy: Policy) -> None:
    with pytest.raises(GeneratorError, match="expected one engine in the process of a rank"):
        VLLMGenerator(policy.model, GeneratorConfig(), eos_id=policy.tokenizer.eos_token_id, ranks=2)
    engine.sync(policy.model)
    assert engine.weights_checksum() == checksum(policy.model)


def test_vllm_keeps_rng_state_and_lets_trainer_set_threads(engine: Any, policy: Policy, prompts: Any) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    engine.sync(policy.model)
    engine.generate(prompts[:1], group_size=1, temperature=0.0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


def test_exception_inside_the_engine_raises_generator_error(
    engine: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no block is left")

    monkeypatch.setattr(engine._engine.llm, "generate", fails)
    with pytest.raises(GeneratorError, match="expected an answer of the engine, got RuntimeError: no block is left"):
        engine.generate(prompts[:1], group_size=1, temperature=0.0)
    monkeypatch.setattr(engine._engine.llm, "collective_rpc", fails)
    with pytest.raises(GeneratorError, match="got RuntimeError: no block is left"):
        engine.weights_checksum()


# The tests below start engines that end the session's engine, so they must come last.


@pytest.mark.parametrize("tied", [False, True])
def test_fused_vllm_weights_are_read_back_separately(tied: bool) -> None:
    from rookworld_rlvr.rollout.vllm_engine import VLLMGenerator

    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 130}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256}
    model = moved(LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, **shape, **heads)).eval())
    generator = VLLMGenerator(model, GeneratorConfig(max_new_tokens=8), eos_id=1)
    assert generator.weights_checksum() == checksum(model)
    moved(model)
    assert generator.weights_checksum() != checksum(model)
    generator.sync(model)
    assert generator.weights_checksum() == checksum(model)


@pytest.mark.parametrize("adapter", [(), ("model.lora.rank=4",)])
def test_bf16_run_with_vllm_passes_preflight_and_trains(
    tiny_overrides: list[str], tmp_path: Path, capfd: Any, adapter: tuple[str, ...]
) -> None:
    """With an adapter vLLM gets the merged weights of each step, and they are read back as those of the trainer."""
    given = [*tiny_overrides, "precision=bf16", "generator.kind=vllm", "steps=2", f"output_root={tmp_path / 'outputs'}"]
    assert main(["train", *given, *adapter]) == 0
    run = (tmp_path / "outputs" / "latest").resolve()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["preflight"]["sampler_synced"]["measured"] == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(row["optim/update_norm"] > 0 for row in rows) and not rows[-1]["recovery/skipped"]
    assert summary["after"]["policy/valid"]["n"] == 1


def test_resumed_vllm_run_reaches_the_same_weights(tiny_overrides: list[str], tmp_path: Path, capfd: Any) -> None:
    def run(root: str, *overrides: str) -> tuple[Path, str]:
        given = [*tiny_overrides, "generator.kind=vllm", "evaluation.rows=0", "checkpoint_every=1", "steps=3"]
        assert main(["train", *given, f"output_root={tmp_path / root}", *overrides]) == 0
        folder = (tmp_path / root / "latest").resolve()
        weights = folder / "checkpoints" / "step-3" / "model.safetensors"
        return folder, weights.read_bytes().hex() if weights.exists() else ""

    whole, weights = run("whole")
    begun, _ = run("begun", "max_minutes=1e-9")
    _, resumed = run("begun", f"resume={begun}", "max_minutes=0")
    assert resumed == weights != ""
    assert (whole / "rollouts.jsonl").read_text().count("\n") > 0
