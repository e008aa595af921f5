"""The reference generator: transformers' `generate`, with the log-prob of every sampled token.

A logits processor samples each token with the completion's own number, and masks all others. So
the same seeds give the same tokens as those of `static_generator`, apart from rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..model.batch import left_padded
from .generator import PromptLengthError, SampledCompletion, TrainerModelGenerator, until_end
from .sampling import inverse_cdf, top_k_logprobs


class _Sampler(LogitsProcessor):
    """Samples each token at the temperature, from the `top_k` likeliest alone if that is not 0, and keeps its log-prob.

    Where a logit is NaN or +inf the log-prob is recorded as NaN and a token is sampled all the same: an exception there
    would end the process, on CUDA with its context, before anyone could say where the NaN came from.
    """

    def __init__(self, uniform_BT: Tensor, temperature: float, top_k: int) -> None:
        self._uniform_BT, self._temperature, self._top_k = uniform_BT, temperature, top_k
        self._logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logprobs_BV = torch.log_softmax(scores.float() / (self._temperature or 1.0), dim=-1)
        if self._temperature:
            sampled_B = inverse_cdf(top_k_logprobs(logprobs_BV, self._top_k), self._uniform_BT[:, len(self._logprobs)])
        else:
            sampled_B = logprobs_BV.argmax(-1)
        self._logprobs.append(logprobs_BV.gather(1, sampled_B.unsqueeze(1)).squeeze(1))
        return torch.full_like(scores, -torch.inf).scatter(1, sampled_B.unsqueeze(1), 0.0)

    def logprobs_BT(self) -> Tensor:
        """Log-probs of all tokens sampled; of no meaning behind a completion's end."""
        return torch.stack(self._logprobs, dim=1)


@contextmanager
def _no_defaults_of_its_own(model: PreTrainedModel) -> Iterator[None]:
    """Without the model's own generation settings: transformers fills fields that are unset from them.

    Its min_p, typical_p or repetition_penalty would change what is sampled, and no log-prob would show it.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class HFGenerator(TrainerModelGenerator):
    """See `Generator`."""

    @torch.no_grad()
    def _sample(
        self, prompts: Sequence[tuple[int, ...]], uniform_PGT: Tensor, temperature: float, top_k: int
    ) -> list[SampledCompletion]:
        device, group_size = uniform_PGT.device, uniform_PGT.shape[1]
        tokens_BT, attention_BT = left_padded(prompts, self._pad_id, device)
        sampler = _Sampler(uniform_PGT.flatten(0, 1), temperature, top_k)
        # A model has it where its class can generate; its declared type depends on options that are not used here.
        generate: Any = self._model.generate
        with self._autocast(), _no_defaults_of_its_own(self._model):
            sequences = generate(
                input_ids=tokens_BT.repeat_interleave(group_size, 0),
                attention_mask=attention_BT.repeat_interleave(group_size, 0),
                generation_config=self._generation(tokens_BT.shape[1]),
                logits_processor=LogitsProcessorList([sampler]),
                # The ranks sample by themselves, also of a model in shards, which is whole then.
                synced_gpus=False,
            )
        sampled = sequences[:, tokens_BT.shape[1] :].cpu().tolist()
        logprobs = sampler.logprobs_BT().cpu().tolist()
        return [until_end(*row, self._eos_id) for row in zip(sampled, logprobs, strict=True)]

    def _generation(self, prompt_length: int) -> GenerationConfig:
        positions = getattr(self._model.config, "max_position_embeddings", None) or prompt_length + 10**9
        room = positions - prompt_length
        if room < 1:
            raise PromptLengthError(positions, prompt_length)
        return GenerationConfig(
            # Each token has been sampled by then.
            do_sample=False,
            max_new_tokens=min(self._config.max_new_tokens, room),
            eos_token_id=self._eos_id,
            pad_token_id=self._pad_id,
        )
