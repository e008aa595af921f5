"""Evaluations of a run: held-out rows before and after training, and the learning curve."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from ..evaluation.completions import Sampling, evaluate, evaluate_sampled, fens_of
from ..evaluation.headline import LEAST_ROWS, decision_keys, greedy_keys
from ..evaluation.keys import SAMPLED, SPREAD
from ..evaluation.legal_choice import choice_measure, model_player, written_by_default
from ..evaluation.mate_in_one import MateInOne, mate_in_one_suite
from ..evaluation.players import DecodingConfig, Player, rule_losses
from ..evaluation.table import Gain, Measure, Row, paired_gain, summarise, to_json
from ..progress import progress
from ..stability.faults import StopRequestedError
from .run import Run

Item = TypeVar("Item")


def evaluated(run: Run, name: str) -> list[Row]:
    """Evaluate the averaged policy: all held-out rows greedily, the first of them sampled, then the mates in one.

    Raises StopRequestedError if a stop was requested.
    """
    model = (run.context.sampler.generator, run.context.policy.tokenizer)
    with run.context.averaged_policy():
        choose = choice_measure(run.context.policy, run.config.evaluation.decoding)
        greedy = partial(evaluate, *model, evaluations=run.evaluations, choose=choose)
        rows = _by_all_ranks(run, f"evaluation {name}", run.data.held_out, greedy)
        sample = partial(evaluate_sampled, *model, sampling=run.sampling, evaluations=run.evaluations)
        rows += _by_all_ranks(run, f"evaluation {name}, sampled", run.sampled, sample)
        if (task := run.config.data.player()) is not None:
            decoding = written_by_default(run.config.evaluation.decoding)
            player = model_player(run.context.policy, model[0], DecodingConfig(), run.config.seed, task, decoding)
            mates = partial(_evaluate_mates, player, task.prompt)
            rows += _by_all_ranks(run, f"evaluation {name}, mates in one", _mates(run), mates)
    return [replace(row, index=i) for i, row in enumerate(rows)]


def items(run: Run) -> list[Hashable]:
    """Return the items of the rows of `evaluated`, in order."""
    return [*run.data.held_out, *((SAMPLED, example) for example in run.sampled), *_mates(run)]


def _mates(run: Run) -> Sequence[MateInOne]:
    return run.data.mates if run.data.held_out and run.config.data.player() else ()


def _evaluate_mates(
    player: Player, prompt: Callable[[str], str], mates: Sequence[MateInOne], *, progress: Callable[[int], None]
) -> list[Row]:
    """Evaluate the greedy moves in mates in one; `progress` receives the number of rows done."""
    rows: list[Row] = []
    for chunk in mate_in_one_suite(player, mates, prompt=prompt).rows(0):
        rows += chunk
        progress(len(rows))
    return rows


def _by_all_ranks(run: Run, what: str, rows: Sequence[Item], scored: Callable[..., list[Row]]) -> list[Row]:
    """Return the evaluated rows of all ranks, in order; each rank calls `scored` for its share and numbers it from 0.

    `scored` passes the number of rows done to its argument `progress`, which shows it, and raises StopRequestedError if
    a stop was requested.
    """
    if not rows:
        return []
    world = run.context.world
    with run.context.sampler.synced(run.context.policy.model), progress(run.console, what, len(rows)) as show:

        def advance(done: int) -> None:
            show(done * world.size)
            if run.stop_requested:
                raise StopRequestedError

        return world.gather_in_order(lambda: scored(world.share(rows), progress=advance), what)


def validate(run: Run) -> Mapping[str, float]:
    """Return the averaged policy's validation metrics: one sample per held-back row, with the same seeds each time."""
    world, context = run.context.world, run.context
    sampling = Sampling(run.config.generator.temperature, samples=1, seed=run.config.seed)

    def scored() -> list[Row]:
        return evaluate_sampled(
            context.sampler.generator,
            context.policy.tokenizer,
            world.share(run.data.validation),
            sampling,
            evaluations=run.evaluations,
        )

    with context.averaged_policy(), context.sampler.synced(context.policy.model):
        return validation_metrics(world.gather_in_order(scored, "validation"))


def validation_metrics(rows: Sequence[Row]) -> Mapping[str, float]:
    """Return `validation/score`, the `decision_keys` and all other keys with enough rows; empty without rows.

    The score is the mean of the `decision_keys` over the tasks that have rows. It uses only labels and rules,
    because not every position has move evaluations.
    """
    values_by_key = {key: [row.values[f"{SAMPLED}/{key}"] for row in rows if f"{SAMPLED}/{key}" in row.values]
                     for key in greedy_keys()}  # fmt: skip
    scored = [fmean(values_by_key[key]) for key in decision_keys() if values_by_key[key]]
    if not scored:
        return {}
    means = {
        f"validation/{key}": fmean(values)
        for key, values in values_by_key.items()
        if len(values) >= LEAST_ROWS or (values and key in decision_keys())
    }
    return {"validation/score": fmean(scored), **means}


def start_of_curve(run: Run) -> dict[str, float]:
    """Return the validation metrics before the first step, and the losses of simple rules on the same rows."""
    losses = run.context.world.rank_0_only(
        lambda: rule_losses(run.evaluations.analyses(fens_of(run.data.validation))), "the simple rules"
    )
    return {**validate(run), **{f"validation/rule/{name}": loss for name, loss in losses.items()}}


def tables(before: list[Row], after: list[Row]) -> dict[str, Any]:
    """Return the summary's tables: `before`, `after`, their paired `gain`, and `spread`.

    `spread` has the keys about the spread of samples, which fall when the policy becomes sharper.
    """
    gain: Mapping[str, Measure | Gain] = paired_gain(before, after) if after else {}
    parts = {"before": summarise(before), "after": summarise(after), "gain": gain}
    summary = {name: to_json(_of_spread(table, False)) for name, table in parts.items()}
    return summary | {"spread": {name: to_json(_of_spread(parts[name], True)) for name in ("before", "after")}}


def _of_spread(table: Mapping[str, Measure | Gain], wanted: bool) -> dict[str, Measure | Gain]:
    return {key: entry for key, entry in table.items() if key.startswith(f"{SPREAD}/") is wanted}
