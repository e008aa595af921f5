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
from functools import partial

import torch
from transformers import PreTrainedModel

from .generator import GeneratorBaseConfig, GeneratorError, SampledCompletion, require_seeds
from .vllm_server import VLLMServerGenerator
from .vllm_weights import WeightOwner, WeightSnapshot

# Approximate number of pieces per server into which prompts are divided; a fast server takes more of them.
PIECES = 4


class VLLMServerPool:
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
        self._retries = config.vllm.retries
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

    def generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        group_size: int,
        temperature: float,
        seeds: Sequence[int] = (),
        top_k: int = 0,
    ) -> list[list[SampledCompletion]]:
        """See `Generator.generate`. Raises GeneratorError if every server has failed, also in all retries."""
        require_seeds(seeds, prompts, temperature)
        size = -(-len(prompts) // (PIECES * len(self._servers)))
        pending = deque(range(first, min(first + size, len(prompts))) for first in range(0, len(prompts), size or 1))
        groups: dict[int, list[SampledCompletion]] = {}

        def sample(server: VLLMServerGenerator, piece: range) -> list[list[SampledCompletion]]:
            return server.generate(
                [prompts[i] for i in piece],
                group_size=group_size,
                temperature=temperature,
                seeds=[seeds[i] for i in piece] if temperature else [],
                top_k=top_k,
            )

        serve = partial(_serve, pending, groups, sample)
        attempt = 0
        while pending:
            self._used = self._of_all(serve, self._used)
            if not self._used and attempt < self._retries:
                time.sleep(2**attempt)
                attempt += 1
                self._used = self._of_all(VLLMServerGenerator.load_snapshot, self._servers)
            elif not self._used:
                self._require_one()
        return [groups[i] for i in range(len(prompts))]

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


def _serve(
    pending: deque[range],
    groups: dict[int, list[SampledCompletion]],
    sample: Callable[[VLLMServerGenerator, range], list[list[SampledCompletion]]],
    server: VLLMServerGenerator,
) -> None:
    """Let a server sample pending pieces until none is left. A piece at which it fails becomes pending again."""
    while pending:
        try:
            piece = pending.popleft()
        except IndexError:
            return
        try:
            groups.update(zip(piece, sample(server, piece), strict=True))
        except GeneratorError:
            pending.append(piece)
            raise
