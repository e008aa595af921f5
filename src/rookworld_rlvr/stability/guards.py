"""Guards against spikes and collapse, and the running statistics of a run that they use.

A guard compares a step with the run's own history, so it needs no threshold that fits all models. The one exception is
the KL limit, because a slow runaway would move the history along with it. A guard's state is part of a checkpoint. The
run itself never loosens a guard.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Minimum weight of the newest value in a running mean: a memory of about twenty steps.
MEMORY = 0.05
# Number of standard errors that count as the uncertainty of a mean reward, at its best and now, in the check for a
# collapse. The mean of a task with two prompts per step varies by 0.1 from step to step.
COLLAPSE_ERRORS = 2.0
# Minimum standard deviation of a logarithm: after values that have hardly varied, anything would be a spike.
LEAST_DEVIATION = 0.1
# Number of steps that a guard must have observed before it can report a fault.
HISTORY = 10
# Number of standard deviations of the logarithm by which a spike is above the mean. It must exceed `spike_factor` too:
# in a calm part of a run, a step may be many deviations away and still be harmless.
SPIKE_SIGMAS = 6.0
# Nats per token. A smaller KL counts as this value, so that its first steps away from 0 are no spikes.
KL_FLOOR = 0.05
# Drop of a task's running mean reward below its best that counts as a collapse, if it is certain.
COLLAPSE_DROP = 0.1


@dataclass(slots=True)
class GuardConfig:
    """Limits beyond which a step is a fault."""

    spike_factor: float = 10.0
    """A value is a spike if it is more than this many times the run's geometric mean, and also more than six standard
    deviations above it in the logarithm."""
    kl_limit: float = 1.0
    """Nats per token. An update with a mean KL(policy‖reference) above it is always a fault; 0 turns the limit off."""

    def __post_init__(self) -> None:
        if not self.spike_factor > 1 or not self.kl_limit >= 0:
            raise ValueError(
                "recovery.guard: expected spike_factor above 1 and kl_limit from 0, "
                f"got {self.spike_factor} and {self.kl_limit}"
            )


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

    def is_spike(self, value: float, floor: float, factor: float) -> bool:
        """Return True if a finite value is far above the observed ones; False before there are HISTORY of them."""
        if self.count < HISTORY:
            return False
        distance = math.log(max(value, floor)) - self.mean
        deviation = max(math.sqrt(self.variance), LEAST_DEVIATION)
        return distance > math.log(factor) and distance > SPIKE_SIGMAS * deviation


@dataclass(slots=True)
class Trend:
    """A running mean, its uncertainty, and the best value that it has had beyond doubt."""

    count: int = 0
    mean: float = 0.0
    best: float = -math.inf
    """Highest lower bound of the mean so far."""
    variance: float = 0.0
    """Running variance of the observed values."""
    squared_weights: float = 0.0
    """Sum of the squared weights of all values in the mean: 1 / count at first, later a constant set by MEMORY."""

    def observe(self, value: float) -> None:
        """Add a step's value. The best is updated only from HISTORY steps on, because earlier means are noise."""
        self.count += 1
        weight = max(1 / self.count, MEMORY)
        distance = value - self.mean
        self.mean += weight * distance
        self.variance = (1 - weight) * (self.variance + weight * distance**2)
        self.squared_weights = (1 - weight) ** 2 * self.squared_weights + weight**2
        if self.count >= HISTORY:
            self.best = max(self.best, self.mean - self.uncertainty)

    @property
    def uncertainty(self) -> float:
        """Distance by which the true mean may differ from the running one."""
        return COLLAPSE_ERRORS * math.sqrt(self.variance * self.squared_weights)


@dataclass(slots=True)
class Guards:
    """All guards of a run."""

    config: GuardConfig = field(default_factory=GuardConfig)
    grad_norm: LogStatistics = field(default_factory=LogStatistics)
    kl: LogStatistics = field(default_factory=LogStatistics)
    rewards: dict[str, Trend] = field(default_factory=dict)
    """Trend of the mean reward by task. A mean over both tasks would move with their mixture alone."""

    def observe_kl(self, kl: float) -> None:
        """Add a good step's mean KL, nats per token."""
        self.kl.observe(kl, KL_FLOOR)

    def is_kl_spike(self, kl: float) -> bool:
        """Return True if an update's mean KL is far above those of earlier steps."""
        return self.kl.is_spike(kl, KL_FLOOR, self.config.spike_factor)

    def observe_rewards(self, means: Mapping[str, float]) -> None:
        """Add a step's mean reward of each task in it."""
        for task, mean in means.items():
            self.rewards.setdefault(task, Trend()).observe(mean)

    def collapsed(self) -> str | None:
        """Return the task whose mean reward is beyond doubt COLLAPSE_DROP below its best; None if there is none."""
        drops = {task: trend.best - trend.mean - trend.uncertainty for task, trend in self.rewards.items()}
        return next((task for task, drop in drops.items() if drop > COLLAPSE_DROP), None)

    def reward_score(self) -> float | None:
        """Return the mean of the tasks' running means; None until each task has a history."""
        trends = self.rewards.values()
        if not trends or min(trend.count for trend in trends) < HISTORY:
            return None
        return sum(trend.mean for trend in trends) / len(trends)

    def state_dict(self) -> dict[str, Any]:
        rewards = {task: asdict(trend) for task, trend in self.rewards.items()}
        return {"grad_norm": asdict(self.grad_norm), "kl": asdict(self.kl), "rewards": rewards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load all saved statistics, for a resumed run."""
        self.grad_norm, self.kl = LogStatistics(**state["grad_norm"]), LogStatistics(**state["kl"])
        self.restore(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the reward trends of a checkpoint. The statistics of norms and KL are kept, because a guard without
        a history reports nothing."""
        self.rewards = {task: Trend(**trend) for task, trend in state["rewards"].items()}
