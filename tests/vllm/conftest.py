"""A vLLM engine in this process, a server in another, and a trainer of the shipped model with its tied head."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.world import World
from rookworld_rlvr.rollout.generator import Generator, GeneratorConfig
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.rollout.vllm_config import VLLMConfig
from rookworld_rlvr.rollout.vllm_serve import READY
from rookworld_rlvr.rollout.vllm_server import VLLMServerGenerator
from rookworld_rlvr.training.config import RunConfig

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PATIENCE_S = 120
SETTINGS = GeneratorConfig(max_new_tokens=64, batch_size=64, vllm=VLLMConfig(kv_cache_gib=0.25))


@pytest.fixture
def policy() -> Policy:
    return load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)


@pytest.fixture
def prompts(policy: Policy) -> list[tuple[int, ...]]:
    """Prompts of both tasks and of different lengths; two are equal."""
    texts = [f"P: {START} ", f"A: {START}+e2e4+e2e4+", f"A: {START}+g1f3+e2e4 e7e5 g1f3+", f"P: {START} "]
    return [prompt_tokens(policy.tokenizer, text) for text in texts]


@pytest.fixture(scope="session")
def engine() -> Any:
    """Engine of `generator.kind=vllm`. A process can have only one, so the tests share it."""
    from rookworld_rlvr.rollout.vllm_engine import VLLMGenerator

    policy = load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)
    return VLLMGenerator(policy.model, SETTINGS, eos_id=policy.tokenizer.eos_token_id)


class ServerProcess:
    """A server as a user starts it, which can be killed and started again at the same address."""

    def __init__(self) -> None:
        """Start the server."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start the server and wait until it says that it is ready."""
        command = [sys.executable, "-m", "rookworld_rlvr.rollout.vllm_serve", "tiny", "--precision", "fp32"]
        command += ["--port", str(self._port), "--kv-cache-gib", "0.25", "--batch-size", "64"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdout is not None
        killer = threading.Timer(PATIENCE_S, self.kill)
        killer.start()
        ready = any(line == f"{READY}{self.url}\n" for line in self._process.stdout)
        killer.cancel()
        assert ready

    def ensure_running(self) -> None:
        """Start the server again if a test has killed it."""
        if self._process.poll() is not None:
            self.start()

    def freeze(self) -> None:
        """Stop the server without ending it, so that it accepts requests and never answers."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server at once, as if the machine had died. It may be dead already."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[ServerProcess]:
    """Server started by `python -m rookworld_rlvr.rollout.vllm_serve tiny`."""
    process = ServerProcess()
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    """The shared server, which answers at the start of each test, even after a test that killed it."""
    shared_server.ensure_running()
    return shared_server


@pytest.fixture
def make_client(server: ServerProcess) -> Callable[[Policy], VLLMServerGenerator]:
    """Function that builds the generator of `generator.kind=vllm_server` for a policy."""
    config = replace(SETTINGS, vllm=VLLMConfig(url=server.url))

    def make(policy: Policy) -> VLLMServerGenerator:
        eos_id = policy.tokenizer.eos_token_id
        return VLLMServerGenerator(policy.model, config, eos_id=eos_id, dtype=torch.float32, world=World())

    return make


@pytest.fixture
def sampler(request: pytest.FixtureRequest, policy: Policy) -> Generator:
    """The generator named by the test's parameter, with the policy's weights."""
    if request.param == "vllm_server":
        client: Generator = request.getfixturevalue("make_client")(policy)
        return client
    engine: Generator = request.getfixturevalue("engine")
    engine.sync(policy.model)
    return engine


@pytest.fixture
def tiny_overrides(small_overrides: list[str]) -> list[str]:
    """Overrides for a run of the shipped model on the small corpus."""
    return [*small_overrides, "model.path=tiny", "generator.max_new_tokens=64", "generator.vllm.kv_cache_gib=0.25"]


@pytest.fixture
def make_context(tiny_overrides: list[str]) -> Callable[..., Any]:
    """Context of a training step, built by the command line's code."""

    def make(*overrides: str) -> Any:
        given = OmegaConf.from_dotlist([*tiny_overrides, *overrides])
        config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), given))
        return build_unsaved_run(config).context

    return make
