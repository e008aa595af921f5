"""A vLLM engine in this process, a server in another, and a trainer of the shipped model with its tied head."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import Generator, GeneratorConfig
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.rollout.vllm_client import VLLMServer
from rookworld_rlvr.rollout.vllm_config import VLLMConfig
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
    """Engine of `generator=vllm`. A process can have only one, so the tests share it."""
    from rookworld_rlvr.rollout.vllm_engine import VLLMGenerator

    policy = load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)
    return VLLMGenerator(policy.model, SETTINGS, eos_id=policy.tokenizer.eos_token_id)


class ServerProcess:
    """A server as a user starts it, which can be killed and started again at the same address."""

    def __init__(self, log: Path) -> None:
        """Start the server."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "rookworld_rlvr.rollout.vllm_serve", "tiny", "--precision", "fp32"]
        command += ["--port", str(self.port), "--kv-cache-gib", "0.25", "--batch-size", "64"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> None:
        server = VLLMServer(self.url, timeout_s=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                server.get("/v1/models")
                return
            except RuntimeError:
                assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-2000:]
                time.sleep(0.5)

    def ensure_running(self) -> None:
        """Start the server again if a test has killed it, and wait until it answers."""
        if self._process.poll() is not None:
            self.start()
        self.wait()

    def freeze(self) -> None:
        """Stop the server without ending it, so that it accepts requests and never answers."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill the server and its engine at once, as if the machine had died. They may be dead already."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Server started by `python -m rookworld_rlvr.rollout.vllm_serve tiny`."""
    process = ServerProcess(tmp_path_factory.mktemp("server") / "log.txt")
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
def make_server(tmp_path: Path) -> Callable[[], ServerProcess]:
    """Function that starts a server for one test, which must end it."""
    return lambda: ServerProcess(tmp_path / "log.txt")


@pytest.fixture
def make_client(server: ServerProcess) -> Callable[..., VLLMServerGenerator]:
    """Function that builds the generator of `generator=vllm_server` for a policy."""

    def make(policy: Policy, *, retries: int = 0) -> VLLMServerGenerator:
        config = GeneratorConfig(max_new_tokens=64, batch_size=64, vllm=VLLMConfig(retries=retries))
        return VLLMServerGenerator(policy.model, config, server.url, eos_id=policy.tokenizer.eos_token_id)

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
