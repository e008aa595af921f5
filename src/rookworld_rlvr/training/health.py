"""Health of a run: the no-progress watchdog, which stops it, and warning signs, which are only shown.

Warning signs are computed from the metrics of each step; console, trackers and report all show the same ones. Faults,
which end a step, are in `checks` and `stability`. The signs depend only on the metrics, so a resumed run that has read
its metrics again shows the same signs as a run that was not stopped.
"""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from statistics import fmean

from ..errors import TrainingGaveUpError
from ..evaluation.headline import decision_keys
from ..stability.recovery import RecoveryState
from .state import StepReport

# Number of consecutive steps without effect that ends a run. A default step has 16 groups, so even two are rare.
MAX_INEFFECTIVE_STEPS = 25
PREFIX = "warning/"
# Number of steps over which a mean is taken.
WINDOW = 20
# Mean kl/reference below which the policy hardly changes; not applied to the first 2 * WINDOW steps. Three default runs
# had 0.004 to 0.027 in the mean of 20 steps.
KL_LOW = 0.002
# Mean kl/reference above which the policy may forget what the starting model knew.
KL_HIGH = 0.1
# Mean fraction of zero-variance groups above which `no_variance` is shown.
IDLE = 0.5
# Mean fraction of prompts with move values and an expected value below which `no_legal_moves` is shown.
FEW_PROMPTS = 0.5
# Drop of a validation score that counts as forgetting: three standard errors of a score of 0.9 over 128 rows.
FORGOTTEN = 0.08


def no_progress_reason(report: StepReport) -> str:
    """Return the reason why a step without a fault had no effect; empty if it had an effect."""
    rewards_PG = report.rewards_PG
    if report.tokens.expected_value_sum and report.update_norm:
        return ""
    if rewards_PG.numel() == 0:
        return "no group was kept"
    if float(report.advantages_PG.abs().max()) == 0:
        if float(rewards_PG.max() - rewards_PG.min()) == 0:
            return f"every completion earned the same reward, {float(rewards_PG[0, 0]):.3f}"
        return "the rewards of each group are equal"
    if report.update_norm == 0:
        return "the update changed no weight"
    return ""


def watch(state: RecoveryState, report: StepReport) -> None:
    """Count consecutive steps without effect. Raises TrainingGaveUpError after MAX_INEFFECTIVE_STEPS of them.

    A step with a fault leaves the count unchanged, because recovery counts faults.
    """
    if report.fault is not None:
        return
    reason = no_progress_reason(report)
    state.ineffective = state.ineffective + 1 if reason else 0
    if state.ineffective >= MAX_INEFFECTIVE_STEPS:
        raise TrainingGaveUpError(
            f"{state.ineffective} steps in a row had no effect; the last because {reason}. Look at rollouts.jsonl; "
            "a larger objective.group_size, a higher generator.temperature or other prompts may help"
        )


class Sign(StrEnum):
    """Sign of trouble in a run that continues."""

    kl = "kl"
    """KL to the reference is outside the range KL_LOW to KL_HIGH."""
    no_variance = "no_variance"
    """Most groups have zero variance: equal rewards."""
    no_legal_moves = "no_legal_moves"
    """Most prompts with move values gave no expected value over their legal moves."""
    forgetting = "forgetting"
    """The validation score of a task fell well below its best."""


class SignWatch:
    """Warning signs of a run, computed from its metrics so far."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window, self._steps = window, 0
        self._last: deque[Mapping[str, float]] = deque(maxlen=window)
        self._validations: dict[str, list[float]] = {}
        self.shown: dict[Sign, str] = {}
        """Signs of the last step, each with a message about the observed and, for some, the expected values."""

    def observe(self, metrics: Mapping[str, float]) -> dict[Sign, str]:
        """Add the metrics of a step; return the signs that the step before did not show, with their messages."""
        self._steps += 1
        self._last.append(metrics)
        self.observe_validation(metrics)
        before, self.shown = self.shown, self._raised_signs()
        return {sign: message for sign, message in self.shown.items() if sign not in before}

    def observe_validation(self, metrics: Mapping[str, float]) -> None:
        """Add the validation scores of a step or of the start."""
        for key, value in metrics.items():
            if key.removeprefix("validation/") in decision_keys():
                self._validations.setdefault(key, []).append(value)

    def metrics(self) -> dict[str, float]:
        """Return `warning/<sign>` for each sign: 1 if the last step shows it, else 0."""
        return {f"{PREFIX}{sign}": float(sign in self.shown) for sign in Sign}

    def _raised_signs(self) -> dict[Sign, str]:
        messages = {
            Sign.kl: self._kl(),
            Sign.no_variance: self._no_variance(),
            Sign.no_legal_moves: self._no_legal_moves(),
            Sign.forgetting: self._forgetting(),
        }
        return {sign: message for sign, message in messages.items() if message}

    def _mean(self, key: str) -> float | None:
        """Return the mean over the window; None unless every step of a whole window has the key."""
        values = [step[key] for step in self._last if key in step]
        return fmean(values) if len(values) == self._window else None

    def _kl(self) -> str:
        mean = self._mean("kl/reference")
        if mean is None or (mean <= KL_HIGH and (mean >= KL_LOW or self._steps <= 2 * self._window)):
            return ""
        return f"kl/reference {mean:.4f} in the mean of {self._window} steps, expected {KL_LOW:g} to {KL_HIGH:g}"

    def _no_variance(self) -> str:
        mean = self._mean("group/zero_variance_fraction")
        if mean is None or mean <= IDLE:
            return ""
        return f"{mean:.0%} of the groups of {self._window} steps had equal rewards, expected at most {IDLE:.0%}"

    def _no_legal_moves(self) -> str:
        mean = self._mean("reward/expected_value_prompts")
        if mean is None or mean >= FEW_PROMPTS:
            return ""
        return (
            f"{mean:.0%} of the prompts with move values gave a term over all legal moves in {self._window} steps, "
            f"expected at least {FEW_PROMPTS:.0%}: no token of the others' completions ends before the move"
        )

    def _forgetting(self) -> str:
        for key, scores in self._validations.items():
            now, best = fmean(scores[-2:]), max(scores)
            if len(scores) > 2 and now < best - FORGOTTEN:
                return f"{key} {now:.3f} in the mean of the last two validations, at its best {best:.3f}"
        return ""
