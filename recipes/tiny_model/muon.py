"""Muon in float32: an optimiser that orthogonalises the momentum of the matrices within a network.

`torch.optim.Muon` computes in bfloat16, which takes three times as long as float32 on a CPU without bfloat16 units.
Source: Keller Jordan, https://kellerjordan.github.io/posts/muon/.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

# Coefficients of the quintic iteration that brings all singular values near 1; from the source.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Steps whose singular values are about `lr`, times sqrt(rows / columns) where there are more rows than columns."""

    def __init__(
        self, params: Iterable[Parameter], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices; those of one shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape = defaultdict[torch.Size, list[Parameter]](list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonal(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, parameter: Parameter, momentum: float) -> Tensor:
        """Nesterov's momentum of a matrix."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        average = state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(average, momentum)


def orthogonal(matrices_NRC: Tensor) -> Tensor:
    """Matrices (N, rows, columns) with singular values brought to 0.7 to 1.2 by Newton and Schulz's iteration."""
    a, b, c = COEFFICIENTS
    wide = matrices_NRC.shape[1] <= matrices_NRC.shape[2]
    x = matrices_NRC if wide else matrices_NRC.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x if wide else x.mT
    return result
