"""A server that holds other weights, restarts or dies causes a fault or an error, never a wrong batch."""

import json
import threading
import time
import urllib.error
import urllib.request
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
from rookworld_rlvr.rollout import vllm_server
from rookworld_rlvr.rollout.generator import GeneratorError
from rookworld_rlvr.training.preflight import preflight_examples, preflight_input, run_preflight

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")
PATIENCE_S = 120


def other_policy() -> Policy:
    policy = load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)
    with torch.no_grad():
        policy.model.model.norm.weight += 0.1
    return policy


def test_server_taken_over_by_another_trainer_is_refused_until_the_next_sync(
    make_client: Callable[[Policy], Any], policy: Policy, prompts: Any
) -> None:
    ours = make_client(policy)
    expected = ours.generate(prompts[:1], group_size=2, temperature=1.0, seeds=[0])
    theirs = other_policy()
    make_client(theirs)
    with pytest.raises(GeneratorError, match=f"the trainer's weights .*, the sampler has {checksum(theirs.model)}"):
        ours.generate(prompts[:1], group_size=2, temperature=1.0, seeds=[0])
    assert ours.weights_checksum() == checksum(theirs.model)
    ours.sync(policy.model)
    assert ours.generate(prompts[:1], group_size=2, temperature=1.0, seeds=[0]) == expected


def test_foreign_server_weights_fail_sync_and_preflight(
    make_client: Callable[[Policy], Any],
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
    # The next weight sync sends other weights, which the sync itself detects.
    foreign = vllm_server.save(dict(other_policy().model.named_parameters()))
    monkeypatch.setattr(vllm_server, "save", lambda named: foreign)
    with pytest.raises(GeneratorError, match="expected the trainer's weights"):
        client.sync(context.policy.model)
    # If the sync did not detect them, the preflight check would.
    client.sync = lambda model: None
    assert [check.name for check in run_preflight(given) if not check.passed] == ["sampler_synced"]


def test_a_server_of_another_precision_is_refused(server: Any, tiny_overrides: list[str], capfd: Any) -> None:
    given = [*tiny_overrides, "generator.kind=vllm_server", f"generator.vllm.url={server.url}", "precision=bf16"]
    assert main(["smoke", *given]) == 2
    error = capfd.readouterr().err
    assert "torch.bfloat16" in error and "torch.float32" in error and error.count("\n") == 1


def test_restart_mends_a_server_that_got_weights_of_another_model(
    server: Any, make_client: Callable[[Policy], Any], policy: Policy, prompts: Any
) -> None:
    client = make_client(policy)
    expected = client.generate(prompts, group_size=4, temperature=1.0, seeds=range(len(prompts)))

    def nothing_is_sampled() -> None:
        with pytest.raises(GeneratorError, match="expected a trainer's weights before its prompts, got none"):
            client.generate(prompts, group_size=4, temperature=1.0, seeds=range(len(prompts)))

    with pytest.raises(GeneratorError, match=r"load, got 500: .*Attempted to load weight \(torch.Size\(\[3\]\)\)"):
        client._ask("/load", vllm_server.save({"model.norm.weight": torch.ones(3)}))
    nothing_is_sampled()
    server.kill()
    with pytest.raises(GeneratorError, match="refused"):
        client.sync(policy.model)
    server.start()
    nothing_is_sampled()
    client.sync(policy.model)
    got = client.generate(prompts, group_size=4, temperature=1.0, seeds=range(len(prompts)))
    assert client.weights_checksum() == checksum(policy.model)
    gaps = [
        abs(a - b)
        for groups in zip(expected, got, strict=True)
        for one, other in zip(*groups, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
        if one.tokens == other.tokens
    ]
    assert len(gaps) > 100 and max(gaps) < 1e-4


def test_frozen_server_is_an_error_after_the_time_limit(
    server: Any, make_client: Callable[[Policy], Any], policy: Policy, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(policy)
    monkeypatch.setattr(vllm_server, "TIMEOUT_S", 1.0)
    server.freeze()
    try:
        with pytest.raises(GeneratorError, match=f"POST {server.url}/generate, got: timed out"):
            client.generate(prompts, group_size=2, temperature=1.0, seeds=range(len(prompts)))
    finally:
        server.thaw()


def test_server_refuses_requests_from_web_pages_and_unknown_ones(server: Any, policy: Policy) -> None:
    def status(path: str, data: bytes | None = None, **headers: str) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status("/state") == 200
    assert status("/state", Origin="https://evil.example") == status("/load", b"", Origin="null") == 403
    assert status("/load") == status("/state", b"") == status("/collective_rpc", b"{}") == 404
    # A pickled file and other bad requests are refused, and the server goes on.
    assert status("/load", b"\x80\x04N.") == status("/checksum", b"[") == 400
    assert status("/state") == 200


def test_server_killed_during_a_run_ends_it_with_exit_code_4(
    server: Any, tiny_overrides: list[str], tmp_path: Path, capfd: Any
) -> None:
    root = tmp_path / "outputs"
    given = [*tiny_overrides, "generator.kind=vllm_server", f"generator.vllm.url={server.url}"]
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
