"""Attention of several completions to the prompt that they share, so that a prompt is computed once per group.

transformers passes queries, keys and values of every layer to the attention function that the model's config names.
Our function calls the `Layout` given with the forward pass, which knows which tokens are prompts, which are
completions, and what was computed before. The result is exact: a completion's softmax is over its prompt's keys and
its own keys, but the prompt's keys are not repeated for each completion (bifurcated attention, arXiv 2403.08845).

Dimensions: K key heads, H query heads (a multiple of K), L tokens of a prompt, S tokens of a completion.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

NAME = "rookworld_shared_prefix"


class Layout(Protocol):
    """The roles of the tokens of a forward pass, and the attention that follows from them."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Return the output (B, T, H, D) of one call for its query (B, H, T, D), key and value (B, K, T, D)."""


def _attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    layout: Layout,
    **options: Any,
) -> tuple[Tensor, None]:
    scaling = options.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Contiguous, as that of transformers' own functions: some models view it in another shape.
    return layout.attend(query, key, value, scaling).contiguous(), None


AttentionInterface.register(NAME, _attention)


def sees_all_before(model: PreTrainedModel) -> bool:
    """Return True if the model's config declares a replaceable attention in which each token sees all tokens before it.

    The trial in `model.loading` cannot replace this check, because its rows are shorter than an attention window.
    """
    config = model.config.get_text_config()
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    upcast = getattr(config, "reorder_and_upcast_attn", False)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return bool(model._supports_attention_backend) and not windowed and not upcast and kinds == {"full_attention"}


# By id of each model config whose attention is replaced: number of threads inside, and the original attention.
_inside: dict[int, tuple[int, str]] = {}
_lock = Lock()


@contextmanager
def sharing(model: PreTrainedModel) -> Iterator[None]:
    """Replace the model's attention within the context, where its forward passes need a `layout`.

    Several threads may be inside at a time.
    """
    config = model.config.get_text_config()
    with _lock:
        threads, before = _inside.get(id(config), (0, config._attn_implementation))
        _inside[id(config)] = threads + 1, before
        config._attn_implementation = NAME
    try:
        yield
    finally:
        with _lock:
            threads, before = _inside.pop(id(config))
            if threads > 1:
                _inside[id(config)] = threads - 1, before
            else:
                config._attn_implementation = before


def checkpoint_contexts(model: PreTrainedModel) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts for a block's pass and for its recomputation, which may happen after `sharing` has ended."""
    inside = model.config.get_text_config()._attn_implementation == NAME
    return nullcontext(), sharing(model) if inside else nullcontext()


def states(model: PreTrainedModel, tokens_BT: Tensor, positions_BT: Tensor, layout: Layout) -> Tensor:
    """Return the last hidden states (B, T, E) of a forward pass with `layout`. Must be called within `sharing`."""
    output = model.base_model(input_ids=tokens_BT, position_ids=positions_BT, use_cache=False, layout=layout)
    last: Tensor = output.last_hidden_state
    return last


def attend_shared(
    query_PGHTD: Tensor,
    prefix: tuple[Tensor, Tensor, Tensor],
    own: tuple[Tensor, Tensor, Tensor | None],
    scaling: float,
) -> Tensor:
    """Return the attention of each completion to its group's prompt and to itself, (P, G, T, H, D).

    `prefix` is keys and values (P, K, L, D) and a bias that broadcasts to (P, K, G, H/K, T, L): 0 if a key is seen,
    -inf otherwise. `own` is keys and values (P, K, G, S, D) and a bias (S,); None if all of them are seen.
    """
    prefix_keys, prefix_values, prefix_bias = prefix
    own_keys, own_values, own_bias = own
    groups, size, heads, length, width = query_PGHTD.shape
    key_heads, seen = prefix_keys.shape[1:3]
    repeats = heads // key_heads
    query = query_PGHTD.transpose(1, 2).reshape(groups, key_heads, repeats, size, length, width).transpose(2, 3)
    of_prefix = query.reshape(groups, key_heads, -1, width) @ prefix_keys.transpose(-1, -2)
    of_own = query.reshape(groups, key_heads, size, -1, width) @ own_keys.transpose(-1, -2)
    shape = (groups, key_heads, size, repeats, length)
    of_own = of_own.view(*shape, -1) if own_bias is None else of_own.view(*shape, -1) + own_bias
    scores = torch.cat([of_prefix.view(*shape, -1) + prefix_bias, of_own], -1)
    weights = (scores * scaling).softmax(-1).to(own_values.dtype)
    from_prefix = weights[..., :seen].reshape(groups, key_heads, -1, seen) @ prefix_values
    from_own = weights[..., seen:].reshape(groups, key_heads, size, repeats * length, -1) @ own_values
    mixed = from_prefix.view(*shape, width) + from_own.view(*shape, width)
    return mixed.permute(0, 2, 4, 1, 3, 5).reshape(groups, size, length, heads, width)


def causal_bias(length: int, device: torch.device) -> Tensor:
    """Return the bias (L, L) that hides later tokens."""
    later = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    return attention_bias(~later)


def attention_bias(seen: Tensor) -> Tensor:
    """Return 0 where a key is seen, -inf elsewhere; float32."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)
