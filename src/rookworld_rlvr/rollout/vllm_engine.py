"""vLLM's engine, and the generator that has one in the trainer's process. vllm is imported only to start an engine.

The engine holds a copy of the weights. A sync passes them as tensors, empties the prefix cache, and reads back the
weights that the kernels use. Weights other than the trainer's are refused.

A process has one engine. Starting another one ends the one before it, which the members of a sweep need.
"""

import copy
import importlib.util
import os
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.device import is_accelerator
from .generator import BATCH_SIZE, Completions, GeneratorBaseConfig, GeneratorError, Prompts, VLLMBase, until_end
from .vllm_config import ENVIRONMENT, engine_arguments
from .vllm_weights import expected_weights, require_weights, sent_weights

# Arguments of an engine in a process that torchrun started, which already has a process group.
MULTI_RANK_ARGUMENTS = {"distributed_executor_backend": "external_launcher"}
Sampled = tuple[list[int], list[float]]
"""Token ids of a completion, and the log-prob of each."""
# The engine of this process, if there is one.
_running: list[Any] = []


def installed() -> bool:
    """Return True if vllm is installed in this environment; imports nothing."""
    return importlib.util.find_spec("vllm") is not None


class Engine:
    """vLLM's engine in this process. Its exceptions become GeneratorErrors."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Start the engine, which takes seconds to minutes. Raises GeneratorError."""
        self.llm = _start(arguments)
        model = self.llm.llm_engine.model_config
        self.dtype, self.positions = model.dtype, int(model.max_model_len)

    def load(self, named: dict[str, Tensor]) -> None:
        """Load weights given by transformers' names, and empty the prefix cache. Raises GeneratorError."""
        with _as_generator_error():
            self.llm.collective_rpc("rookworld_load", args=(named,))
            if not self.llm.reset_prefix_cache():
                raise GeneratorError("vllm: expected the prefix cache to be emptied, got it in use")

    def checksum(self, names: Sequence[str]) -> str:
        """Return the checksum of these weights, read back from the kernels. Raises GeneratorError."""
        with _as_generator_error():
            [held] = self.llm.collective_rpc("rookworld_checksum", args=(names,))
        return str(held)

    def sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> list[list[Sampled]]:
        """Return the completions of each prompt, sampled with its vLLM `parameters`. Raises GeneratorError."""
        from vllm import SamplingParams

        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        wanted = [SamplingParams(**own, detokenize=False) for own in parameters]
        with torch.random.fork_rng(), _as_generator_error():
            answers = self.llm.generate(given, wanted, use_tqdm=False)
            return [[_sampled(output) for output in answer.outputs] for answer in answers]


def _sampled(output: Any) -> Sampled:
    tokens = list(output.token_ids)
    return tokens, [row[token].logprob for token, row in zip(tokens, output.logprobs, strict=True)]


class VLLMGenerator(VLLMBase):
    """Generator with vLLM in this process."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: GeneratorBaseConfig,
        *,
        eos_id: int,
        dtype: torch.dtype = torch.float32,
        ranks: int = 1,
    ) -> None:
        """Start the engine and synchronise the weights. Raises GeneratorError.

        If several `ranks` train together, each has an engine of its own, and all must call this together.
        """
        self._config, self._eos_id, self._dtype = config, eos_id, dtype
        accelerated = is_accelerator(next(model.parameters()).device)
        self._sleeps = accelerated
        self._asleep = False
        with TemporaryDirectory(prefix="rookworld-vllm-") as folder:
            # The weights come with `sync`. A model's `save_pretrained` would write only on rank 0.
            described = copy.deepcopy(model.config)
            described.architectures = [type(model).__name__.removeprefix("FSDP")]
            described.save_pretrained(folder)
            arguments = engine_arguments(
                folder,
                config.vllm,
                batch_size=config.batch_size or BATCH_SIZE,
                accelerated=accelerated,
                dtype=dtype,
                sleeps=accelerated,
            )
            self._engine = Engine(arguments | (MULTI_RANK_ARGUMENTS if ranks > 1 else {}))
        self._positions = self._engine.positions
        self.sync(model)

    def sync(self, model: PreTrainedModel) -> None:
        """See `Generator.sync`. Raises GeneratorError if the engine then holds other weights."""
        self._expected = expected_weights(model, self._dtype)
        with self._awake():
            self._engine.load(sent_weights(model))
            require_weights(self._expected, self._engine.checksum(self._expected.names))

    def weights_checksum(self) -> str:
        """Return the trainer's checksum of the last `sync` if the engine holds these weights, otherwise its own."""
        with self._awake():
            return self._expected.checksum_for(self._engine.checksum(self._expected.names))

    def _sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> Completions:
        with self._awake():
            groups = self._engine.sample(prompts, parameters)
        return [[until_end(*sampled, self._eos_id) for sampled in group] for group in groups]

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Wake the engine for the context. Outside it, on CUDA, the device's memory is free for the trainer."""
        if self._asleep:
            self._engine.llm.wake_up()
            self._asleep = False
        try:
            yield
        finally:
            if self._sleeps:
                self._engine.llm.sleep(level=1)
                self._asleep = True


@contextmanager
def _as_generator_error() -> Iterator[None]:
    """Turn an exception of vLLM into a GeneratorError: a fault of the step, for which recovery chooses the action."""
    try:
        yield
    except GeneratorError:
        raise
    except Exception as error:
        raise GeneratorError(f"vllm: expected an answer of the engine, got {type(error).__name__}: {error}") from error


def _start(arguments: dict[str, Any]) -> Any:
    """Start the engine. Random states and `torch.set_num_threads` are put back afterwards. Raises GeneratorError."""
    # A user's own settings take precedence.
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if _running and MULTI_RANK_ARGUMENTS.items() <= arguments.items():
        raise GeneratorError(
            "vllm: expected one engine in the process of a rank, since its end would end the ranks' exchange, got a "
            "second; members of a sweep with processes above 1 can share generator.kind=vllm_server"
        )
    while _running:
        _running.pop().llm_engine.engine_core.shutdown()
    python_state, set_threads = random.getstate(), torch.set_num_threads
    try:
        # torch warns about code of vLLM, which cannot be changed here.
        with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
            from vllm import LLM

            # The weights come with `Engine.load`.
            own = {"load_format": "dummy", "skip_tokenizer_init": True, "disable_log_stats": True, "seed": 0}
            _running.append(LLM(**arguments, **own))
        return _running[0]
    except (ValueError, RuntimeError, NotImplementedError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]) or type(error).__name__
        raise GeneratorError(f"vllm: expected an engine for this model, got: {reason}") from error
    finally:
        random.setstate(python_state)
        torch.set_num_threads = set_threads
