"""A generator that samples with a vLLM server: it sends the trainer's weights and receives completions.

The server must be the one that `vllm_serve` starts. It names the weights of each batch by the checksum that was read
back from its engine. So completions of a server that was restarted, or that another trainer has given its weights, are
never trained on. Nothing is tried again: a server that fails is a fault of the step, and the next step sends it the
weights.
"""

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any

import torch
from safetensors.torch import save
from transformers import PreTrainedModel

from ..model.adapter import named_weights
from ..model.world import World
from .generator import (
    Completions,
    GeneratorBaseConfig,
    GeneratorError,
    Prompts,
    SampledCompletion,
    VLLMBase,
    until_end,
)
from .vllm_weights import expected_weights, require_weights

START = "python -m rookworld_rlvr.rollout.vllm_serve"
# Time limit until an answer begins, and until it has ended. A batch of a large model on a CPU may need minutes.
TIMEOUT_S = 600.0
CHUNK_BYTES = 2**20
# Rounding may make the log-prob of a certain token positive.
LARGEST_LOGPROB = 1e-3
# What each answer of the server contains.
ANSWERS = {
    "/state": {"dtype", "positions"},
    "/load": set[str](),
    "/checksum": {"checksum"},
    "/generate": {"weights", "completions"},
}


class VLLMServerGenerator(VLLMBase):
    """Generator with the vLLM server at `generator.vllm.url`."""

    def __init__(
        self, model: PreTrainedModel, config: GeneratorBaseConfig, *, eos_id: int, dtype: torch.dtype, world: World
    ) -> None:
        """Check the server and synchronise the weights. All ranks of the `world` must call this together.

        Raises GeneratorError.
        """
        self._config, self._eos_id, self._dtype, self._world = config, eos_id, dtype, world
        self._url, self._vocabulary = config.vllm.url.rstrip("/"), int(model.config.vocab_size)
        # Connects directly, even if a proxy is configured.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._positions = world.barrier(self._check_server, "the server")
        self.sync(model)

    def sync(self, model: PreTrainedModel) -> None:
        """See `Generator.sync`. All ranks must call this together; rank 0 sends the weights.

        Raises GeneratorError on all ranks if the server then holds other weights.
        """
        self._expected = expected_weights(model, self._dtype)
        self._world.rank_0_only(lambda: self._send(model), "the server's weights")

    def weights_checksum(self) -> str:
        """Return the trainer's checksum of the last `sync` if the server holds these weights, otherwise its own."""
        return self._expected.checksum_for(self._held_checksum())

    def _send(self, model: PreTrainedModel) -> None:
        named = {name: weight.to(self._dtype).contiguous() for name, weight in named_weights(model)}
        self._ask("/load", save(named))
        require_weights(self._expected, self._held_checksum())

    def _held_checksum(self) -> str:
        return str(self._ask("/checksum", {"names": self._expected.names})["checksum"])

    def _sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> Completions:
        answer = self._ask("/generate", {"prompts": prompts, "parameters": parameters})
        require_weights(self._expected, answer["weights"])
        groups = answer["completions"]
        if not isinstance(groups, list) or len(groups) != len(prompts):
            raise GeneratorError(f"vllm_server: expected completions of {len(prompts)} prompts, got {_short(groups)}")
        return [self._group(group, own) for group, own in zip(groups, parameters, strict=True)]

    def _group(self, group: Any, parameters: dict[str, Any]) -> list[SampledCompletion]:
        """Return the completions of a prompt. Raises GeneratorError if they are not as their parameters demand."""
        if not isinstance(group, list) or len(group) != parameters["n"]:
            raise GeneratorError(f"vllm_server: expected {parameters['n']} completions, got {_short(group)}")
        wrong = [completion for completion in group if not self._is_possible(completion, parameters["max_tokens"])]
        if wrong:
            raise GeneratorError(
                f"vllm_server: expected 1 to {parameters['max_tokens']} token ids below {self._vocabulary} and as many "
                f"log-probs, got {_short(wrong[0])}"
            )
        return [until_end(tokens, logprobs, self._eos_id) for tokens, logprobs in group]

    def _is_possible(self, completion: Any, max_tokens: int) -> bool:
        """Return True for a list of at most `max_tokens` tokens of the vocabulary, and a log-prob of each."""
        match completion:
            case [list(tokens), list(logprobs)]:
                return (
                    0 < len(tokens) == len(logprobs) <= max_tokens
                    and all(type(token) is int and 0 <= token < self._vocabulary for token in tokens)
                    and all(type(value) is float and -math.inf < value < LARGEST_LOGPROB for value in logprobs)
                )
        return False

    def _check_server(self) -> int:
        """Return the number of positions of the server's model.

        Raises GeneratorError if no server answers or its engine computes in another dtype.
        """
        try:
            state = self._ask("/state")
        except GeneratorError as error:
            raise GeneratorError(f"{error}; start one: {START} MODEL") from error
        positions = state["positions"]
        if state["dtype"] != str(self._dtype) or type(positions) is not int or positions < 1:
            raise GeneratorError(f"vllm_server: expected a server with {self._dtype}, got {_short(state)}")
        return positions

    def _ask(self, path: str, body: dict[str, Any] | bytes | None = None) -> dict[str, Any]:
        """Return the server's answer to a GET, or to a POST of the body: bytes, or JSON. Raises GeneratorError."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(self._url + path, data)
        what = f"vllm_server: expected an answer to {request.get_method()} {request.full_url}"
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                content = json.loads(_whole(answer))
        except urllib.error.HTTPError as error:
            raise GeneratorError(f"{what}, got {error.code}: {_reason(error)}") from error
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise GeneratorError(f"{what}, got: {_line(str(reason))}") from error
        if not isinstance(content, dict) or not content.keys() >= ANSWERS[path]:
            raise GeneratorError(f"{what} with {', '.join(sorted(ANSWERS[path]))}, got {_short(content)}")
        return content


def _whole(answer: HTTPResponse | urllib.error.HTTPError) -> bytes:
    """Read an answer. Raises TimeoutError for a server that goes on sending: the limit of a socket is for each read."""
    deadline, parts = time.monotonic() + TIMEOUT_S, list[bytes]()
    while chunk := answer.read1(CHUNK_BYTES):
        parts.append(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


def _reason(error: urllib.error.HTTPError) -> str:
    """Return what a refusal says, or why that cannot be read."""
    try:
        return _line(_whole(error).decode(errors="replace"))
    except (OSError, HTTPException, ValueError) as failure:
        return f"{type(failure).__name__} while its reason was read"


def _line(text: str) -> str:
    """Return the start of a server's text on one line, without characters that a terminal would execute."""
    line = " ".join(text.split())[:300]
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)


def _short(value: Any) -> str:
    return repr(value)[:100]
