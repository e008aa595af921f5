"""No-progress watchdog: a run whose updates have no effect stops and says why."""

from ..errors import TrainingGaveUpError
from ..stability.recovery import RecoveryState
from .step_report import StepReport


def idle_reason(report: StepReport) -> str:
    """Why a step without a fault taught nothing; empty for an effective one."""
    rewards_PG = report.rewards_PG
    if rewards_PG.numel() == 0:
        return "no group was kept"
    if float(rewards_PG.max() - rewards_PG.min()) == 0:
        return f"every completion earned the same reward, {float(rewards_PG[0, 0]):.3f}"
    if float(report.advantages_PG.abs().max()) == 0:
        return "no group counted: equal rewards, equal outcomes, or rejected completions in each"
    if report.update_norm == 0:
        return "the update changed no weight"
    return ""


def watch(state: RecoveryState, report: StepReport, *, most: int) -> None:
    """Count steps in a row that taught nothing. Raises TrainingGaveUpError after `most` of them.

    A fault is no idle step: recovery counts it.
    """
    reason = "" if report.fault else idle_reason(report)
    if not reason:
        state.ineffective = 0 if not report.fault else state.ineffective
        return
    state.ineffective += 1
    if state.ineffective >= most:
        raise TrainingGaveUpError(
            f"{state.ineffective} steps in a row had no effect; the last because {reason}. Look at rollouts.jsonl; "
            "a larger objective.group_size, a higher generator.temperature or other prompts may help"
        )
