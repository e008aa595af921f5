"""A server that holds other weights, restarts or dies causes an error or a reconnect, never a wrong batch."""

import json
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout import vllm_weights
from rookworld_rlvr.rollout.generator import GeneratorError
from rookworld_rlvr.rollout.vllm_client import VLLMServer
from rookworld_rlvr.training.preflight import preflight_examples, preflight_input, run_preflight

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")
PATIENCE_S = 120


def other_policy() -> Policy:
    policy = load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)
    with torch.no_grad():
        policy.model.model.norm.weight += 0.1
    return policy


def test_server_taken_over_by_another_trainer_is_refused(
    make_client: Callable[..., Any], policy: Policy, prompts: Any
) -> None:
    ours = make_client(policy)
    ours.generate(prompts[:1], group_size=2, temperature=1.0, seeds=[0])
    make_client(other_policy())
    with pytest.raises(GeneratorError, match="another trainer's"):
        ours.generate(prompts[:1], group_size=2, temperature=1.0, seeds=[0])
    with pytest.raises(GeneratorError, match="another trainer's"):
        ours.sync(policy.model)
    assert ours.weights_checksum() != checksum(policy.model)


def test_foreign_server_weights_fail_sync_and_preflight(
    server: Any,
    make_client: Callable[..., Any],
    make_context: Callable[..., Any],
    corpus: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rookworld_rlvr.tasks.corpus import read_corpus

    context = make_context()
    client = make_client(context.policy)
    context.sampler.generator = client
    given = preflight_input(context, preflight_examples(read_corpus(corpus.train).examples))
    assert all(check.passed for check in run_preflight(given))
    # The next weight sync reads a file with other weights, which the sync itself detects.
    write = vllm_weights._write
    monkeypatch.setattr(vllm_weights, "_write", lambda model, path: write(other_policy().model, path))
    with pytest.raises(GeneratorError, match="expected the trainer's weights"):
        client.sync(context.policy.model)
    # No rank samples with these weights.
    assert client._require_ours() == f"{client._snapshot.token} half loaded"
    # If the sync did not detect them, the preflight check would.
    client.sync = lambda model: None
    assert [check.name for check in run_preflight(given) if not check.passed] == ["sampler_synced"]


def test_a_server_of_another_precision_is_refused(server: Any, tiny_overrides: list[str], capfd: Any) -> None:
    given = [*tiny_overrides, "generator=vllm_server", f"generator.vllm.urls=[{server.url}]", "precision=bf16"]
    assert main(["smoke", *given]) == 2
    error = capfd.readouterr().err
    assert "torch.bfloat16" in error and "torch.float32" in error and error.count("\n") == 1


def test_server_without_the_weights_folder_exits_with_code_2(
    server: Any, tiny_overrides: list[str], tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server gets a path that only the trainer's machine would have.
    monkeypatch.setattr(vllm_weights, "_write", lambda model, path: None)
    given = [*tiny_overrides, "generator=vllm_server", f"generator.vllm.urls=[{server.url}]", "precision=fp32"]
    assert main(["smoke", *given, f"generator.vllm.sync_folder={tmp_path}"]) == 2
    error = capfd.readouterr().err
    assert f"generator.vllm.sync_folder: expected a folder that {server.url} can read" in error
    assert f"No such file or directory: '{tmp_path}" in error and error.count("\n") == 1


def test_restarted_server_receives_the_weights_again(
    server: Any, make_client: Callable[..., Any], prompts: Any
) -> None:
    policy = other_policy()
    client = make_client(policy, retries=6)
    expected = client.generate(prompts, group_size=4, temperature=1.0, seeds=range(len(prompts)))
    synced = checksum(policy.model)
    # The server gets the weights of the last weight sync, not those trained since.
    with torch.no_grad():
        policy.model.model.norm.weight += 0.1
    server.kill()
    server.start()
    got = client.generate(prompts, group_size=4, temperature=1.0, seeds=range(len(prompts)))
    assert client.weights_checksum() == synced != checksum(policy.model)
    gaps = [
        abs(a - b)
        for groups in zip(expected, got, strict=True)
        for one, other in zip(*groups, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
        if one.tokens == other.tokens
    ]
    assert len(gaps) > 100 and max(gaps) < 1e-4


def test_server_killed_during_a_run_ends_it_with_exit_code_4(
    server: Any, tiny_overrides: list[str], tmp_path: Path, capfd: Any
) -> None:
    root = tmp_path / "outputs"
    at = f"generator.vllm.urls=[{server.url}]"
    given = [*tiny_overrides, "generator=vllm_server", at, "generator.vllm.retries=0"]
    given += ["steps=1000", "optim.lr=1e-4", "evaluation.rows=0", f"output_root={root}"]

    def kill_after_three_steps() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            logs = list(root.glob("*/*/metrics.jsonl"))
            if logs and logs[0].read_text().count("\n") >= 3:
                break
            time.sleep(0.05)
        server.kill()

    killer = threading.Thread(target=kill_after_three_steps)
    killer.start()
    assert main(["train", *given]) == 4
    killer.join()
    run = (root / "latest").resolve()
    diagnosis = (run / "diagnosis.txt").read_text()
    assert "fault           generator" in diagnosis and server.url in diagnosis
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "optim/update_norm" in row and row["optim/update_norm"] > 0]
    assert 3 <= len(trained) < len(rows) < 1000
    # All trained completions were sampled with the trainer's weights.
    assert all(abs(row["sampler/ratio_raw_max"] - 1) < 1e-3 for row in trained)


def test_run_without_reachable_server_exits_with_code_2(server: Any, tiny_overrides: list[str], capfd: Any) -> None:
    server.kill()
    with pytest.raises(GeneratorError, match="refused"):
        VLLMServer(server.url, timeout_s=PATIENCE_S).get("/v1/models")
    at = f"generator.vllm.urls=[{server.url}]"
    given = [*tiny_overrides, "generator=vllm_server", at, "generator.vllm.retries=0"]
    assert main(["train", *given]) == 2
    error = capfd.readouterr().err
    assert server.url in error and "start one: python -m" in error and error.count("\n") == 1
