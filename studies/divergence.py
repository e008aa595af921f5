"""`python studies/divergence.py NAME`: KL to the start in both directions, and label losses, of a study's runs.

The start is the study's model. The trained weights, not their mean with the start, come from the checkpoints in
`outputs/studies`, so only members that ran in this checkout are measured. Rows are the first held-out rows of each
task. Run it in the root folder of the checkout.
"""

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from statistics import fmean

import torch

from rookworld_rlvr.app.build import set_threads
from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.errors import BAD_INPUT, DONE, UserError
from rookworld_rlvr.evaluation.intervals import seeds_interval
from rookworld_rlvr.evaluation.label_loss import label_losses
from rookworld_rlvr.model.batch import collate
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy, evaluation_mode
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.rollout.groups import Sampled, sample_groups
from rookworld_rlvr.tasks.types import Example, Task
from rookworld_rlvr.training.checkpoint import STATE_FILE, list_checkpoints
from rookworld_rlvr.training.config import DataConfig
from rookworld_rlvr.training.data import load_data
from study import Member, Study, composed, members, read_study
from updates import round_label_evals

KL_ROWS, LABEL_ROWS, MICRO_BATCH = 128, 512, 32
TO_START, FROM_START = "KL(policy‖start)", "KL(start‖policy)"
KEYS = (TO_START, FROM_START, *(f"label loss, {task}" for task in Task))
Values = Mapping[str, float]


def main(argv: Sequence[str]) -> int:
    """Print the table of a study and return the exit code."""
    try:
        if len(argv) != 1:
            raise UserError(f"expected the name of a study, got {' '.join(argv) or 'nothing'}")
        set_threads(1)
        study = read_study(argv[0])
        finished = [member for member in members(argv[0], study) if member.run is not None]
        if not finished:
            raise UserError(f"expected finished runs of {argv[0]} in outputs/studies, got none")
        print("\n".join(table(study, measure_all(composed(study.shared).model, finished))))
        return DONE
    except UserError as error:
        print(f"studies: {error}", file=sys.stderr)
        return BAD_INPUT


def measure_all(model: ModelConfig, finished: Sequence[Member]) -> dict[str, dict[int, Values]]:
    """Return the values of each finished member by arm and seed; those of `model` are under the arm `start`."""
    start = load_policy(model, torch.device("cpu"), Precision.fp32)
    rows = load_data(DataConfig(), seed=0, evaluation_rows_per_task=LABEL_ROWS).held_out
    prompts = [row for task in Task for row in [row for row in rows if row.task is task][:KL_ROWS]]
    of_start, policy = sample(start, prompts), deepcopy(start)
    measured: dict[str, dict[int, Values]] = {"start": {0: {TO_START: 0.0, FROM_START: 0.0} | label_loss(start, rows)}}
    for member in finished:
        assert member.run is not None
        state = torch.load(list_checkpoints(member.run)[-1] / STATE_FILE, weights_only=False, map_location="cpu")
        policy.model.load_state_dict(state["policy"])
        kls = {
            TO_START: exact_kl(policy, start, sample(policy, prompts)),
            FROM_START: exact_kl(start, policy, of_start),
        }
        measured.setdefault(member.arm, {})[member.seed] = kls | label_loss(policy, rows)
        print(f"{member.arm}, seed {member.seed}: {measured[member.arm][member.seed]}", file=sys.stderr, flush=True)
    return measured


def sample(policy: Policy, prompts: Sequence[Example]) -> list[Sampled]:
    """Return one completion of each prompt, sampled at temperature 1."""
    generator, seeds = make_generator(policy, GeneratorConfig()), range(len(prompts))
    return sample_groups(generator, policy.tokenizer, prompts, group_size=1, temperature=1.0, seeds=seeds)


@torch.no_grad()
def exact_kl(one: Policy, other: Policy, sampled: Sequence[Sampled]) -> float:
    """Return KL(one‖other), nats per token, over the whole vocabulary at each position of the completions of `one`."""
    completed, kls = [(prompt, completions[0].tokens) for prompt, completions in sampled], []
    with evaluation_mode(one.model), evaluation_mode(other.model):
        for first in range(0, len(completed), MICRO_BATCH):
            batch = collate(completed[first : first + MICRO_BATCH], pad_id=one.pad_id, device=one.device)
            kl_N = one.statistics(batch, temperature=1.0, reference=other).kl_exact
            assert kl_N is not None
            kls.append(kl_N.double())
    return torch.cat(kls).mean().item()


def label_loss(policy: Policy, rows: Sequence[Example]) -> dict[str, float]:
    """Return the mean label loss of each task, nats per row."""
    losses = zip(rows, label_losses(policy, [round_label_evals(row) for row in rows]), strict=True)
    measured = [(row.task, loss.nat) for row, loss in losses if loss is not None]
    return {f"label loss, {task}": fmean(loss for own, loss in measured if own is task) for task in Task}


def table(study: Study, values: Mapping[str, Mapping[int, Values]]) -> list[str]:
    """Return the means over seeds and, in brackets, the difference to the control's seeds with its 95 % interval."""
    lines = [f"| arm | seeds | {' | '.join(KEYS)} |", f"|{'---|' * (2 + len(KEYS))}"]
    control = values.get(study.control, {})
    for arm, by_seed in values.items():
        cells = []
        for key in KEYS:
            cell = f"{fmean(one[key] for one in by_seed.values()):.4f}"
            less = [one[key] - control[seed][key] for seed, one in by_seed.items() if seed in control]
            if arm in list(study.arms)[1:] and len(less) > 1:
                mean, low, high = seeds_interval(less)
                cell += f" ({mean:+.4f} [{low:+.4f}, {high:+.4f}])"
            cells.append(cell)
        lines.append(f"| {arm} | {len(by_seed)} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
