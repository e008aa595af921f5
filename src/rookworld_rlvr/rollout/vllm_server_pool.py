"""Several vLLM servers as one generator: prompts go to whichever server is free, weights to all.

A server that fails is left out, and its prompts go to the others. It is used again only after a complete weight sync,
at the next step or once no server is left. Token and checksum are checked for each server, as in `vllm_server`.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from .generator import Completions, GeneratorBaseConfig, GeneratorError, Prompts, VLLMBase
from .vllm_server import VLLMServerGenerator
from .vllm_weights import WeightOwner, WeightSnapshot

# Approximate number of pieces per server into which prompts are divided; a fast server takes more of them.
PIECES = 4


class VLLMServerPool(VLLMBase):
    """Generator with several vLLM servers, which must all be running at the start."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: GeneratorBaseConfig,
        *,
        eos_id: int,
        dtype: torch.dtype = torch.float32,
        owner: WeightOwner | None = None,
    ) -> None:
        """Check the servers and synchronise the weights. Raises GeneratorError."""
        # Without retries: the prompts of a server that is gone go to another one, instead of waiting for it.
        impatient = replace(config, vllm=replace(config.vllm, retries=0))
        self._snapshot = WeightSnapshot(owner or WeightOwner(), dtype, config.vllm.sync_folder)
        self._servers = [
            VLLMServerGenerator(model, impatient, url, eos_id=eos_id, dtype=dtype, snapshot=self._snapshot)
            for url in config.vllm.urls
        ]
        self._config, self._eos_id, self._retries = config, eos_id, config.vllm.retries
        self._positions = min(server._positions for server in self._servers)
        self._snapshot.keep(model)
        for server in self._servers:
            server.load_snapshot()
        self._used = list(self._servers)

    def sync(self, model: PreTrainedModel) -> None:
        """See `Generator.sync`. Raises GeneratorError if no server takes the weights."""
        self._snapshot.keep(model)
        self._used = self._of_all(VLLMServerGenerator.load_snapshot, self._servers)
        self._require_one()

    def weights_checksum(self) -> str:
        """Return the checksum that all servers in use have, or the different ones separated by spaces."""
        return " ".join(dict.fromkeys(server.weights_checksum() for server in self._used))

    def _sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> Completions:
        """See `VLLMBase._sample`. Raises GeneratorError if every server has failed, also in all retries."""
        size = max(1, -(-len(prompts) // (PIECES * len(self._servers))))
        pending = deque(slice(first, first + size) for first in range(0, len(prompts), size))
        groups: Completions = [[] for _ in prompts]

        def serve(server: VLLMServerGenerator) -> None:
            """Let a server sample pending pieces until none is left. One at which it fails becomes pending again."""
            while pending:
                try:
                    piece = pending.popleft()
                except IndexError:
                    return
                try:
                    groups[piece] = server._sample(prompts[piece], parameters[piece])
                except GeneratorError:
                    pending.append(piece)
                    raise

        attempt = 0
        while pending:
            self._used = self._of_all(serve, self._used)
            if not self._used and attempt < self._retries:
                time.sleep(2**attempt)
                attempt += 1
                self._used = self._of_all(VLLMServerGenerator.load_snapshot, self._servers)
            elif not self._used:
                self._require_one()
        return groups

    def _of_all(
        self, action: Callable[[VLLMServerGenerator], None], servers: Sequence[VLLMServerGenerator]
    ) -> list[VLLMServerGenerator]:
        """Run the action on all servers at once. Return those that did not fail and report the others."""

        def tried(server: VLLMServerGenerator) -> bool:
            try:
                action(server)
            except GeneratorError as error:
                message = f"{server.url} is not used until it has loaded new weights: {error}"
                print(f"rookworld: {message}", file=sys.stderr, flush=True)
                return False
            return True

        if not servers:
            return []
        with ThreadPoolExecutor(len(servers)) as pool:
            return [server for server, good in zip(servers, pool.map(tried, servers), strict=True) if good]

    def _require_one(self) -> None:
        if not self._used:
            urls = ", ".join(server.url for server in self._servers)
            raise GeneratorError(f"vllm_server: expected one of the servers to answer, none does: {urls}")
