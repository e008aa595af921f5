"""Loss masks: values of tokens that are not trained are replaced before any arithmetic.

A loss mask is boolean and has the shape of the values. Values under False (padding, prompt) may be NaN or infinite:
`nan * 0` is NaN in the value, and `inf * 0` is NaN in the gradient even if the value looks right. So these values are
replaced, never multiplied away. `token_weights` sums the values that are left.

The replacement shields against values, not against how they were made: `exp` of an infinite log-ratio,
masked afterwards, still yields a NaN gradient. Apply `keep` to the argument of the `exp`, or use
`masked_exp`.
"""

import torch
from torch import Tensor

# float32's exp overflows at 88.7 nat. Half of that, so that a ratio times a k3 is still finite; a token
# whose probability moved by e^40 is broken either way, and a guard can only report what is finite.
MAX_EXPONENT_NAT = 40.0


def keep(values: Tensor, loss_mask: Tensor) -> Tensor:
    """The values where the mask is True, 0 elsewhere; same shape, no gradient under False.

    Raises TypeError on a mask that is not boolean (a float mask would be a weight), ValueError on a shape
    that differs (a broadcast mask would be counted wrongly).
    """
    if loss_mask.dtype != torch.bool:
        raise TypeError(f"loss_mask: expected torch.bool, got {loss_mask.dtype}")
    if loss_mask.shape != values.shape:
        raise ValueError(f"loss_mask: expected the values' shape {tuple(values.shape)}, got {tuple(loss_mask.shape)}")
    return torch.where(loss_mask, values, 0.0)


def masked_exp(log_values: Tensor, loss_mask: Tensor) -> Tensor:
    """exp of the kept values, 1 elsewhere; same shape, finite unless a kept value is NaN.

    Masks before exp, and cuts the exponent at 40 nat, where the gradient ends too: an infinite exp times
    the zero gradient of a clipped token would be NaN.
    """
    return keep(log_values, loss_mask).clamp(max=MAX_EXPONENT_NAT).exp()
