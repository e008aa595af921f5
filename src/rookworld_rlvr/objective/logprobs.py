"""Log-prob, entropy and exact KL of each token, without ever holding the logits of a whole batch.

At GPT-2's vocabulary the logits of 64 completions of 128 tokens take 1.6 GB in float32, and their
log-softmax, its exponential and the gradients as much again each. Here the head is applied to a chunk of
positions at a time and recomputed in backward, so the peak is a handful of (chunk_tokens, V) tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]
"""Hidden states (N, H) → logits (N, V). Must be deterministic: backward calls it a second time."""


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """What one forward pass says about given tokens. Every tensor has the tokens' shape."""

    logprobs: Tensor
    """log_softmax(logits / T) at the token; nat, float32, at most 0."""
    entropy: Tensor
    """Entropy of softmax(logits / T) at the token's position; nat, float32, 0 to ln V."""
    ref_logprobs: Tensor | None
    """The reference's log-prob of the token; nat, float32, no gradient; None without a reference."""
    kl_exact: Tensor | None
    """KL(policy‖reference) over the whole vocabulary at the position; nat, float32; None without a
    reference."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """What is the same for every chunk; the fields are arguments of `token_statistics`."""

    head: Head
    reference_head: Head | None
    temperature: float
    entropy_gradient: bool


def token_statistics(
    hidden: Tensor,
    tokens: Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    reference_hidden: Tensor | None = None,
    reference_head: Head | None = None,
    chunk_tokens: int = 1024,
    entropy_gradient: bool = False,
) -> TokenStatistics:
    """Statistics of `tokens` (...) under the policy whose hidden states are `hidden` (..., H).

    `hidden[..., t]` is the state that predicts `tokens[..., t]`: the shift is the caller's. Token ids lie
    in 0 … V-1 also where they are padding. Leading shape is free and kept; no tokens give empty tensors.

    The reference is another model at the same positions and the same temperature. It gets no gradient,
    and neither does the entropy unless `entropy_gradient`. A logit of -inf excludes a token and adds
    nothing to entropy or KL, as long as the reference excludes it too or the policy gives it 0.

    After the head all is float32, also under bf16 autocast (float64 if the head's logits are). A head that
    itself runs in bf16 has already rounded its logits by up to 2⁻⁹ of their size.

    Raises ValueError on shapes that disagree, a temperature that is not above 0 and finite, a chunk below
    1, or half a reference.
    """
    _check_shapes(hidden, tokens, reference_hidden)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature: expected above 0 and finite, got {temperature}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens: expected at least 1, got {chunk_tokens}")
    if (reference_hidden is None) != (reference_head is None):
        raise ValueError("reference: expected both reference_hidden and reference_head, or neither")
    spec = _Spec(head, reference_head, temperature, entropy_gradient)
    inputs = _split(hidden, tokens, reference_hidden, chunk_tokens)
    return _join([_run_chunk(*chunk, spec) for chunk in inputs], tokens.shape)


def _check_shapes(hidden: Tensor, tokens: Tensor, reference_hidden: Tensor | None) -> None:
    if hidden.shape[:-1] != tokens.shape:
        raise ValueError(
            f"tokens: expected hidden's leading shape {tuple(hidden.shape[:-1])}, got {tuple(tokens.shape)}"
        )
    if reference_hidden is not None and reference_hidden.shape[:-1] != tokens.shape:
        raise ValueError(
            f"reference_hidden: expected leading shape {tuple(tokens.shape)}, "
            f"got {tuple(reference_hidden.shape[:-1])}"
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


def _run_chunk(
    hidden_NH: Tensor, tokens_N: Tensor, reference_NH: Tensor | None, spec: _Spec
) -> TokenStatistics:
    if not torch.is_grad_enabled():
        return _chunk_statistics(hidden_NH, tokens_N, reference_NH, spec)
    # A head is a bare callable, so whether its parameters are trained cannot be asked; checkpointing
    # where nothing is trained costs next to nothing. A deterministic head needs no saved RNG state.
    statistics: TokenStatistics = checkpoint(
        _chunk_statistics,
        hidden_NH,
        tokens_N,
        reference_NH,
        spec,
        use_reentrant=False,
        preserve_rng_state=False,
    )
    return statistics


def _chunk_statistics(
    hidden_NH: Tensor, tokens_N: Tensor, reference_NH: Tensor | None, spec: _Spec
) -> TokenStatistics:
    logprobs_NV = _log_softmax(spec.head(hidden_NH), spec.temperature)
    logprobs_N = _of_tokens(logprobs_NV, tokens_N)
    entropy_N = _entropy(logprobs_NV if spec.entropy_gradient else logprobs_NV.detach())
    if reference_NH is None or spec.reference_head is None:
        return TokenStatistics(logprobs_N, entropy_N, ref_logprobs=None, kl_exact=None)
    with torch.no_grad():
        ref_logprobs_NV = _log_softmax(spec.reference_head(reference_NH), spec.temperature)
    return TokenStatistics(
        logprobs_N,
        entropy_N,
        ref_logprobs=_of_tokens(ref_logprobs_NV, tokens_N),
        kl_exact=_kl(logprobs_NV, ref_logprobs_NV),
    )


def _of_tokens(logprobs_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return logprobs_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)


def _log_softmax(logits_NV: Tensor, temperature: float) -> Tensor:
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    return torch.log_softmax(logits_NV.to(wide) / temperature, dim=-1)


def _entropy(logprobs_NV: Tensor) -> Tensor:
    return -(logprobs_NV.exp() * _finite(logprobs_NV)).sum(-1)


def _kl(logprobs_NV: Tensor, ref_logprobs_NV: Tensor) -> Tensor:
    return (logprobs_NV.exp() * (_finite(logprobs_NV) - _finite(ref_logprobs_NV))).sum(-1)


def _finite(logprobs_NV: Tensor) -> Tensor:
    # An excluded token has probability 0 and log-prob -inf, whose product would be NaN.
    return logprobs_NV.clamp(min=torch.finfo(logprobs_NV.dtype).min)
