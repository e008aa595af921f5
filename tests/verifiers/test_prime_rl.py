"""prime-rl reads our configuration file; verifiers reads the part that chooses the environment."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

verifiers = pytest.importorskip("verifiers.v1", reason="verifiers is not installed: bash scripts/setup.sh verifiers")

FOLDER = Path(__file__).resolve().parents[2] / "environments/rookworld_chess"
sys.path.insert(0, str(FOLDER))


def settings() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "prime_rl.toml").read_text("utf-8"))


def test_verifiers_finds_the_task_set_that_the_file_names() -> None:
    [source] = settings()["orchestrator"]["train"]["source"]
    env = verifiers.SingleAgentEnvConfig.model_validate(source["env"])
    assert type(env.taskset).__name__ == "RookworldChessConfig"
    assert (env.taskset.task, env.taskset.num_tasks) == ("chat", -1)
    assert (env.agent.harness.id, env.agent.runtime.type) == ("null", "subprocess")


def test_prime_rls_configuration_classes_accept_the_file() -> None:
    """Run with `packages/prime-rl-configs/src` of prime-rl 0.8.0 (559b447) on PYTHONPATH; it is on no package index."""
    rl = pytest.importorskip(
        "prime_rl.configs.rl", reason="prime-rl-configs is not installed: it is on no package index"
    )
    config = rl.RLConfig.model_validate(settings())
    [source] = config.orchestrator.train.source
    assert (source.resolved_name, source.group_size, source.sampling.max_completion_tokens) == ("chess", 16, 64)
    assert source.env.taskset.task == "chat" and config.orchestrator.batch_size % source.group_size == 0
