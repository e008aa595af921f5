"""The tasks of rookworld-rlvr as a task set of verifiers, with the rewards of `rookworld train`."""

from collections.abc import Iterator
from functools import cache
from typing import Literal

import verifiers.v1 as vf

from rookworld_rlvr.interop import shipped_examples
from rookworld_rlvr.rewards.score import Scorer, ScoreRequest
from rookworld_rlvr.rewards.scorer import make_scorer

# The least that a label earns by its own row.
LABEL_EARNS = 0.99


@cache
def scorer() -> Scorer:
    """The scorer of a default run; one for all tasks, since it holds the evaluation cache."""
    return make_scorer()


class RookworldChessData(vf.TaskData):
    """A prompt and its label."""

    expected: str = ""


class RookworldChessTask(vf.Task[RookworldChessData]):
    """A prompt of one of the two tasks, completed in one turn."""

    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        """The reward of the completion in `rookworld train`, from -0.3 to 1.0."""
        return self.reward_of(trace.last_reply)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """True if the label earns the reward of a right completion."""
        return self.reward_of(self.data.expected) >= LABEL_EARNS

    def reward_of(self, completion: str) -> float:
        [score] = scorer().score_all([ScoreRequest(self.data.prompt_text, completion, self.data.expected)])
        return score.total


class RookworldChessConfig(vf.TasksetConfig):
    """Choice of the rows."""

    task: Literal["policy", "environment", "both"] = "both"
    num_tasks: int = 200
    """So many rows of those that ship, spread over the file."""


class RookworldChessTaskset(vf.Taskset[RookworldChessTask, RookworldChessConfig]):
    """The training rows that ship with rookworld-rlvr."""

    def load(self) -> Iterator[RookworldChessTask]:
        rows = [row for row in shipped_examples() if self.config.task in ("both", row.task)]
        count = min(self.config.num_tasks, len(rows))
        for row in (rows[i * len(rows) // count] for i in range(count)):
            yield RookworldChessTask(RookworldChessData(prompt=row.prompt, expected=row.completion or ""))
