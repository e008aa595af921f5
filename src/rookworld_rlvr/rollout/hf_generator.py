"""The reference generator: transformers' `generate`, with the log-prob of every sampled token.

A logits processor samples each token with the completion's own uniform number and masks all other tokens. So equal
seeds give the same tokens as in `native_generator`, apart from rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..model.batch import MOST_PADDING, padded
from .generator import Prompts, SampledCompletion, TrainerModelGenerator, room_for, until_end
from .sampling import inverse_cdf, top_k_logprobs


class _Sampler(LogitsProcessor):
    """Logits processor that samples each token at the temperature and records its log-prob.

    If `top_k` is not 0, it samples only from that many most likely tokens. If a logit is NaN or +inf, the log-prob is
    recorded as NaN and a token is sampled anyway: an exception would end the process, on CUDA with its context, before
    the origin of the NaN could be reported.
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
        """Return the log-probs of all sampled tokens; those after a completion's end have no meaning."""
        return torch.stack(self._logprobs, dim=1)


@contextmanager
def _without_model_defaults(model: PreTrainedModel) -> Iterator[None]:
    """Remove the model's own generation settings within the context: transformers fills unset fields from them.

    Its min_p, typical_p or repetition_penalty would change which tokens are sampled, and no log-prob would show it.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class HFGenerator(TrainerModelGenerator):
    """Generator with transformers' `generate`, see `Generator`."""

    def _most_padding(self, prompts: Prompts) -> int:
        """Return 0 if a prompt limits its completions: then they must not be limited by a longer prompt's pads."""
        fits = max(map(len, prompts), default=0) + self._config.max_new_tokens <= self._positions
        return MOST_PADDING if fits else 0

    @torch.no_grad()
    def _sample(self, prompts: Prompts, uniform_PGT: Tensor, temperature: float, top_k: int) -> list[SampledCompletion]:
        device, group_size = uniform_PGT.device, uniform_PGT.shape[1]
        tokens_BT, attention_BT = padded(prompts, self._pad_id, device, "left")
        sampler = _Sampler(uniform_PGT.flatten(0, 1), temperature, top_k)
        # Only some model classes have `generate`, and its declared type depends on options that are not used here.
        generate: Any = self._model.generate
        with self._autocast(), _without_model_defaults(self._model):
            sequences = generate(
                input_ids=tokens_BT.repeat_interleave(group_size, 0),
                attention_mask=attention_BT.repeat_interleave(group_size, 0),
                generation_config=self._generation(tokens_BT.shape[1]),
                logits_processor=LogitsProcessorList([sampler]),
                # Each rank samples independently. A sharded model has all its weights gathered here.
                synced_gpus=False,
            )
        sampled = sequences[:, tokens_BT.shape[1] :].cpu().tolist()
        logprobs = sampler.logprobs_BT().cpu().tolist()
        return [until_end(*row, self._eos_id) for row in zip(sampled, logprobs, strict=True)]

    def _generation(self, prompt_length: int) -> GenerationConfig:
        return GenerationConfig(
            # `_Sampler` has already chosen each token.
            do_sample=False,
            max_new_tokens=room_for(prompt_length, self._positions, self._config.max_new_tokens),
            eos_token_id=self._eos_id,
            pad_token_id=self._pad_id,
        )
