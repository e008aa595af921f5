"""Declarations of all training metrics: unit, reduction, meaning, healthy range, and how the value is computed."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from ..objective import zero_variance_groups
from ..rollout.groups import Rollout
from ..stockfish.analysis import EngineCounts
from .all_moves import up_to_move
from .loss import TokenTotals
from .memory import peak_memory_gib, step_peak_gib
from .state import StepContext, StepReport


class Reduction(StrEnum):
    """Way in which the values of a step's parts (completions, tokens, groups, updates) become one value per step."""

    mean = "mean"
    sum = "sum"
    max = "max"
    min = "min"
    last = "last"
    """The run's value at the end of the step, for metrics that have no parts in a step."""


MEAN, SUM, MAX, MIN, LAST = Reduction
Value = Callable[[StepReport, StepContext], "float | Mapping[str, float] | None"]
"""Computes a metric's value in a step; for a family, the values of its members by name. None if the step has none."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Declaration of a key: its meaning, and the function that computes its value in a step."""

    unit: str
    reduction: Reduction
    meaning: str
    healthy: str
    """Values to expect in a run that goes well."""
    value: Value


def _of_samples(value: Callable[[Rollout], float | Mapping[str, float]]) -> Value:
    """Return a function of all sampled groups, trained on or not, that gives None if the step sampled none."""
    return lambda report, _: value(report.rollout) if report.rollout.groups else None


def _of_advantages(value: Callable[[StepReport], float]) -> Value:
    """Return a function that gives None if the step ended before its advantages."""
    return lambda report, _: value(report) if report.advantages_PG.numel() else None


def _of_tokens(value: Callable[[TokenTotals], float]) -> Value:
    """Return a function that gives None if no token was trained."""
    return lambda report, _: value(report.tokens) if report.tokens.count else None


def _kl_term(report: StepReport, _context: StepContext) -> float | None:
    tokens = report.tokens
    return report.kl_coef * tokens.kl_term_sum / tokens.count if tokens.count else None


def _entropy_term(report: StepReport, context: StepContext) -> float | None:
    tokens = report.tokens
    return context.config.objective.entropy_coef * tokens.entropy_sum / tokens.count if tokens.count else None


def _of_legal_moves(value: Callable[[TokenTotals], float]) -> Value:
    """Return a function that gives None if no position had values of all its moves, or if the step had a fault."""

    def of_update(report: StepReport, _context: StepContext) -> float | None:
        known = report.tokens.expected_value_sum and report.updates and not report.fault
        return value(report.tokens) / report.updates if known else None

    return of_update


def _trained_prompts(report: StepReport, context: StepContext) -> float | None:
    """Return the fraction of the prompts with move values whose legal moves the step could train."""
    with_values = [group for group in report.rollout.groups if group.choice is not None]
    found = [up_to_move(group, context.policy) is not None for group in with_values]
    return fmean(found) if found else None


def _of_kl(value: Callable[[TokenTotals], float]) -> Value:
    """Return a function that gives None if the reference was not computed."""
    return lambda report, _: value(report.tokens) if report.tokens.kl_count else None


def _of_engines(value: Callable[[EngineCounts], float | None]) -> Value:
    """Return a function that gives None if the step ended before scoring, or if the scorer has no engines."""
    return lambda report, _: None if report.rollout.engine is None else value(report.rollout.engine)


def _components(sampled: Rollout) -> dict[str, float]:
    """Return the mean of each component, as task/tier/component, over the completions to which it applied."""
    values_by_component: dict[str, list[float]] = {}
    for group in sampled.groups:
        for sample in group.samples:
            for component, value in sample.score.components.items():
                values_by_component.setdefault(f"{group.example.task}/{component}", []).append(value)
    return {component: fmean(values) for component, values in sorted(values_by_component.items())}


def _failures(sampled: Rollout) -> dict[str, float]:
    """Return the fraction of completions that the parser refused, by reason."""
    failures = [sample.score.failure for group in sampled.groups for sample in group.samples]
    counts = Counter(failure.reason.value for failure in failures if failure)
    return {reason: count / len(failures) for reason, count in sorted(counts.items())}


def _sources(sampled: Rollout) -> dict[str, float]:
    """Return the number of prompts by the source of their move values."""
    counts = Counter(group.samples[0].score.source for group in sampled.groups)
    return {origin: float(prompts) for origin, prompts in sorted(counts.items()) if origin}


def _penalized(report: StepReport, _context: StepContext) -> float | None:
    if not report.rollout.groups or not report.tokens.kl_count:
        return None
    return float(report.rollout.rewards_PG.mean()) - report.kl_coef * report.tokens.kl_mean


def _zero_variance(sampled: Rollout) -> float:
    """Return NaN if a reward is not finite, which is a fault."""
    if not sampled.rewards_PG.isfinite().all():
        return math.nan
    return float(zero_variance_groups(sampled.rewards_PG).float().mean())


def _engine_restarts(_report: StepReport, context: StepContext) -> float | None:
    counts = context.sampler.scorer.engine_counts()
    return None if counts is None else float(counts.restarts)


def _added_by_the_loop(_report: StepReport, _context: StepContext) -> None:
    """Return None: the loop adds validations (`evaluations.validation_metrics`) and warning signs (`health`)."""


# A key that ends in `/*` stands for a family, one key per task, component or reason.
METRICS: dict[str, Metric] = {
    "loss": Metric("reward std", MEAN, "surrogate, KL and entropy terms, mean over updates", "around 0; no trend",
        lambda report, _: report.loss),
    "loss/surrogate": Metric("reward std", MEAN, "surrogate of a trained token, before the sampler's correction",
        "around 0; no trend",
        _of_tokens(lambda totals: totals.surrogate_sum / totals.count)),
    "loss/kl": Metric("nats per token", MEAN, "KL term of a trained token, times kl/coef",
        "well below advantage/abs_mean",
        _kl_term),
    "loss/entropy": Metric("nats per token", MEAN, "entropy of a trained token, times objective.entropy_coef",
        "0 without a bonus; subtracted",
        _entropy_term),
    "reward/mean": Metric("reward", MEAN, "mean over the step's completions", "rises",
        _of_samples(lambda sampled: float(sampled.rewards_PG.mean()))),
    "reward/task/*": Metric("reward", MEAN, "the mean reward of each task", "rises",
        lambda report, _: report.reward_by_task()),
    "reward/component/*": Metric("0-1", MEAN, "mean of a component where it applied (task/tier/component)", "rises",
        _of_samples(_components)),
    "reward/penalized": Metric("reward", MEAN, "reward/mean less kl/coef times kl/reference", "rises",
        _penalized),
    "reward/failure/*": Metric("fraction", MEAN, "completions of all that the parser refused, by reason", "falls",
        _of_samples(_failures)),
    "group/reward_std": Metric("reward", MEAN, "mean over groups of the population std", "above 0.02",
        _of_samples(lambda sampled: float(sampled.rewards_PG.std(-1, correction=0).mean()))),
    "group/zero_variance_fraction": Metric("fraction", MEAN, "groups of equal rewards", "below 0.5",
        _of_samples(_zero_variance)),
    "group/replaced_fraction": Metric("fraction", MEAN, "groups of completions not trained on", "0 unless dropped",
        _of_advantages(lambda report: 1 - len(report.groups) / len(report.rollout.groups))),
    "reward/expected_value": Metric("0-1", MEAN, "expected value of a move over all legal moves", "rises",
        _of_legal_moves(lambda totals: totals.expected_value_sum)),
    "reward/expected_value_prompts": Metric("fraction", MEAN, "prompts with move values that gave an expected value",
        "1; else the tokenizer joins what stands before a move with it",
        _trained_prompts),
    "advantage/abs_mean": Metric("reward std", MEAN, "mean of |advantage|", "0.2 to 0.8",
        _of_advantages(lambda report: float(report.advantages_PG.abs().mean()))),
    "advantage/abs_max": Metric("reward std", MAX, "largest |advantage|", "below 5, the clip",
        _of_advantages(lambda report: float(report.advantages_PG.abs().max()))),
    "kl/reference": Metric("nats per token", MEAN, "k3 estimate of KL(policy‖reference)", "0 at first, below 0.1",
        _of_kl(lambda totals: totals.kl_mean)),
    "kl/original": Metric("nats per token", MEAN, "k3 estimate of KL(policy‖starting model)",
        "grows slowly, also over refreshes",
        _of_kl(lambda totals: totals.kl_original_sum / totals.kl_count)),
    "kl/exact": Metric("nats per token", MEAN, "kl/reference over the whole vocabulary", "close to kl/reference",
        _of_kl(lambda totals: totals.kl_exact_mean)),
    "kl/min": Metric("nat", MIN, "smallest k3 of a token", "0 or more",
        _of_kl(lambda totals: totals.kl_min)),
    "kl/max": Metric("nat", MAX, "largest k3 of a token", "rare spikes only",
        _of_kl(lambda totals: totals.kl_max)),
    "kl/coef": Metric("1", LAST, "coefficient in force, after warm-up", "as configured",
        lambda report, _: report.kl_coef),
    "policy/logprob_mean": Metric("nat", MEAN, "mean log-prob of sampled tokens", "rises slowly",
        _of_tokens(lambda totals: totals.logprob_sum / totals.count)),
    "reference/logprob_mean": Metric("nat", MEAN, "the reference's mean log-prob of sampled tokens", "falls slowly",
        _of_kl(lambda totals: totals.ref_logprob_sum / totals.kl_count)),
    "policy/ratio_max": Metric("1", MAX, "largest policy/old ratio", "1 with one update a batch",
        _of_tokens(lambda totals: totals.ratio_max)),
    "policy/clip_fraction": Metric("fraction", MEAN, "tokens whose clip binds", "0 with one update a batch",
        _of_tokens(lambda totals: totals.clipped_sum / totals.count)),
    "policy/entropy": Metric("nats per token", MEAN, "entropy of the policy at sampled prefixes",
        "falls slowly, not to 0",
        _of_tokens(lambda totals: totals.entropy_sum / totals.count)),
    "policy/move_entropy": Metric("nat", MEAN, "entropy over the legal moves of a prompt with move values",
        "falls slowly, not to 0",
        _of_legal_moves(lambda totals: totals.move_entropy_sum)),
    "sampler/ratio_raw_max": Metric("1", MAX, "largest ratio either way of sampler and trainer", "below 1.01 in fp32",
        _of_tokens(lambda totals: totals.sampler_ratio_max)),
    "sampler/corrected_fraction": Metric("fraction", MEAN, "tokens whose mismatch weight is not exactly 1",
        "any: rounding alone moves it",
        _of_tokens(lambda totals: totals.corrected_sum / totals.count)),
    "reference/refreshes": Metric("refreshes", LAST, "refreshes of the reference so far", "as configured",
        lambda _, context: context.references.refreshes),
    "optim/lr": Metric("1", LAST, "learning rate of the update, backoffs included", "as scheduled",
        lambda report, _: report.lr),
    "optim/grad_norm": Metric("1", MAX, "norm of the gradient before clipping", "no trend; spikes are clipped",
        lambda report, _: report.grad_norm),
    "optim/update_norm": Metric("1", SUM, "norm of the change of all weights, summed over updates", "above 0",
        lambda report, _: report.update_norm),
    "optim/updates": Metric("updates", SUM, "updates made in the step", "as configured",
        lambda report, _: report.updates),
    "recovery/skipped": Metric("faults", LAST, "faults so far", "0",
        lambda _, context: context.recovery.skipped),
    "recovery/restores": Metric("restores", LAST, "restores of an earlier checkpoint so far", "0",
        lambda _, context: context.recovery.restores),
    "recovery/ineffective": Metric("steps", LAST, "steps in a row without effect", "0",
        lambda _, context: context.recovery.ineffective),
    "recovery/halvings": Metric("halvings", LAST, "times that the micro-batch was halved because memory ran out", "0",
        lambda _, context: context.recovery.halvings),
    "recovery/lr_scale": Metric("1", LAST, "factor on the scheduled learning rate", "1",
        lambda _, context: context.recovery.lr_scale),
    "rollout/truncated_fraction": Metric("fraction", MEAN, "completions cut by max_new_tokens", "below 0.02",
        _of_samples(lambda sampled: fmean(not done.finished for done in sampled.completions()))),
    "rollout/length_mean": Metric("tokens", MEAN, "mean length of completions, end token included", "steady",
        _of_samples(lambda sampled: fmean(len(done.tokens) for done in sampled.completions()))),
    "validation/score": Metric("fraction", MEAN, "mean over tasks of the key that decides about checkpoints", "rises",
        _added_by_the_loop),
    "validation/rule/*": Metric("fraction", MEAN, "the loss of a simple rule on these rows; step 0 alone", "constant",
        _added_by_the_loop),
    "validation/*": Metric("fraction", MEAN, "learning curve: one sample per held-back row",
        "rises; a loss falls",
        _added_by_the_loop),
    "warning/*": Metric("0 or 1", LAST, "1 while a sign of trouble is shown (`health.Sign`)",
        "0",
        _added_by_the_loop),
    "scorer/source/*": Metric("prompts", SUM, "prompts that ask for a move, by source of their values", "as configured",
        _of_samples(_sources)),
    "scorer/engine_positions": Metric("positions", SUM, "scored by an engine, each once per sampling", "as configured",
        _of_engines(lambda counts: counts.positions)),
    "scorer/engine_cached_fraction": Metric("fraction", MEAN, "share of those positions that no engine had to search",
        "any",
        _of_engines(lambda counts: 1 - counts.searched / counts.positions if counts.positions else None)),
    "scorer/engine_wait_s": Metric("s", SUM, "scoring that waited for engines", "well below time/generate_s",
        _of_engines(lambda counts: counts.wait_s)),
    "scorer/engine_restarts": Metric("restarts", LAST, "engines that hung or died, replaced so far", "0",
        _engine_restarts),
    "time/generate_s": Metric("s", SUM, "sampling", "depends on the machine",
        lambda report, _: report.times_s.get("generate")),
    "time/score_s": Metric("s", SUM, "scoring", "below 1 % of time/step_s",
        lambda report, _: report.times_s.get("score")),
    "time/train_s": Metric("s", SUM, "forward, backward, update", "depends on the machine",
        lambda report, _: report.times_s.get("train")),
    "time/step_s": Metric("s", SUM, "the whole step", "depends on the machine",
        lambda report, _: report.times_s.get("step")),
    "throughput/completions_per_s": Metric("1/s", MEAN, "completions of the step over time/step_s",
        "depends on the machine",
        lambda report, _: len(report.rollout.completions()) / report.times_s["step"]),
    "memory/step_peak_gib": Metric("GiB", MAX, "the step's own peak, where the system tells it", "flat",
        lambda _report, _context: step_peak_gib()),
    "memory/peak_gib": Metric("GiB", MAX, "peak so far: resident on a CPU, allocated on CUDA", "flat",
        lambda _report, _context: peak_memory_gib()),
}  # fmt: skip


def step_metrics(report: StepReport, context: StepContext) -> dict[str, float]:
    """Return the metrics of one step. A step that a fault ended has only those of the phases that it reached."""
    values: dict[str, float] = {}
    for key, metric in METRICS.items():
        value = metric.value(report, context)
        if isinstance(value, Mapping):
            values |= {key.replace("*", member): figure for member, figure in value.items()}
        elif value is not None:
            values[key] = value
    # JSON has no NaN. The values of a fault are in the diagnosis.
    return {key: value for key, value in values.items() if math.isfinite(value)}


def declared(key: str) -> Metric:
    """Return the declaration of a key or of the family it belongs to. Raises KeyError for an undeclared key."""
    parts = key.split("/")
    families = ("/".join([*parts[:length], "*"]) for length in range(len(parts) - 1, 0, -1))
    return METRICS[next((name for name in (key, *families) if name in METRICS), key)]
