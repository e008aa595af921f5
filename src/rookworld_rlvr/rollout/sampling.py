"""Sampling of tokens: seeds, inverse distribution function and top-k.

The random numbers of a prompt depend only on its own seed. So its samples do not depend on the other prompts of a
batch, on the number of processes, or on earlier samples.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

SEED_BYTES = 7


def derive_seed(*parts: object) -> int:
    """Return a seed from 0 to 2**56 - 1, derived from the text of the parts.

    >>> derive_seed(0, 1) == derive_seed("0", "1") != derive_seed(1, 0)
    True
    """
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")


def uniform_numbers(seeds: Sequence[int], group_size: int, count: int, device: torch.device) -> Tensor:
    """Return (P, G, count) numbers in [0, 1), float32: `count` for each of `group_size` completions of each prompt.

    They are generated on the CPU, so that all devices sample alike.
    """
    numbers = [torch.rand(group_size, count, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(numbers).to(device)


def inverse_cdf(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Return tokens (…) sampled from distributions (…, V) with numbers (…) in [0, 1).

    The sums are in float64, so that a token of probability 0 is never sampled. NaN log-probs give an arbitrary token:
    an exception would end the process before the origin of the NaN could be reported.
    """
    sums = logprobs.exp().cumsum(-1, dtype=torch.float64)
    targets = uniform.unsqueeze(-1).double() * sums[..., -1:]
    return torch.searchsorted(sums, targets, right=True).squeeze(-1).clamp(max=logprobs.shape[-1] - 1)


def top_k_logprobs(scores: Tensor, top_k: int) -> Tensor:
    """Keep the scores (…, V) of the `top_k` most likely tokens and set the others to -inf; 0 keeps all scores.

    Of equal scores at the border, only as many are kept as `top_k` allows.
    """
    if not 0 < top_k < scores.shape[-1]:
        return scores
    kept = scores.topk(top_k, dim=-1)
    return torch.full_like(scores, -torch.inf).scatter(-1, kept.indices, kept.values)
