"""Running statistics of a run, and what is far outside them: spikes and collapse.

A guard compares a step with the run's own history, so it needs no threshold that fits all models. The one exception
is the limit of KL, because a slow runaway would move the history along with it. A guard's state is part of a
checkpoint. The run itself never loosens a guard.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# The newest value's least weight: a memory of about twenty steps.
MEMORY = 0.05
# A collapse needs a mean reward that was surely high and is surely low, each by this many standard errors. The mean of
# a task with two prompts per step varies by 0.1 from step to step.
COLLAPSE_ERRORS = 2.0
# Values that have hardly varied yet would make anything a spike.
LEAST_DEVIATION = 0.1


# Good steps before a guard speaks.
HISTORY = 10
# A spike is so many standard deviations above the mean, in the logarithm, and also above `spike_factor`: a step in a
# calm stretch of a run may be many deviations away and still harmless.
SPIKE_SIGMAS = 6.0
# Nats per token. KL below it counts as this much: its first steps away from 0 are no spikes.
KL_FLOOR = 0.05
# Reward. A task's running mean that is surely this far below its best is a collapse; 0: none is.
COLLAPSE_DROP = 0.1


@dataclass(slots=True)
class GuardConfig:
    """Limits of a step that is far outside the run's history."""

    spike_factor: float = 10.0
    """A spike is this many times the geometric mean, and also six standard deviations above it in the logarithm."""
    kl_limit: float = 1.0
    """Nats per token: a mean KL(policy‖reference) of an update above it is a fault in any case; 0: no limit."""

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
        """Take in a good step's value, above 0; below `floor` it counts as `floor`."""
        self.count += 1
        weight = max(1 / self.count, MEMORY)
        distance = math.log(max(value, floor)) - self.mean
        self.mean += weight * distance
        self.variance = (1 - weight) * (self.variance + weight * distance**2)

    def is_spike(self, value: float, floor: float, factor: float) -> bool:
        """True if a finite value is far above the observed ones; False before there is a history."""
        if self.count < HISTORY:
            return False
        distance = math.log(max(value, floor)) - self.mean
        deviation = max(math.sqrt(self.variance), LEAST_DEVIATION)
        return distance > math.log(factor) and distance > SPIKE_SIGMAS * deviation


@dataclass(slots=True)
class Trend:
    """A running mean, how sure it is, and the best it has surely been."""

    count: int = 0
    mean: float = 0.0
    best: float = -math.inf
    """The highest lower bound of the mean so far."""
    variance: float = 0.0
    """Running variance of the observed values."""
    squared_weights: float = 0.0
    """Sum of the squared weights of all values in the mean: 1 / count at first, later that of the memory."""

    def observe(self, value: float) -> None:
        """Take in a step's value. The best counts from HISTORY steps on: earlier means are noise."""
        self.count += 1
        weight = max(1 / self.count, MEMORY)
        distance = value - self.mean
        self.mean += weight * distance
        self.variance = (1 - weight) * (self.variance + weight * distance**2)
        self.squared_weights = (1 - weight) ** 2 * self.squared_weights + weight**2
        if self.count >= HISTORY:
            self.best = max(self.best, self.mean - self.doubt)

    @property
    def doubt(self) -> float:
        """Distance by which the true mean may differ from the running one."""
        return COLLAPSE_ERRORS * math.sqrt(self.variance * self.squared_weights)


@dataclass(slots=True)
class Guards:
    """All guards of a run."""

    config: GuardConfig = field(default_factory=GuardConfig)
    grad_norm: LogStatistics = field(default_factory=LogStatistics)
    kl: LogStatistics = field(default_factory=LogStatistics)
    rewards: dict[str, Trend] = field(default_factory=dict)
    """By task: the mean over both would move with the mixture alone."""

    def observe_kl(self, kl: float) -> None:
        """Take in a good step's mean KL, nats per token."""
        self.kl.observe(kl, KL_FLOOR)

    def is_kl_spike(self, kl: float) -> bool:
        """True if an update's mean KL is far above those of earlier steps."""
        return self.kl.is_spike(kl, KL_FLOOR, self.config.spike_factor)

    def observe_rewards(self, means: Mapping[str, float]) -> None:
        """Take in a step's mean reward of each task in it."""
        for task, mean in means.items():
            self.rewards.setdefault(task, Trend()).observe(mean)

    def collapsed(self) -> str | None:
        """The task whose mean reward has surely fallen by COLLAPSE_DROP below its best; None if there is none."""
        drop = COLLAPSE_DROP
        fallen = (task for task, trend in self.rewards.items() if trend.best - trend.mean - trend.doubt > drop > 0)
        return next(fallen, None)

    def reward_score(self) -> float | None:
        """Mean over the tasks of their running means; None until each has a history."""
        trends = self.rewards.values()
        if not trends or min(trend.count for trend in trends) < HISTORY:
            return None
        return sum(trend.mean for trend in trends) / len(trends)

    def state_dict(self) -> dict[str, Any]:
        rewards = {task: asdict(trend) for task, trend in self.rewards.items()}
        return {"grad_norm": asdict(self.grad_norm), "kl": asdict(self.kl), "rewards": rewards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was saved."""
        self.grad_norm, self.kl = LogStatistics(**state["grad_norm"]), LogStatistics(**state["kl"])
        self.restore(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the rewards of a checkpoint. The statistics of norms and KL are kept, because a guard without
        a history would be silent."""
        self.rewards = {task: Trend(**trend) for task, trend in state["rewards"].items()}
