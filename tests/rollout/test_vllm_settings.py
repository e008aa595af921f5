"""Parts of the vLLM generators that need no vLLM: settings, command line, a server's answers, limits and checksums."""

import copy
import json
import math
import pickle
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.model.world import World
from rookworld_rlvr.rollout import vllm_server
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorError, room_for, until_end
from rookworld_rlvr.rollout.vllm_config import VLLMConfig, engine_arguments
from rookworld_rlvr.rollout.vllm_engine import Engine
from rookworld_rlvr.rollout.vllm_serve import _parser, arguments, main
from rookworld_rlvr.rollout.vllm_server import VLLMServerGenerator
from rookworld_rlvr.rollout.vllm_weights import expected_weights, require_weights

# Seconds between two looks for an end. The default, 0.5, is longer than most tests.
POLL_S = 0.01
EOS = 7


def test_engine_uses_processed_logprobs_and_no_model_folder_defaults() -> None:
    config = VLLMConfig(kv_cache_gib=0.5, gpu_memory_fraction=0.4)
    cpu = engine_arguments(Path("m"), config, batch_size=32, accelerated=False, dtype=torch.bfloat16, sleeps=False)
    cuda = engine_arguments(Path("m"), config, batch_size=32, accelerated=True, dtype=torch.float32, sleeps=True)
    for given in (cpu, cuda):
        assert given["logprobs_mode"] == "processed_logprobs" and given["generation_config"] == "vllm"
        assert given["max_num_seqs"] == 32 and given["model"] == "m"
    assert (cpu["dtype"], cpu["kv_cache_memory_bytes"], cpu["enable_sleep_mode"]) == ("bfloat16", 2**29, False)
    assert (cuda["dtype"], cuda["gpu_memory_utilization"], cuda["enable_sleep_mode"]) == ("float32", 0.4, True)


def test_server_command_line_sets_the_engine_and_listens_on_this_machine() -> None:
    given = _parser().parse_args(["some/model", "--port", "81", "--precision", "fp32", "--batch-size", "7"])
    own = arguments(given)
    assert (given.host, given.port) == ("127.0.0.1", 81)
    assert (own["model"], own["dtype"], own["max_num_seqs"]) == ("some/model", "float32", 7)
    assert own["logprobs_mode"] == "processed_logprobs" and not own["enable_sleep_mode"]
    assert (Path(arguments(_parser().parse_args(["tiny"]))["model"]) / "config.json").is_file()


def test_busy_port_ends_the_server_with_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["tiny", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capfd.readouterr().err


class ScriptedServer(BaseHTTPRequestHandler):
    """A server that takes any weights, names the right checksum, and answers prompts with `completions`."""

    completions: ClassVar[Any] = None
    weights: ClassVar[str] = ""
    positions: ClassVar[Any] = 64
    raw: ClassVar[list[bytes]] = []
    """Parts of an answer that is sent as it is, with a pause after each; empty for an ordinary answer."""

    def do_GET(self) -> None:
        self._answer({"dtype": "torch.float32", "positions": ScriptedServer.positions})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        own = {"checksum": ScriptedServer.weights, "weights": ScriptedServer.weights}
        self._answer({**own, "completions": ScriptedServer.completions})

    def _answer(self, content: Any) -> None:
        if ScriptedServer.raw:
            with suppress(OSError):
                for part in ScriptedServer.raw:
                    self.wfile.write(part)
                    time.sleep(0.05)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def scripted(policy: Policy) -> Iterator[VLLMServerGenerator]:
    """Generator with a scripted server, for completions of at most three tokens."""
    ScriptedServer.weights = checksum(policy.model)
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedServer) as listening:
        threading.Thread(target=listening.serve_forever, args=(POLL_S,), daemon=True).start()
        vllm = VLLMConfig(url=f"http://127.0.0.1:{listening.server_port}")
        config = GeneratorConfig(max_new_tokens=3, vllm=vllm)
        yield VLLMServerGenerator(policy.model, config, eos_id=EOS, dtype=torch.float32, world=World())
        ScriptedServer.raw, ScriptedServer.positions = [], 64
        listening.shutdown()


GOOD = [[1, 2], [-0.5, 0.0]]


@pytest.mark.parametrize(
    ("completions", "expected"),
    [
        (None, "expected completions of 1 prompts"),
        ([], "expected completions of 1 prompts"),
        ([[GOOD, GOOD], [GOOD, GOOD]], "expected completions of 1 prompts"),
        ([[GOOD]], "expected 2 completions"),
        ([GOOD], "token ids below"),
        ([[GOOD, [[], []]]], "token ids below"),
        ([[GOOD, [[1, 2], [-0.5]]]], "token ids below"),
        ([[GOOD, [[1, 2, 3, 4], [-0.5] * 4]]], "expected 1 to 3 token ids"),
        ([[GOOD, [[-1], [-0.5]]]], "token ids below"),
        ([[GOOD, [[10**9], [-0.5]]]], "token ids below"),
        ([[GOOD, [[True], [-0.5]]]], "token ids below"),
        ([[GOOD, [["1"], [-0.5]]]], "token ids below"),
        ([[GOOD, [[1], [0.5]]]], "token ids below"),
        ([[GOOD, [[1], [None]]]], "token ids below"),
        ([[GOOD, [[1], [math.nan]]]], "token ids below"),
        ([[GOOD, [[1], [-math.inf]]]], "token ids below"),
    ],
)
def test_impossible_completions_of_a_server_are_an_error(
    scripted: VLLMServerGenerator, completions: Any, expected: str
) -> None:
    ScriptedServer.completions = completions
    with pytest.raises(GeneratorError, match=expected):
        scripted.generate([(1, 2)], group_size=2, temperature=1.0, seeds=[0])


REFUSED = b"HTTP/1.0 500 Oops\r\nContent-Length: 99\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([b"HTTP/1.0 200 OK\r\n\r\n", *(100 * [b" "])], "generate, got: timed out"),
        ([REFUSED + b"out of \x1b]52;c;cHduZWQ=\x07memory\n\nnow"], "generate, got 500: out of \ufffd.*memory now"),
        ([REFUSED, *(100 * [b" "])], "generate, got 500: TimeoutError while its reason was read"),
        ([b"\x1b]52;c;cHduZWQ=\x07\r\n\r\n"], "generate, got: \ufffd.*52;c"),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{"], "generate, got: Expecting property name"),
        ([b"HTTP/1.0 200 OK\r\n\r\n" + 5000 * b"1"], "generate, got: Exceeds the limit"),
        ([b"HTTP/1.0 200 OK\r\n\r\n" + 100_000 * b"["], "generate, got: "),
        ([b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"], "generate, got 302: "),
    ],
    ids=["drips", "control", "refusal drips", "no http", "cut off", "integer", "nested", "redirect"],
)
def test_unreadable_answer_of_a_server_is_an_error_of_one_line(
    scripted: VLLMServerGenerator, raw: list[bytes], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "TIMEOUT_S", 0.3)
    ScriptedServer.raw = raw
    started = time.monotonic()
    with pytest.raises(GeneratorError, match=expected) as failure:
        scripted.generate([(1, 2)], group_size=2, temperature=1.0, seeds=[0])
    assert str(failure.value).isprintable() and time.monotonic() - started < 3


@pytest.mark.parametrize("positions", [0, -1, True, None, "64", 64.0])
def test_server_without_positions_is_refused(scripted: VLLMServerGenerator, positions: Any) -> None:
    ScriptedServer.positions = positions
    with pytest.raises(GeneratorError, match=r"expected a server with torch\.float32, got"):
        scripted._check_server()


@pytest.mark.parametrize("logprobs", [None, [], [{}], [{5: SimpleNamespace(logprob=-1.0)}]])
def test_answer_of_an_engine_without_logprobs_is_an_error(logprobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    output = SimpleNamespace(token_ids=[3], logprobs=logprobs)
    engine = Engine.__new__(Engine)
    engine.llm = SimpleNamespace(generate=lambda *_, **__: [SimpleNamespace(outputs=[output])])
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    with pytest.raises(GeneratorError, match="vllm: expected an answer of the engine, got"):
        engine.sample([(1,)], [{"n": 1}])


def test_completions_of_a_server_count_only_with_the_trainers_weights(scripted: VLLMServerGenerator) -> None:
    ScriptedServer.completions = [[[[1, 2, EOS], [-0.5, 0.0, -1.0]], GOOD]]
    [[ended, cut]] = scripted.generate([(1, 2)], group_size=2, temperature=1.0, seeds=[0])
    assert (ended.tokens, ended.logprobs, ended.finished) == ((1, 2, EOS), (-0.5, 0.0, -1.0), True)
    assert (cut.tokens, cut.logprobs, cut.finished) == ((1, 2), (-0.5, 0.0), False)
    ScriptedServer.weights = "another"
    with pytest.raises(GeneratorError, match=r"expected the trainer's weights \w+, the sampler has another"):
        scripted.generate([(1, 2)], group_size=2, temperature=1.0, seeds=[0])


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
