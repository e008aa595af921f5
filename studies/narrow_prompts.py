"""`python studies/narrow_prompts.py`: write the training positions of the study `narrow_start`.

The shipped model samples groups of completions for every training prompt of the policy task, in rounds. A position is
kept if the std of its group's rewards is in the interval `STD` in every round but the last. The last round decides
nothing: it measures how much the rewards of the kept positions vary. Run it in the root folder of the checkout.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.errors import DONE
from rookworld_rlvr.files import make_folder, write_lines
from rookworld_rlvr.rollout.groups import Collected
from rookworld_rlvr.tasks.policy import parse_policy_prompt
from rookworld_rlvr.tasks.types import Example, Task
from rookworld_rlvr.training import collection
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.data import load_data
from rookworld_rlvr.training.state import Collection, StepContext
from study import MEMBER, composed, declaration

FILE = Path("outputs", "narrow", "train.fen")
# Closed interval of the population std of a group's rewards. It leaves out zero-variance groups.
STD = (0.005, 0.06)
ROUNDS = 3
# Prompts that are sampled between two lines of progress.
PROMPTS = 256


def main() -> int:
    """Write the positions, print how the rewards vary in the last round, and return the exit code."""
    make_folder(FILE.parent, "outputs")
    others = [override for override in declaration("narrow_start").overrides if not override.startswith("data.train=")]
    found = select(composed([*MEMBER, *others]))
    write_lines(FILE, (parse_policy_prompt(group.example.prompt).fen for group in found.groups))
    stds_P = found.rewards_PG.std(1, correction=0)
    low, middle, high = stds_P.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    print(f"{FILE}: {len(stds_P)} positions, mean reward {found.rewards_PG.mean():.3f}")
    print(f"std in a group: mean {stds_P.mean():.3f}, median {middle:.3f}, 10 % to 90 % {low:.3f} to {high:.3f}")
    return DONE


def select(config: RunConfig, limit: int | None = None) -> Collected:
    """Return the last round's groups of the prompts that are kept, of the first `limit` training prompts."""
    run = build_unsaved_run(config)
    try:
        # Unlike `run.data.train` these have the rows that a run holds back for its learning curve.
        rows = [row for row in load_data(config.data, seed=config.seed).train if row.task is Task.policy][:limit]
        with collection.synced_sampler(run.context):
            for number in range(ROUNDS - 1):
                sampled = sample(run.context, rows, number)
                rows = [group.example for group in narrow(sampled).groups]
            return sample(run.context, rows, ROUNDS - 1)
    finally:
        run.close()


def narrow(sampled: Collected) -> Collected:
    """Return the groups whose rewards have a std in the interval `STD`."""
    stds_P = sampled.rewards_PG.std(1, correction=0)
    return sampled.select((stds_P >= STD[0]) & (stds_P <= STD[1]))


def sample(context: StepContext, rows: Sequence[Example], number: int) -> Collected:
    """Return one scored group for each row; the round's number decides the seeds of the samples."""
    done = Collection(number)
    for first in range(0, len(rows), PROMPTS):
        collection._sampled(context, rows[first : first + PROMPTS], done)
        print(f"round {number + 1}: {done.sampled_groups} of {len(rows)} prompts", file=sys.stderr, flush=True)
    assert done.sampled is not None, "expected a prompt in every round"
    return done.sampled


if __name__ == "__main__":
    sys.exit(main())
