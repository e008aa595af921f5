"""Every training metric: declared once with meaning and unit, computed from a step's report."""

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from ..objective import zero_variance_fraction
from ..tasks import Task
from .context import StepContext
from .loss import TokenTotals
from .memory import peak_memory_gib, step_peak_gib
from .step_report import StepReport


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """What a key means."""

    unit: str
    meaning: str
    healthy: str
    """What to expect of a run that goes well."""


# A key that ends in `/*` stands for a family, one key a task, part or reason.
METRICS: dict[str, MetricSpec] = {
    "loss": MetricSpec("reward std", "surrogate, KL and entropy terms, mean over updates", "around 0; no trend"),
    "reward/mean": MetricSpec("reward", "mean over the step's completions", "rises"),
    "reward/task/*": MetricSpec("reward", "the same, a task", "rises"),
    "reward/part/*": MetricSpec("0-1", "mean of a part where it applied (task/rung/part)", "rises"),
    "reward/penalized": MetricSpec("reward", "reward/mean less kl/coef times kl/reference", "rises"),
    "reward/failure/*": MetricSpec("fraction", "completions of all that the parser refused, a reason", "falls"),
    "group/reward_std": MetricSpec("reward", "mean over groups of the population std", "above 0.02"),
    "group/zero_variance_fraction": MetricSpec("fraction", "groups of equal rewards: they teach nothing", "below 0.5"),
    "group/gated_fraction": MetricSpec("fraction", "groups of unequal rewards that do not count", "0 without a gate"),
    "group/replaced_fraction": MetricSpec("fraction", "groups sampled and not trained on", "0 unless dropped"),
    "advantage/abs_mean": MetricSpec("reward std", "mean of |advantage|", "0.2 to 0.8"),
    "advantage/abs_max": MetricSpec("reward std", "largest |advantage|", "below objective.advantage.clip"),
    "kl/reference": MetricSpec("nat a token", "k3 estimate of KL(policy‖reference)", "0 at first, below 0.5"),
    "kl/original": MetricSpec("nat a token", "the same to the starting model", "grows slowly, also over refreshes"),
    "kl/exact": MetricSpec("nat a token", "kl/reference over the whole vocabulary", "close to kl/reference"),
    "kl/min": MetricSpec("nat", "smallest k3 of a token", "0 or more"),
    "kl/max": MetricSpec("nat", "largest k3 of a token", "rare spikes only"),
    "kl/coef": MetricSpec("1", "coefficient in force, after warm-up", "as configured"),
    "policy/logprob_mean": MetricSpec("nat", "mean log-prob of sampled tokens", "rises slowly"),
    "reference/logprob_mean": MetricSpec("nat", "the reference's mean log-prob of them", "falls slowly"),
    "policy/ratio_max": MetricSpec("1", "largest policy/old ratio", "1 with one update a batch"),
    "policy/clip_fraction": MetricSpec("fraction", "tokens whose clip binds", "0 with one update a batch"),
    "policy/entropy": MetricSpec("nat a token", "entropy of the policy at sampled prefixes", "falls slowly, not to 0"),
    "policy/entropy_coef": MetricSpec("1", "coefficient of the entropy bonus in force", "as configured"),
    "sampler/ratio_raw_max": MetricSpec("1", "largest ratio either way of sampler and trainer", "below 1.01 in fp32"),
    "sampler/corrected_fraction": MetricSpec("fraction", "tokens reweighed against sampler mismatch", "any; no trend"),
    "sampler/policy_share": MetricSpec("fraction", "share of the policy task among the prompts", "as configured"),
    "sampler/live/*": MetricSpec("games", "games of data.live that ended so far, by how", "fewer by an illegal move"),
    "reference/refreshes": MetricSpec("refreshes", "refreshes of the reference so far", "as configured"),
    "optim/lr": MetricSpec("1", "learning rate of the update, backoffs included", "as scheduled"),
    "optim/grad_norm": MetricSpec("1", "norm of the gradient before clipping", "no trend; spikes are clipped"),
    "optim/update_norm": MetricSpec("1", "norm of the change of all weights, summed over updates", "above 0"),
    "optim/updates": MetricSpec("updates", "updates made in the step", "as configured"),
    "recovery/skipped": MetricSpec("faults", "faults so far", "0"),
    "recovery/restores": MetricSpec("restores", "restores of an earlier checkpoint so far", "0"),
    "recovery/ineffective": MetricSpec("steps", "steps in a row that taught nothing", "0"),
    "recovery/judge_restarts": MetricSpec("restarts", "restarts of judges' processes since this process began", "0"),
    "recovery/lr_scale": MetricSpec("1", "what the scheduled learning rate is multiplied by", "1"),
    "rollout/truncated_fraction": MetricSpec("fraction", "completions cut by max_new_tokens", "below 0.02"),
    "rollout/rejected_fraction": MetricSpec("fraction", "completions sampled beyond the KL cap", "below 0.1"),
    "rollout/length_mean": MetricSpec("tokens", "mean length of completions, end token included", "steady"),
    "validation/*": MetricSpec("fraction", "greedy, on rows held back; score is the mean over tasks", "rises"),
    "judge/verdict/*": MetricSpec("prompts", "P: prompts whose moves were judged by it", "as configured"),
    "judge/engine_positions": MetricSpec("positions", "judged by an engine, each once a sampling", "as configured"),
    "judge/engine_cached_fraction": MetricSpec("fraction", "of them those that no engine had to search", "any"),
    "judge/engine_wait_s": MetricSpec("s", "judging that waited for engines", "well below time/generate_s"),
    "judge/engine_restarts": MetricSpec("restarts", "engines that hung or died, replaced so far", "0"),
    "time/generate_s": MetricSpec("s", "sampling", ""),
    "time/score_s": MetricSpec("s", "judging", "below 1 % of time/step_s"),
    "time/train_s": MetricSpec("s", "forward, backward, update", ""),
    "time/step_s": MetricSpec("s", "the whole step", ""),
    "throughput/completions_per_s": MetricSpec("1/s", "completions of the step over time/step_s", ""),
    "memory/step_peak_gib": MetricSpec("GiB", "the step's own peak, where the system tells it", "flat"),
    "memory/peak_gib": MetricSpec("GiB", "peak so far: resident on a CPU, allocated on CUDA", "flat"),
}


def step_metrics(report: StepReport, context: StepContext) -> dict[str, float]:
    """The metrics of one step; one that a fault ended has those of the phases it came to."""
    recovery = context.recovery
    values = {
        "loss": report.loss,
        **_reward_metrics(report),
        **_token_metrics(report),
        **_engine_metrics(report, context),
        "kl/coef": report.kl_coef,
        "policy/entropy_coef": report.entropy_coef,
        "sampler/policy_share": context.prompts.share(Task.policy),
        **{f"sampler/live/{how}": float(count) for how, count in context.prompts.live_ends().items()},
        "reference/refreshes": context.references.refreshes,
        "optim/lr": report.lr,
        "optim/grad_norm": report.grad_norm,
        "optim/update_norm": report.update_norm,
        "optim/updates": report.updates,
        "recovery/skipped": recovery.skipped,
        "recovery/restores": recovery.restores,
        "recovery/ineffective": recovery.ineffective,
        "recovery/judge_restarts": context.judge.restarts,
        "recovery/lr_scale": recovery.lr_scale,
        **{f"time/{phase}_s": seconds for phase, seconds in report.times_s.items()},
        "throughput/completions_per_s": report.sampled_completions / report.times_s["step"],
        "memory/step_peak_gib": step_peak_gib(),
        "memory/peak_gib": peak_memory_gib(),
    }
    if "reward/mean" in values and "kl/reference" in values:
        values["reward/penalized"] = values["reward/mean"] - report.kl_coef * values["kl/reference"]
    # JSON has no NaN, and a reader of metrics no use for one: a fault's own figures are in the diagnosis.
    return {key: value for key, value in values.items() if math.isfinite(value)}


def declared(key: str) -> MetricSpec:
    """What a key means, families included. Raises KeyError for one that is not declared."""
    if key in METRICS:
        return METRICS[key]
    return METRICS["/".join(key.split("/")[:2]) + "/*"]


def _reward_metrics(report: StepReport) -> dict[str, float]:
    if not report.groups:
        return {}
    by_key: dict[str, list[float]] = {}
    failures: Counter[str] = Counter()
    completions = []
    for group in report.groups:
        task = group.example.task.value
        for sample in group.samples:
            completions.append(sample.completion)
            by_key.setdefault(f"reward/task/{task}", []).append(sample.score.total)
            for part, value in sample.score.parts.items():
                by_key.setdefault(f"reward/part/{task}/{part}", []).append(value)
            if sample.score.failure:
                failures[sample.score.failure.reason.value] += 1
    verdicts = Counter(group.samples[0].score.verdict for group in report.groups)
    return {
        "reward/mean": float(report.rewards_PG.mean()),
        **{f"judge/verdict/{origin}": float(prompts) for origin, prompts in sorted(verdicts.items()) if origin},
        **{key: fmean(values) for key, values in sorted(by_key.items())},
        **{f"reward/failure/{reason}": count / len(completions) for reason, count in sorted(failures.items())},
        "group/reward_std": float(report.rewards_PG.std(-1, correction=0).mean()),
        "rollout/truncated_fraction": fmean(not done.finished for done in completions),
        "rollout/length_mean": fmean(len(done.tokens) for done in completions),
        "rollout/rejected_fraction": report.rejected_completions / report.sampled_completions,
        **_advantage_metrics(report),
    }


def _advantage_metrics(report: StepReport) -> dict[str, float]:
    if not report.advantages_PG.numel():
        return {}
    zero_variance = zero_variance_fraction(report.rewards_PG, report.collected.valid_PG if report.collected else None)
    return {
        "group/zero_variance_fraction": zero_variance,
        "group/gated_fraction": max(0.0, float((~report.counted_P).float().mean()) - zero_variance),
        "group/replaced_fraction": 1 - len(report.groups) / report.sampled_groups,
        "advantage/abs_mean": float(report.advantages_PG.abs().mean()),
        "advantage/abs_max": float(report.advantages_PG.abs().max()),
    }


def _engine_metrics(report: StepReport, context: StepContext) -> dict[str, float]:
    counts, step = context.judge.engine_counts(), report.engine
    if counts is None:
        return {}
    restarts = {"judge/engine_restarts": float(counts.restarts)}
    if step is None:
        return restarts
    cached = {"judge/engine_cached_fraction": 1 - step.searched / step.positions} if step.positions else {}
    return {"judge/engine_positions": step.positions, **cached, "judge/engine_wait_s": step.wait_s, **restarts}


def _token_metrics(report: StepReport) -> dict[str, float]:
    totals = report.tokens
    if not totals.count:
        return {}
    return {
        **_kl_metrics(totals),
        "policy/logprob_mean": totals.logprob_sum / totals.count,
        "policy/ratio_max": totals.ratio_max,
        "policy/clip_fraction": totals.clipped_sum / totals.count,
        "policy/entropy": totals.entropy_sum / totals.count,
        "sampler/ratio_raw_max": totals.sampler_ratio_max,
        "sampler/corrected_fraction": totals.corrected_sum / totals.count,
    }


def _kl_metrics(totals: TokenTotals) -> dict[str, float]:
    if not totals.kl_count:
        return {}
    return {
        "kl/reference": totals.kl_mean,
        "kl/original": totals.kl_original_sum / totals.kl_count,
        "kl/exact": totals.kl_exact_mean,
        "kl/min": totals.kl_min,
        "kl/max": totals.kl_max,
        "reference/logprob_mean": totals.ref_logprob_sum / totals.kl_count,
    }
