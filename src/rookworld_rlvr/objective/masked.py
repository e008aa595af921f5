"""Loss masks: values of tokens that are not trained are replaced before any arithmetic.

A loss mask is boolean and has the shape of the values. Values under False (padding, prompt) may be NaN or infinite:
`nan * 0` is NaN in the value, and `inf * 0` is NaN in the gradient even if the value looks right. So these values are
replaced, never multiplied away. `losses` sums the remaining values.

The replacement protects against the values, not against the operation that made them: `exp` of an infinite log-ratio,
masked afterwards, still yields a NaN gradient. Apply `keep` to the argument of the `exp`, or use
`masked_exp`.
"""

import torch
from torch import Tensor

# float32's exp overflows at 88.7 nat. This is less than half of that, so that a ratio times a k3 is still finite. A
# token whose probability moved by e^40 is broken in any case, and a guard can only report finite values.
MAX_EXPONENT_NAT = 40.0


def keep(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the values where the mask is True and 0 elsewhere; same shape, no gradient under False.

    Raises TypeError for a mask that is not boolean (a float mask would act as a weight), ValueError for a mask of
    another shape (a broadcast mask would be counted wrongly).
    """
    if loss_mask.dtype != torch.bool:
        raise TypeError(f"loss_mask: expected torch.bool, got {loss_mask.dtype}")
    if loss_mask.shape != values.shape:
        raise ValueError(f"loss_mask: expected the values' shape {tuple(values.shape)}, got {tuple(loss_mask.shape)}")
    return torch.where(loss_mask, values, 0.0)


def masked_exp(log_values: Tensor, loss_mask: Tensor) -> Tensor:
    """Return exp of the kept values and 1 elsewhere; same shape, finite unless a kept value is NaN.

    Masks before exp, and clamps the exponent at 40 nat, beyond which there is no gradient either: an infinite exp
    times the zero gradient of a clipped token would be NaN.
    """
    return keep(log_values, loss_mask).clamp(max=MAX_EXPONENT_NAT).exp()
