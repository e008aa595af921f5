"""Guards against a runaway policy: a limit of the KL, and the gradient's norm against its own history.

A gradient spike is measured by the run's own history, so it needs no threshold that fits all models. The KL has a fixed
limit instead, because a slow runaway would move its history along with it. A guard's state is part of a checkpoint, and
the run itself never loosens a guard.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Minimum weight of the newest value in a running mean: a memory of about twenty steps.
MEMORY = 0.05
# Minimum standard deviation of a logarithm: after values that have hardly varied, anything would be a spike.
LEAST_DEVIATION = 0.1
# Number of steps that a guard must have observed before it can report a fault.
HISTORY = 10
# A spike is more than SPIKE_FACTOR times the geometric mean of the run, and also more than SPIKE_SIGMAS standard
# deviations of the logarithm above it. Either alone finds too much: in a calm part of a run a harmless step may be many
# deviations away, and in a restless one ten times the mean is usual.
SPIKE_FACTOR = 10.0
SPIKE_SIGMAS = 6.0


@dataclass(slots=True)
class LogStatistics:
    """Running mean and variance of a positive value's logarithm."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def observe(self, value: float, floor: float) -> None:
        """Add a good step's value. A value below `floor`, which is above 0, counts as `floor`."""
        self.count += 1
        weight = max(1 / self.count, MEMORY)
        distance = math.log(max(value, floor)) - self.mean
        self.mean += weight * distance
        self.variance = (1 - weight) * (self.variance + weight * distance**2)

    def is_spike(self, value: float, floor: float) -> bool:
        """Return True if a finite value is far above the observed ones; False before there are HISTORY of them."""
        if self.count < HISTORY:
            return False
        distance = math.log(max(value, floor)) - self.mean
        deviation = max(math.sqrt(self.variance), LEAST_DEVIATION)
        return distance > math.log(SPIKE_FACTOR) and distance > SPIKE_SIGMAS * deviation


@dataclass(slots=True)
class Guards:
    """The guards of a run. A restore of an earlier checkpoint keeps them: without a history they report nothing."""

    grad_norm: LogStatistics = field(default_factory=LogStatistics)

    def state_dict(self) -> dict[str, Any]:
        return {"grad_norm": asdict(self.grad_norm)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the saved statistics, for a resumed run."""
        self.grad_norm = LogStatistics(**state["grad_norm"])
