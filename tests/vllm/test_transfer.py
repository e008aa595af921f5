"""Weight transfer to a server by vLLM's own engine: the calls and checks of CUDA, with gloo instead of NCCL."""

import importlib
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorError
from rookworld_rlvr.rollout.vllm_client import ServerGoneError
from rookworld_rlvr.rollout.vllm_config import VLLMConfig
from rookworld_rlvr.rollout.vllm_server import VLLMServerGenerator
from rookworld_rlvr.rollout.vllm_server_pool import VLLMServerPool
from rookworld_rlvr.rollout.vllm_weights import FolderSync, TransferSync

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")

OVER_GLOO = ("--worker-extension-cls", "gloo_transfer.GlooExtension", "--weight-transfer-config", '{"backend": "gloo"}')
Prompts = list[tuple[int, ...]]


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the gloo backend for the trainer in this process."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    importlib.import_module("gloo_transfer").register_trainer()


@pytest.fixture
def server(gloo: None, make_server: Callable[..., Any]) -> Iterator[Any]:
    process = make_server(*OVER_GLOO)
    try:
        process.wait()
        yield process
    finally:
        process.kill()


def client_of(policy: Policy, server: Any, *, retries: int = 0, timeout_s: float = 60.0) -> VLLMServerGenerator:
    vllm = VLLMConfig(retries=retries, timeout_s=timeout_s)
    config = GeneratorConfig(max_new_tokens=64, batch_size=64, vllm=vllm)
    return VLLMServerGenerator(policy.model, config, server.url, eos_id=policy.tokenizer.eos_token_id)


def train_a_little(policy: Policy) -> str:
    """Change every weight and return the new checksum."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)
    return checksum(policy.model)


def test_transfer_sends_all_weights_and_restores_a_restarted_server(
    server: Any, policy: Policy, prompts: Prompts
) -> None:
    client = client_of(policy, server, retries=6)
    assert isinstance(client._weight_sync, TransferSync)
    assert client.weights_checksum() == checksum(policy.model)
    drawn = []
    for _ in range(2):
        expected = train_a_little(policy)
        client.sync(policy.model)
        assert client.weights_checksum() == expected
        drawn.append(client.generate(prompts, group_size=2, temperature=1.0, seeds=range(len(prompts))))
    assert drawn[0] != drawn[1]

    # The batch is sampled again with the weights of the last weight sync, not with those trained since.
    train_a_little(policy)
    server.kill()
    server.start()
    client.generate(prompts, group_size=2, temperature=1.0, seeds=range(len(prompts)))
    assert client.weights_checksum() == expected != checksum(policy.model)


def test_corrupted_weight_transfer_is_refused(server: Any, policy: Policy) -> None:
    client = client_of(policy, server)
    keep = client._snapshot.keep

    def keep_spoilt(model: Any) -> None:
        keep(model)
        assert client._snapshot.on_device
        next(iter(client._snapshot.on_device.values())).add_(1)

    client._snapshot.keep = keep_spoilt  # type: ignore[method-assign]
    with pytest.raises(GeneratorError, match="expected the trainer's weights"):
        client.sync(policy.model)
    # No rank samples with the corrupted weights.
    assert client._require_ours() == f"{client._snapshot.token} half loaded"
    client._snapshot.keep = keep  # type: ignore[method-assign]
    client.sync(policy.model)
    assert client.weights_checksum() == checksum(policy.model)


def test_interrupted_transfer_is_repeated_by_same_or_other_trainer(server: Any, policy: Policy) -> None:
    client = client_of(policy, server, retries=3)

    def cut_off(source: Any, meta: list[Any]) -> Iterator[tuple[str, torch.Tensor]]:
        yield from islice(source, 3)
        raise RuntimeError("cut off")

    client._weight_sync._engine._checked_iter = cut_off  # type: ignore[attr-defined]
    expected = train_a_little(policy)
    client.sync(policy.model)
    assert client.weights_checksum() == expected

    last = client_of(policy, server)
    last._weight_sync._engine._checked_iter = cut_off  # type: ignore[attr-defined]
    expected = train_a_little(policy)
    with pytest.raises(ServerGoneError, match="got RuntimeError: cut off"):
        last.sync(policy.model)
    assert client_of(policy, server).weights_checksum() == expected


def test_frozen_server_is_left_out_by_name_after_the_timeout(
    server: Any, make_server: Callable[..., Any], policy: Policy, prompts: Prompts, capfd: pytest.CaptureFixture[str]
) -> None:
    other = make_server(*OVER_GLOO)
    try:
        other.wait()
        vllm = VLLMConfig(urls=[server.url, other.url], retries=0, timeout_s=10)
        config = GeneratorConfig(max_new_tokens=64, batch_size=64, vllm=vllm)
        sampler = VLLMServerPool(policy.model, config, eos_id=policy.tokenizer.eos_token_id)
        # The server freezes between two calls of a weight sync.
        held, frozen = sampler._servers[1]._weight_sync, threading.Timer(0.0, other.freeze)
        send = held._engine.send_weights  # type: ignore[attr-defined]

        def freeze_then_send() -> None:
            frozen.start()
            frozen.join()
            send()

        held._engine.send_weights = freeze_then_send  # type: ignore[attr-defined]
        expected = train_a_little(policy)
        sampler.sync(policy.model)
        message = capfd.readouterr().err
        assert f"{other.url} is not used" in message and "within 10 s" in message
        assert sampler.weights_checksum() == expected
        groups = sampler.generate(prompts, group_size=2, temperature=1.0, seeds=range(len(prompts)))
        assert [len(group) for group in groups] == [2] * len(prompts)
    finally:
        other.kill()


def test_run_trains_with_weight_transfer(server: Any, tiny_overrides: list[str], tmp_path: Path) -> None:
    given = [*tiny_overrides, "generator=vllm_server", f"generator.vllm.urls=[{server.url}]", "precision=fp32"]
    given += ["steps=2", "evaluation_rows=1", "match_pairs=0", f"output_root={tmp_path}"]
    assert main(["train", *given]) == 0


def test_server_without_weight_transfer_loads_from_a_folder(
    make_server: Callable[..., Any], gloo: None, policy: Policy
) -> None:
    plain = make_server()
    try:
        plain.wait()
        client = client_of(policy, plain)
        assert isinstance(client._weight_sync, FolderSync)
        client._server.timeout_s = 5
        with pytest.raises(ServerGoneError, match="a connection by gloo, nothing came within 5 s"):
            TransferSync(client._server, "gloo", client._snapshot, torch.device("cpu")).load()
    finally:
        plain.kill()
