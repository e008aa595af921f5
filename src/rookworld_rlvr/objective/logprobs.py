"""Log-prob, entropy and exact KL of each token, without holding the logits of a large batch in memory.

At GPT-2's vocabulary the logits of 64 completions of 128 tokens take 1.6 GB in float32, and their
log-softmax, its exponential and the gradients take as much again each. Here the head is applied to a chunk of
positions at a time and recomputed in backward, so the peak is a handful of (chunk_tokens, V) tensors. A caller
with few logits can turn `recompute` off, which keeps all logits and saves the second pass.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]
"""Hidden states (N, H) → logits (N, V). Must be deterministic: with `recompute` backward calls it a second time."""


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Log-probs and other statistics of given tokens from one forward pass. Every tensor has the tokens' shape."""

    logprobs: Tensor
    """log_softmax(logits / T) at the token; nat, float32, at most 0."""
    entropy: Tensor
    """Entropy of softmax(logits / T) at the token's position; nat, float32, 0 to ln V."""
    ref_logprobs: Tensor | None
    """The reference's log-prob of the token; nat, float32, no gradient; None without a reference."""
    kl_exact: Tensor | None
    """KL(policy‖reference) over the whole vocabulary at the position; nat, float32; None without a
    reference."""

    def split(self, first: int) -> "tuple[TokenStatistics, TokenStatistics]":
        """Return the statistics of the first tokens and those of the others; the tensors must have one dimension."""
        both = [getattr(self, spec.name) for spec in fields(self)]
        parts: list[list[Any]] = [
            [None if values is None else values[places] for values in both]
            for places in (slice(first), slice(first, None))
        ]
        return TokenStatistics(*parts[0]), TokenStatistics(*parts[1])


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """The reference model at the same positions as the policy."""

    hidden: Tensor
    """Its hidden states (..., H). They get no gradient."""
    head: Head
    """Its output layer."""


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """Choices of `token_statistics`. Raises ValueError for a value out of its range."""

    temperature: float = 1.0
    """Temperature at which all log-probs are computed, above 0 and finite."""
    entropy_gradient: bool = False
    """True if the entropy has a gradient."""
    kl_gradient: bool = True
    """True if the exact KL has a gradient."""
    chunk_tokens: int = 1024
    """Number of positions to which the head is applied at a time, at least 1."""
    recompute: bool = True
    """True if a chunk's logits are computed again in backward instead of kept."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature: expected above 0 and finite, got {self.temperature}")
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens: expected at least 1, got {self.chunk_tokens}")


DEFAULT_OPTIONS = StatisticsOptions()


@dataclass(frozen=True, slots=True)
class _Spec:
    """Arguments of `token_statistics` that every chunk shares."""

    head: Head
    reference_head: Head | None
    options: StatisticsOptions


def token_statistics(
    hidden: Tensor,
    tokens: Tensor,
    head: Head,
    *,
    reference: ReferenceStates | None = None,
    options: StatisticsOptions = DEFAULT_OPTIONS,
) -> TokenStatistics:
    """Return the statistics of `tokens` (...) under the policy whose hidden states are `hidden` (..., H).

    `hidden[..., t]` is the state that predicts `tokens[..., t]`: the caller does the shift. Token ids must lie
    in 0 … V-1, also for padding. The leading shape is arbitrary and kept; no tokens give empty tensors.

    The reference is another model at the same positions and the same temperature. It gets no gradient. A logit of
    -inf excludes a token, which then adds nothing to entropy or KL. If only the reference excludes a token, the KL is
    very large.

    All computation after the head is in float32, also under bf16 autocast (float64 if the head's logits are). A head
    that itself runs in bf16 has already rounded its logits by up to 2⁻⁹ of their size.

    Raises ValueError on shapes that disagree.
    """
    reference_hidden = reference.hidden if reference else None
    _check_shapes(hidden, tokens, reference_hidden)
    spec = _Spec(head, reference.head if reference else None, options)
    inputs = _split(hidden, tokens, reference_hidden, options.chunk_tokens)
    return _join([_run_chunk(*chunk, spec) for chunk in inputs], tokens.shape)


def _check_shapes(hidden: Tensor, tokens: Tensor, reference_hidden: Tensor | None) -> None:
    if hidden.shape[:-1] != tokens.shape:
        raise ValueError(
            f"tokens: expected hidden's leading shape {tuple(hidden.shape[:-1])}, got {tuple(tokens.shape)}"
        )
    if reference_hidden is not None and reference_hidden.shape[:-1] != tokens.shape:
        raise ValueError(
            f"reference: expected leading shape {tuple(tokens.shape)}, got {tuple(reference_hidden.shape[:-1])}"
        )


def _split(
    hidden: Tensor, tokens: Tensor, reference_hidden: Tensor | None, chunk_tokens: int
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    hidden_chunks = torch.split(hidden.reshape(-1, hidden.shape[-1]), chunk_tokens)
    token_chunks = torch.split(tokens.reshape(-1), chunk_tokens)
    reference_chunks: tuple[Tensor | None, ...] = (None,) * len(token_chunks)
    if reference_hidden is not None:
        flat = reference_hidden.detach().reshape(-1, reference_hidden.shape[-1])
        reference_chunks = torch.split(flat, chunk_tokens)
    return list(zip(hidden_chunks, token_chunks, reference_chunks, strict=True))


def _join(chunks: list[TokenStatistics], shape: torch.Size) -> TokenStatistics:
    ref_parts = [chunk.ref_logprobs for chunk in chunks if chunk.ref_logprobs is not None]
    kl_parts = [chunk.kl_exact for chunk in chunks if chunk.kl_exact is not None]
    return TokenStatistics(
        logprobs=torch.cat([chunk.logprobs for chunk in chunks]).reshape(shape),
        entropy=torch.cat([chunk.entropy for chunk in chunks]).reshape(shape),
        ref_logprobs=torch.cat(ref_parts).reshape(shape) if ref_parts else None,
        kl_exact=torch.cat(kl_parts).reshape(shape) if kl_parts else None,
    )


def _run_chunk(hidden_NH: Tensor, tokens_N: Tensor, reference_NH: Tensor | None, spec: _Spec) -> TokenStatistics:
    # Whether the parameters of the head, a bare callable, are trained is unknown here. Checkpointing a head that is not
    # trained costs almost nothing. A deterministic head needs no saved RNG state.
    if not spec.options.recompute or not torch.is_grad_enabled():
        return _chunk_statistics(hidden_NH, tokens_N, reference_NH, spec)
    statistics: TokenStatistics = checkpoint(
        _chunk_statistics, hidden_NH, tokens_N, reference_NH, spec, use_reentrant=False, preserve_rng_state=False
    )
    return statistics


def _chunk_statistics(hidden_NH: Tensor, tokens_N: Tensor, reference_NH: Tensor | None, spec: _Spec) -> TokenStatistics:
    logits_NV = spec.head(hidden_NH)
    ref_logprobs_NV = ref_logprobs_N = None
    if reference_NH is not None and spec.reference_head is not None:
        with torch.no_grad():
            ref_logprobs_NV = _log_softmax(spec.reference_head(reference_NH), spec.options.temperature)
            ref_logprobs_N = _of_tokens(ref_logprobs_NV, tokens_N)
    with torch.autocast(logits_NV.device.type, enabled=False):
        apply: Any = _Statistics.apply
        logprobs_N, entropy_N, kl_N = apply(logits_NV, tokens_N, ref_logprobs_NV, spec.options)
    return TokenStatistics(logprobs_N, entropy_N, ref_logprobs_N, kl_N)


class _Statistics(torch.autograd.Function):
    """Log-prob of the token, entropy and exact KL of each row, with their gradients in closed form.

    With p = softmax(logits / T), for one row: ∂ log p(token) = 1[token] - p, ∂ entropy = -p·(ln p + entropy) and
    ∂ KL = p·(ln p - ln ref - KL), all with respect to logits / T. One (N, V) tensor is made for the three, where
    autograd would make one for every intermediate operation.
    """

    @staticmethod
    def forward(
        context: Any, logits_NV: Tensor, tokens_N: Tensor, ref_logprobs_NV: Tensor | None, options: StatisticsOptions
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        logprobs_NV = _log_softmax(logits_NV, options.temperature)
        probabilities_NV = logprobs_NV.exp()
        entropy_N = -_expected(logprobs_NV, probabilities_NV)
        kl_N = None if ref_logprobs_NV is None else -entropy_N - _expected(ref_logprobs_NV, probabilities_NV)
        context.set_materialize_grads(False)
        outputs = ((entropy_N, options.entropy_gradient), (kl_N, options.kl_gradient))
        context.mark_non_differentiable(*(given for given, wanted in outputs if given is not None and not wanted))
        reference_NV = ref_logprobs_NV if options.kl_gradient else None
        # The gradient of the log-probs alone needs only the probabilities.
        kept_NV = logprobs_NV if options.entropy_gradient or options.kl_gradient else probabilities_NV
        context.save_for_backward(kept_NV, tokens_N, reference_NV, entropy_N, kl_N)
        context.options, context.logits_dtype = options, logits_NV.dtype
        return _of_tokens(logprobs_NV, tokens_N), entropy_N, kl_N

    @staticmethod
    def backward(
        context: Any, of_logprobs_N: Tensor | None, of_entropy_N: Tensor | None, of_kl_N: Tensor | None
    ) -> tuple[Tensor, None, None, None]:
        kept_NV, tokens_N, ref_logprobs_NV, entropy_N, kl_N = context.saved_tensors
        options: StatisticsOptions = context.options
        factor_NV: Tensor | float = 0.0
        if of_kl_N is not None and options.kl_gradient:
            excess_NV = _finite(kept_NV) - _finite(ref_logprobs_NV) - kl_N.unsqueeze(-1)
            factor_NV = of_kl_N.unsqueeze(-1) * excess_NV
        if of_entropy_N is not None and options.entropy_gradient:
            excess_NV = _finite(kept_NV) + entropy_N.unsqueeze(-1)
            factor_NV = factor_NV - of_entropy_N.unsqueeze(-1) * excess_NV
        if of_logprobs_N is not None:
            factor_NV = factor_NV - of_logprobs_N.unsqueeze(-1)
        if options.entropy_gradient or options.kl_gradient:
            gradient_NV = kept_NV.exp().mul_(factor_NV)
        else:
            gradient_NV = kept_NV * factor_NV
        if of_logprobs_N is not None:
            gradient_NV.scatter_add_(-1, tokens_N.unsqueeze(-1), of_logprobs_N.unsqueeze(-1))
        if options.temperature != 1:
            gradient_NV.div_(options.temperature)
        return gradient_NV.to(context.logits_dtype), None, None, None


def _of_tokens(logprobs_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return logprobs_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)


def _log_softmax(logits_NV: Tensor, temperature: float) -> Tensor:
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    if temperature == 1:
        return torch.log_softmax(logits_NV, dim=-1, dtype=wide)
    return torch.log_softmax(logits_NV.to(wide) / temperature, dim=-1)


def _expected(values_NV: Tensor, probabilities_NV: Tensor) -> Tensor:
    """Return the mean of each row's values under its probabilities; a value of probability 0 adds nothing."""
    expected_N: Tensor = torch.linalg.vecdot(probabilities_NV, values_NV)
    if not torch.isfinite(expected_N).all():
        expected_N = torch.linalg.vecdot(probabilities_NV, _finite(values_NV))
    return expected_N


def _finite(logprobs_NV: Tensor) -> Tensor:
    # An excluded token has probability 0 and log-prob -inf, whose product would be NaN. The square root leaves room for
    # a factor, the weight of a row.
    return logprobs_NV.clamp(min=-(torch.finfo(logprobs_NV.dtype).max ** 0.5))
