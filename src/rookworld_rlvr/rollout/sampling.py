"""The random numbers that completions are drawn with: those of a prompt depend on its own seed alone.

So what is sampled for a prompt does not depend on the prompts beside it, on the number of processes, or on what was
drawn before.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

SEED_BYTES = 7


def derive_seed(*parts: object) -> int:
    """A seed from 0 to 2**56 - 1 that follows from the parts as text.

    >>> derive_seed(0, 1) == derive_seed("0", "1") != derive_seed(1, 0)
    True
    """
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")


def uniform_numbers(seeds: Sequence[int], group_size: int, count: int, device: torch.device) -> Tensor:
    """`count` numbers in [0, 1) for each of the `group_size` completions of each prompt: (P, G, count), float32.

    They are made on the CPU, so that every device draws alike.
    """
    numbers = [torch.rand(group_size, count, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(numbers).to(device)


def inverse_cdf(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Tokens (…) drawn from distributions (…, V) with numbers (…) in [0, 1).

    The sums are in float64, so that a token of probability 0 is never drawn. From NaN any token is drawn: a draw
    that raised would end the process before anyone could say where the NaN came from.
    """
    sums = logprobs.exp().cumsum(-1, dtype=torch.float64)
    targets = uniform.unsqueeze(-1).double() * sums[..., -1:]
    return torch.searchsorted(sums, targets, right=True).squeeze(-1).clamp(max=logprobs.shape[-1] - 1)
