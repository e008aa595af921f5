"""Parts of the vLLM generators that need no vLLM: settings, command line, weight sync, limits and checksums."""

import asyncio
import copy
import importlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum, checksum_of
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorError, room_for, until_end
from rookworld_rlvr.rollout.vllm_client import ServerGoneError, VLLMServer
from rookworld_rlvr.rollout.vllm_config import LOGPROBS_MODE, SERVED_NAME, VLLMConfig, engine_arguments
from rookworld_rlvr.rollout.vllm_serve import _parser, flags
from rookworld_rlvr.rollout.vllm_server import VLLMServerGenerator
from rookworld_rlvr.rollout.vllm_weights import WeightOwner, WeightSnapshot, expected_weights, require_weights
from rookworld_rlvr.rollout.vllm_worker import WEIGHTS_FILE, WorkerExtension

EOS = 7


def test_engine_uses_processed_logprobs_and_no_model_folder_defaults() -> None:
    config = VLLMConfig(kv_cache_gib=0.5, gpu_memory_fraction=0.4)
    cpu = engine_arguments(Path("m"), config, batch_size=32, accelerated=False, dtype=torch.bfloat16, sleeps=False)
    cuda = engine_arguments(Path("m"), config, batch_size=32, accelerated=True, dtype=torch.float32, sleeps=True)
    for arguments in (cpu, cuda):
        assert arguments["logprobs_mode"] == "processed_logprobs" and arguments["generation_config"] == "vllm"
        assert arguments["max_num_seqs"] == 32 and arguments["model"] == "m"
    assert (cpu["dtype"], cpu["kv_cache_memory_bytes"], cpu["enable_sleep_mode"]) == ("bfloat16", 2**29, False)
    assert (cuda["dtype"], cuda["gpu_memory_utilization"], cuda["enable_sleep_mode"]) == ("float32", 0.4, True)


def test_server_command_line_sets_flags_and_passes_on_unknown_ones() -> None:
    given, passed_on = _parser().parse_known_args(["some/model", "--port", "81", "--precision", "fp32", "--seed", "3"])
    assert passed_on == ["--seed", "3"]
    words = flags(given)
    pairs = dict(pairwise(words))
    assert pairs["--model"] == "some/model" and pairs["--dtype"] == "float32" and pairs["--port"] == "81"
    assert pairs["--host"] == "127.0.0.1" and pairs["--logprobs-mode"] == "processed_logprobs"
    assert "--no-use-tqdm-on-load" in words and "--enable-sleep-mode" not in words
    tiny = flags(_parser().parse_args(["tiny"]))
    assert (Path(tiny[tiny.index("--model") + 1]) / "config.json").is_file()


def test_server_refuses_requests_from_web_pages() -> None:
    words = flags(_parser().parse_args(["tiny"]))
    pairs = dict(pairwise(words))
    assert pairs["--allowed-origins"] == "[]"
    module, name = pairs["--middleware"].rsplit(".", 1)
    middleware = getattr(importlib.import_module(module), name)

    def status(*headers: tuple[bytes, bytes]) -> int:
        """Return the status of an application that answers 200, behind the middleware."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        scope = {"type": "http", "method": "POST", "path": "/collective_rpc", "headers": headers}
        # Runs in its own thread, because playwright leaves an event loop running in the tests' thread.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, middleware(application)(scope, None, send)).result()
        return int(sent[0]["status"])

    trainer = (b"content-type", b"application/json")
    assert status(trainer) == 200 and status() == 200
    assert status((b"origin", b"https://evil.example")) == status(trainer, (b"origin", b"null")) == 403


def test_only_the_syncing_rank_keeps_an_unchanging_weight_copy(policy: Policy, tmp_path: Path) -> None:
    led, leads = (
        WeightSnapshot(WeightOwner("x", syncs_weights=own), torch.bfloat16, str(tmp_path)) for own in (False, True)
    )
    for kept in (led, leads):
        kept.keep(policy.model)
    assert led.token == leads.token == "x:1" and led.expected == leads.expected
    assert not list(Path(led.folder).iterdir())
    assert [path.name for path in Path(leads.folder).iterdir()] == [WEIGHTS_FILE]
    with torch.no_grad():
        policy.model.transformer.wte.weight.add_(1)
    written = load_file(Path(leads.folder) / WEIGHTS_FILE)
    assert checksum_of((name, written[name]) for name in leads.expected.names) == leads.expected.checksum


def test_server_that_cannot_read_the_weights_folder_is_refused_at_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker = WorkerExtension()
    model_config = SimpleNamespace(dtype=torch.float32, logprobs_mode=LOGPROBS_MODE)
    worker.vllm_config = SimpleNamespace(model_config=model_config)

    def call(self: VLLMServer, method: str, **arguments: Any) -> Any:
        """Answer as a server on a machine that has no such folder."""
        elsewhere = {"folder": str(tmp_path / "elsewhere")} if "folder" in arguments else {}
        return getattr(worker, method)(**arguments | elsewhere)

    served = {"id": SERVED_NAME, "max_model_len": 256}
    monkeypatch.setattr(VLLMServer, "get", lambda self, path: {"data": [served]})
    monkeypatch.setattr(VLLMServer, "call", call)
    config, url = GeneratorConfig(vllm=VLLMConfig(sync_folder=str(tmp_path))), "http://127.0.0.1:1"
    with pytest.raises(GeneratorError) as refusal:
        VLLMServerGenerator(policy.model, config, url, eos_id=EOS)
    assert not isinstance(refusal.value, ServerGoneError)
    missing = f"[Errno 2] No such file or directory: '{tmp_path / 'elsewhere' / WEIGHTS_FILE}'"
    assert str(refusal.value) == (
        f"generator.vllm.sync_folder: expected a folder that {url} can read under the same path, "
        f"got an error there: {missing}"
    )
    assert worker.rookworld_token == ""


def test_missing_weights_folder_is_named(policy: Policy) -> None:
    config = GeneratorConfig(vllm=VLLMConfig(sync_folder="/nope"))
    with pytest.raises(GeneratorError, match=r"^generator\.vllm\.sync_folder: expected a folder, got '/nope'$"):
        VLLMServerGenerator(policy.model, config, "http://127.0.0.1:1", eos_id=EOS)


def test_completion_is_cut_after_its_end_token() -> None:
    done = until_end([3, EOS, 4], [-0.1, -0.2, -0.3], EOS)
    assert (done.tokens, done.logprobs, done.finished) == ((3, EOS), (-0.1, -0.2), True)
    assert not until_end([3, 4], [-0.1, -0.2], EOS).finished


def test_room_for_completion_is_limited_by_model_positions() -> None:
    assert [room_for(length, 10, 4) for length in (1, 6, 7, 9)] == [4, 4, 3, 1]


def test_error_of_a_prompt_without_room_survives_pickling() -> None:
    with pytest.raises(UserError, match="shorter than the model's 10 positions, got 10") as refusal:
        room_for(10, 10, 4)
    # Ranks send their errors to each other in this form.
    sent = pickle.loads(pickle.dumps(refusal.value))
    assert type(sent) is UserError and str(sent) == str(refusal.value)


def test_rounded_bf16_weights_are_accepted_as_the_trainers_weights(policy: Policy) -> None:
    rounded = copy.deepcopy(policy.model).to(torch.bfloat16)
    expected = expected_weights(policy.model, torch.bfloat16)
    assert expected.checksum_for(checksum(rounded)) == checksum(policy.model) != checksum(rounded)
    require_weights(expected, checksum(rounded))
    with torch.no_grad():
        rounded.transformer.ln_f.weight[0] += 0.1
    assert expected.checksum_for(checksum(rounded)) == checksum(rounded)
    with pytest.raises(GeneratorError, match="expected the trainer's weights"):
        require_weights(expected, checksum(rounded))


def test_checksum_ignores_the_sign_of_zero_weights() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
        before = checksum(model)
        model.weight.neg_()
    assert model.weight.signbit().all() and checksum(model) == before
