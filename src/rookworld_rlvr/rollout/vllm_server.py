"""A client of a vLLM server that `vllm_serve` started: the trainer's weights go there, completions come back.

Weights are handed over in a folder that both can read. Each hand-over has a token. The server is asked for its token
before and after every batch, so completions of a server that was restarted, or taken over by another trainer, are
never trained on. A server that is gone is asked again `retries` times; after that GeneratorError is raised.
"""

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from ..model.lora import plain_parameters
from .generator import GeneratorBaseConfig, GeneratorError, SampledCompletion, require_seeds
from .vllm_config import LOGPROBS_MODE, SERVED_NAME
from .vllm_sampling import Held, Sampling, cut, expected_weights, require_held, room_for, samplings
from .vllm_worker import WEIGHTS_FILE

START = "python -m rookworld_rlvr.rollout.vllm_serve"
MOST_REQUESTS = 64
Answer = TypeVar("Answer")


class ServerGoneError(GeneratorError):
    """The server did not answer, or failed: worth another try."""


class VLLMServer:
    """The calls that are made to the server, each tried once."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        # Addressed directly, whatever proxies there are.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(self._url + path))

    def post(self, path: str, body: Any = None) -> Any:
        data = json.dumps({} if body is None else body).encode()
        return self._ask(urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}))

    def call(self, method: str, **arguments: Any) -> Any:
        """A method of the worker extension; its answer."""
        return self.post("/collective_rpc", {"method": method, "kwargs": arguments})["results"][0]

    def _ask(self, request: urllib.request.Request) -> Any:
        """Raises ServerGoneError where there is no answer or the server failed, GeneratorError where it refuses."""
        what = f"{request.get_method()} {request.full_url}"
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            kind = ServerGoneError if error.code >= 500 else GeneratorError
            raise kind(f"vllm_server: expected an answer to {what}, got {error.code}: {_reason(error)}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise ServerGoneError(f"vllm_server: expected an answer to {what}, got: {reason}") from error


class VLLMServerGenerator:
    """Samples with a vLLM server."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: GeneratorBaseConfig,
        url: str,
        *,
        eos_id: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Look at the server and hand the weights over. Raises GeneratorError."""
        self.url = url
        self._config, self._eos_id, self._dtype = config, eos_id, dtype
        self._server = VLLMServer(url, config.vllm.timeout_s)
        self._folder = TemporaryDirectory(prefix="rookworld-weights-", dir=config.vllm.sync_folder or None)
        self._trainer = uuid.uuid4().hex[:8]
        self._syncs = 0
        self._expected = Held("", "", ())
        self._positions = self._checked_positions()
        self.sync(model)

    def sync(self, model: PreTrainedModel) -> None:
        """See `Generator.sync`. Raises GeneratorError where the server then holds anything else."""
        if self._syncs:
            self._retried(self._require_ours)
        self._expected = expected_weights(model, self._dtype)
        self._write(model)
        self._syncs += 1
        self._retried(self._hand_over)

    def weights_checksum(self) -> str:
        """The trainer's checksum at the last `sync` if the server has these weights in its own type."""
        return self._expected.named_by(self._retried(self._held))

    def generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        group_size: int,
        temperature: float,
        seeds: Sequence[int] = (),
        top_k: int = 0,
    ) -> list[list[SampledCompletion]]:
        """See `Generator.generate`. Raises PromptLengthError if a prompt leaves the model no room to answer."""
        limits = [room_for(prompt, self._positions, self._config.max_new_tokens) for prompt in prompts]
        require_seeds(seeds, prompts, temperature)
        wanted = samplings(limits, seeds, group_size=group_size, temperature=temperature, top_k=top_k)
        return self._retried(lambda: self._batch(prompts, wanted))

    def _batch(self, prompts: Sequence[tuple[int, ...]], wanted: Sequence[Sampling]) -> list[list[SampledCompletion]]:
        """All groups, of the trainer's weights from the first token to the last."""
        if self._require_ours() != self._token:
            # Restarted since, or stopped while it loaded: what it should have is still in the folder.
            self._hand_over()
        group_size = wanted[0].group_size if wanted else 1
        workers = min(MOST_REQUESTS, max(1, self._config.batch_size // group_size))
        with ThreadPoolExecutor(workers) as pool:
            groups = list(pool.map(self._group, prompts, wanted))
        if self._require_ours() != self._token:
            raise ServerGoneError("vllm_server: expected one server for the whole batch, it was restarted meanwhile")
        return groups

    def _group(self, prompt: tuple[int, ...], wanted: Sampling) -> list[SampledCompletion]:
        body = {
            "model": SERVED_NAME,
            "prompt": list(prompt),
            "n": wanted.group_size,
            "temperature": wanted.temperature,
            "max_tokens": wanted.max_tokens,
            "seed": wanted.seed,
            "top_k": wanted.top_k or -1,
            "stop_token_ids": [self._eos_id],
            "logprobs": 0,
            "return_token_ids": True,
        }
        choices = sorted(self._server.post("/v1/completions", body)["choices"], key=lambda choice: choice["index"])
        return [cut(choice["token_ids"], choice["logprobs"]["token_logprobs"], self._eos_id) for choice in choices]

    @property
    def _token(self) -> str:
        return f"{self._trainer}:{self._syncs}"

    def _require_ours(self) -> str:
        """The token of what the server holds: one of ours, or empty where it was restarted. Raises GeneratorError."""
        token = str(self._server.call("rookworld_state")["token"])
        if token and not token.startswith(f"{self._trainer}:"):
            raise GeneratorError(f"vllm_server: expected the weights {self._token}, got {token}: another trainer's")
        return token

    def _hand_over(self) -> None:
        self._server.call("rookworld_load_folder", folder=self._folder.name, token=self._token)
        if not self._server.post("/reset_prefix_cache")["success"]:
            raise ServerGoneError("vllm_server: expected the prefix cache to be emptied, got it in use")
        require_held(self._expected, self._held())

    def _held(self) -> str:
        return str(self._server.call("rookworld_checksum", names=self._expected.names))

    def _write(self, model: PreTrainedModel) -> None:
        """By a rename: a server that is restarted meanwhile reads the old file or the new one."""
        named = {name: parameter.contiguous() for name, parameter in plain_parameters(model)}
        final = Path(self._folder.name) / WEIGHTS_FILE
        writing = final.with_suffix(".writing")
        save_file(named, writing)
        writing.replace(final)

    def _checked_positions(self) -> int:
        """How many positions the server's model has. Raises GeneratorError for a server of another kind."""
        try:
            [served] = self._server.get("/v1/models")["data"]
            state = self._server.call("rookworld_state")
        except GeneratorError as error:
            raise GeneratorError(f"{error}; start one: {START} MODEL") from error
        wanted = {"dtype": str(self._dtype), "logprobs_mode": LOGPROBS_MODE}
        got = {name: state[name] for name in wanted}
        if got != wanted or served["id"] != SERVED_NAME:
            raise GeneratorError(f"vllm_server: expected a server with {wanted}, got {got}; start one: {START} MODEL")
        return int(served["max_model_len"])

    def _retried(self, action: Callable[[], Answer]) -> Answer:
        """The action, again after 1, 2, 4, … seconds where the server is gone. Raises GeneratorError."""
        for attempt in range(self._config.vllm.retries):
            try:
                return action()
            except ServerGoneError:
                time.sleep(2**attempt)
        return action()


def _reason(error: urllib.error.HTTPError) -> str:
    """What the server says, in one line."""
    text = error.read().decode(errors="replace")
    try:
        return " ".join(str(json.loads(text)["error"]["message"]).split())
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:200]
