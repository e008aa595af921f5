"""Two servers as one generator: a dead one loses no prompt, and one with other weights is left out by name."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorError
from rookworld_rlvr.rollout.vllm_config import VLLMConfig
from rookworld_rlvr.rollout.vllm_server_pool import VLLMServerPool

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")

MANY = 48
SETTINGS = GeneratorConfig(max_new_tokens=64, batch_size=64)


@pytest.fixture
def two(make_server: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    servers = make_server(), make_server()
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()


def generator_of(policy: Any, *servers: Any, retries: int = 0, timeout_s: float = 300.0) -> VLLMServerPool:
    urls = [server.url for server in servers]
    config = replace(SETTINGS, vllm=VLLMConfig(urls=urls, retries=retries, timeout_s=timeout_s))
    return VLLMServerPool(policy.model, config, eos_id=policy.tokenizer.eos_token_id)


def test_server_pool_leaves_out_dead_and_foreign_servers_by_name(
    two: tuple[Any, Any], policy: Any, prompts: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = two
    sampler = generator_of(policy, one, other, retries=5)
    assert sampler.weights_checksum() == checksum(policy.model)
    many_prompts = (list(prompts) * MANY)[:MANY]

    def drawn() -> list[list[tuple[int, ...]]]:
        groups = sampler.generate(many_prompts, group_size=4, temperature=1.0, seeds=range(MANY))
        return [[done.tokens for done in group] for group in groups]

    expected = drawn()
    assert [len(group) for group in expected] == [4] * MANY and not capfd.readouterr().err

    # One server is killed during sampling, and all prompts are still answered.
    killer = threading.Timer(0.3, one.kill)
    killer.start()
    groups = drawn()
    killer.join()
    assert [len(group) for group in groups] == [4] * MANY
    assert drawn() and f"{one.url} is not used" in capfd.readouterr().err

    # It is restarted, and used again after the next weight sync.
    one.start()
    one.wait()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1.01)
    sampler.sync(policy.model)
    assert sampler.weights_checksum() == checksum(policy.model) and not capfd.readouterr().err

    # A server that holds other weights is left out by name, and its prompts go to the other server.
    sampler._servers[1]._server.call("rookworld_load_folder", folder=sampler._snapshot.folder, token="x:1")
    assert [len(group) for group in drawn()] == [4] * MANY
    message = capfd.readouterr().err
    assert f"{other.url} is not used" in message and "another trainer's" in message

    # Without any server, sampling raises an error that names both.
    sampler._retries = 0
    one.kill()
    with pytest.raises(GeneratorError, match=f"none does: {one.url}, {other.url}"):
        sampler.generate(many_prompts, group_size=2, temperature=1.0, seeds=range(MANY))


def test_frozen_server_is_left_out_by_name_after_the_timeout(
    two: tuple[Any, Any], policy: Any, prompts: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = two
    sampler = generator_of(policy, one, other, timeout_s=10)
    other.freeze()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1.01)
    sampler.sync(policy.model)
    message = capfd.readouterr().err
    assert f"{other.url} is not used" in message and "timed out" in message and one.url not in message
    assert sampler.weights_checksum() == checksum(policy.model)
    groups = sampler.generate(prompts, group_size=2, temperature=1.0, seeds=range(len(prompts)))
    assert [len(group) for group in groups] == [2] * len(prompts)
