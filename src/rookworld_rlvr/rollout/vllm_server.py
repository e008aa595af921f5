"""A generator that samples with a vLLM server: it sends the trainer's weights and receives completions.

Each weight sync has a token. The server reports its token before and after every batch, so completions of a server
that was restarted, or taken over by another trainer, are never trained on. If the server is gone, a request is
repeated `retries` times; after that GeneratorError is raised.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from ..model.world import World
from .generator import (
    Completions,
    Generator,
    GeneratorBaseConfig,
    GeneratorError,
    Prompts,
    SampledCompletion,
    VLLMBase,
    until_end,
)
from .vllm_client import ServerGoneError, VLLMServer
from .vllm_config import LOGPROBS_MODE, SERVED_NAME
from .vllm_weights import WeightOwner, WeightSnapshot, require_weights

START = "python -m rookworld_rlvr.rollout.vllm_serve"
MOST_REQUESTS = 64
Answer = TypeVar("Answer")


class VLLMServerGenerator(VLLMBase):
    """Generator with a vLLM server."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: GeneratorBaseConfig,
        url: str,
        *,
        eos_id: int,
        dtype: torch.dtype = torch.float32,
        owner: WeightOwner | None = None,
        snapshot: WeightSnapshot | None = None,
    ) -> None:
        """Check the server and synchronise the weights, unless a `snapshot` for several servers is given.

        Raises GeneratorError.
        """
        self.url = url
        self._config, self._eos_id, self._dtype = config, eos_id, dtype
        self._server = VLLMServer(url, config.vllm.timeout_s)
        self._snapshot = snapshot or WeightSnapshot(owner or WeightOwner(), dtype, config.vllm.sync_folder)
        self._positions = self._check_server()
        self._loaded = False
        if snapshot is None:
            self.sync(model)

    def sync(self, model: PreTrainedModel) -> None:
        """See `Generator.sync`. Raises GeneratorError if the server then holds other weights."""
        self._snapshot.keep(model)
        self.load_snapshot()

    def load_snapshot(self) -> None:
        """Make the server load the snapshot's weights; only rank 0 does so. Raises GeneratorError."""
        if not self._snapshot.owner.syncs_weights:
            return
        if self._loaded and self._with_retries(self._require_ours) == self._snapshot.token:
            return
        self._with_retries(self._sync_weights)
        self._loaded = True

    def weights_checksum(self) -> str:
        """Return the trainer's checksum of the last `sync` if the server holds these weights, otherwise its own."""
        return self._snapshot.expected.checksum_for(self._with_retries(self._held_checksum))

    def _sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> Completions:
        return self._with_retries(lambda: self._batch(prompts, parameters))

    def _batch(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> Completions:
        """Return all groups, sampled from the trainer's weights from the first token to the last."""
        if self._require_ours() != self._snapshot.token:
            # The server was restarted, or stopped while it loaded weights: send the kept weights again.
            self._sync_weights()
        group_size = parameters[0]["n"] if parameters else 1
        workers = min(MOST_REQUESTS, max(1, self._config.batch_size // group_size))
        with ThreadPoolExecutor(workers) as pool:
            groups = list(pool.map(self._group, prompts, parameters))
        if self._require_ours() != self._snapshot.token:
            raise ServerGoneError("vllm_server: expected one server process for the whole batch, got a restarted one")
        return groups

    def _group(self, prompt: tuple[int, ...], parameters: dict[str, Any]) -> list[SampledCompletion]:
        body = {"model": SERVED_NAME, "prompt": list(prompt), "return_token_ids": True, **parameters}
        choices = sorted(self._server.post("/v1/completions", body)["choices"], key=lambda choice: choice["index"])
        rows = [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in choices]
        return [until_end(tokens, logprobs, self._eos_id) for tokens, logprobs in rows]

    def _require_ours(self) -> str:
        """Return the server's token, empty after a restart. Raises GeneratorError if it is another trainer's."""
        token = str(self._server.call("rookworld_state")["token"])
        if token and not token.startswith(f"{self._snapshot.owner.name}:"):
            wanted = self._snapshot.token
            raise GeneratorError(f"vllm_server: expected the weights {wanted}, got {token}: another trainer's")
        return token

    def _sync_weights(self) -> None:
        """Let the server load the kept weights, check that it has them, and confirm that to it. Raises GeneratorError.

        A server without this confirmation gets the weights again before anyone samples from it.
        """
        if not self._snapshot.owner.syncs_weights:
            raise ServerGoneError(f"vllm_server: expected {self.url} to have {self._snapshot.token}, of rank 0")
        folder = self._snapshot.folder
        unread = self._server.call("rookworld_load_folder", folder=folder, token=self._snapshot.token)
        if unread:
            # A server that read the folder before may do so again; one that never did has the wrong folder.
            kind = ServerGoneError if self._loaded else GeneratorError
            raise kind(
                f"generator.vllm.sync_folder: expected a folder that {self.url} can read under the same path, "
                f"got an error there: {unread}"
            )
        if not self._server.post("/reset_prefix_cache")["success"]:
            raise ServerGoneError("vllm_server: expected the prefix cache to be emptied, got it in use")
        require_weights(self._snapshot.expected, self._held_checksum())
        self._server.call("rookworld_accept", token=self._snapshot.token)

    def _held_checksum(self) -> str:
        return str(self._server.call("rookworld_checksum", names=self._snapshot.expected.names))

    def _check_server(self) -> int:
        """Return the number of positions of the server's model.

        Raises GeneratorError if the server has another dtype, log-probs mode or model name.
        """
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

    def _with_retries(self, action: Callable[[], Answer]) -> Answer:
        """Run the action, again after 1, 2, 4, … seconds if the server is gone. Raises GeneratorError."""
        for attempt in range(self._config.vllm.retries):
            try:
                return action()
            except ServerGoneError:
                time.sleep(2**attempt)
        return action()


class RankGenerator:
    """Generator of one of several ranks that sample from the same servers. No rank samples before rank 0 has
    synchronised the weights."""

    def __init__(self, ours: Generator, world: World) -> None:
        self._ours, self._world = ours, world

    def sync(self, model: PreTrainedModel) -> None:
        """See `Generator.sync`. All ranks must call this together. Raises GeneratorError on all.

        No server gets new weights before all ranks have the completions that they requested from the old ones.
        """
        self._world.barrier(lambda: None, "the end of sampling")
        self._world.barrier(lambda: self._ours.sync(model), "the servers' weights")

    def weights_checksum(self) -> str:
        """See `Generator.weights_checksum`."""
        return self._ours.weights_checksum()

    def generate(self, prompts: Prompts, **options: Any) -> Completions:
        """See `Generator.generate`."""
        return self._ours.generate(prompts, **options)
