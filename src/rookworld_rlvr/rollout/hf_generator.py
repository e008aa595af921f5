"""The reference generator: transformers' `generate`, with the log-prob of every sampled token."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..model.padding import left_padded
from .generator import PromptLengthError, SampledCompletion
from .own_model import OwnModelGenerator, likeliest


class _LogprobRecorder(LogitsProcessor):
    """Scales logits by the temperature, keeps the log-prob of each token once it is drawn, and cuts to the likeliest.

    A processor sees the logits before the draw, so a token's log-prob is read at the next call, and the
    last one in `finish`: one (B, V) tensor is held instead of one a step.

    Where a logit is NaN or +inf the log-prob is recorded as NaN and a draw is made all the same: a draw from
    NaN would end the process, on CUDA with its context, before anyone could say where the NaN came from.
    """

    def __init__(self, temperature: float, top_k: int) -> None:
        self._temperature, self._top_k = temperature, top_k
        self._pending: Tensor | None = None
        self._drawn: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._read(input_ids[:, -1])
        scaled = scores.float() / (self._temperature or 1.0)
        self._pending = torch.log_softmax(scaled, dim=-1)
        return likeliest(scaled.nan_to_num(), self._top_k)

    def finish(self, sequences: Tensor) -> Tensor:
        """Log-probs (B, T) of all tokens drawn."""
        self._read(sequences[:, -1])
        return torch.stack(self._drawn, dim=1)

    def _read(self, last_tokens_B: Tensor) -> None:
        if self._pending is not None:
            self._drawn.append(self._pending.gather(1, last_tokens_B.unsqueeze(1)).squeeze(1))


@contextmanager
def _no_defaults_of_its_own(model: PreTrainedModel) -> Iterator[None]:
    """Without the model's own generation settings: transformers fills fields that are unset from them.

    Its min_p, typical_p or repetition_penalty would change what is drawn, and no log-prob would show it.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class HFGenerator(OwnModelGenerator):
    """See `Generator`."""

    @torch.no_grad()
    def _sample(
        self, prompts: Sequence[tuple[int, ...]], group_size: int, temperature: float, top_k: int
    ) -> list[SampledCompletion]:
        device = next(self._model.parameters()).device
        tokens_BT, attention_BT = left_padded(prompts, self._pad_id, device)
        recorder = _LogprobRecorder(temperature, top_k)
        # A model has it where its class can generate; its declared type depends on options that are not used here.
        generate: Any = self._model.generate
        with self._autocast(), _no_defaults_of_its_own(self._model):
            sequences = generate(
                input_ids=tokens_BT,
                attention_mask=attention_BT,
                generation_config=self._generation(tokens_BT.shape[1], group_size, temperature),
                logits_processor=LogitsProcessorList([recorder]),
            )
        drawn = sequences[:, tokens_BT.shape[1] :].cpu().tolist()
        logprobs = recorder.finish(sequences).cpu().tolist()
        return [self._cut(*row) for row in zip(drawn, logprobs, strict=True)]

    def _generation(self, prompt_length: int, group_size: int, temperature: float) -> GenerationConfig:
        positions = getattr(self._model.config, "max_position_embeddings", None) or prompt_length + 10**9
        room = positions - prompt_length
        if room < 1:
            raise PromptLengthError(positions, prompt_length)
        return GenerationConfig(
            do_sample=temperature > 0,
            # The recorder scales and cuts, so that what is recorded is what is drawn from.
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=group_size,
            max_new_tokens=min(self._config.max_new_tokens, room),
            eos_token_id=self._eos_id,
            pad_token_id=self._pad_id,
        )

    def _cut(self, tokens: list[int], logprobs: list[float]) -> SampledCompletion:
        finished = self._eos_id in tokens
        length = tokens.index(self._eos_id) + 1 if finished else len(tokens)
        return SampledCompletion(tuple(tokens[:length]), tuple(logprobs[:length]), finished)
