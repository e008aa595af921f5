"""The tasks of rookworld-rlvr as a task set of verifiers, with the rewards of `rookworld train`."""

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

from rookworld_rlvr.interop import MALFORMED_REWARD, chat_examples, shared_scorer, shipped_examples
from rookworld_rlvr.rewards.score import ScoreRequest
from rookworld_rlvr.tasks.messages import messages_of

# The least that a label earns by its own row.
LABEL_EARNS = 0.99


class RookworldChessData(vf.TaskData):
    """A prompt and its label."""

    asked: str = ""
    """The prompt as rookworld-rlvr knows it: a text, or chat messages as JSON."""
    expected: str = ""
    malformed_reward: float = MALFORMED_REWARD
    """Reward of text without any structure, the lower end of the rewards."""


class RookworldChessTask(vf.Task[RookworldChessData]):
    """A prompt of one of the tasks, completed in one turn."""

    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        """The reward of the completion in `rookworld train`, from `malformed_reward` to 1."""
        return self.reward_of(trace.last_reply)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """True if the label earns the reward of a right completion."""
        return self.reward_of(self.data.expected) >= LABEL_EARNS

    def reward_of(self, completion: str) -> float:
        scorer = shared_scorer(self.data.malformed_reward)
        [score] = scorer.score_all([ScoreRequest(self.data.asked, completion, self.data.expected)])
        return score.total


class RookworldChessConfig(vf.TasksetConfig):
    """Choice of the rows."""

    task: Literal["policy", "environment", "both", "chat"] = "both"
    """`both` are policy and environment, for models that know their formats; `chat` is for any model."""
    num_tasks: int = 200
    """So many rows of those that ship, spread over the file; -1: all."""
    malformed_reward: float = MALFORMED_REWARD
    """Lower end of the rewards; 0 gives rewards from 0 to 1."""


class RookworldChessTaskset(vf.Taskset[RookworldChessTask, RookworldChessConfig]):
    """The training rows that ship with rookworld-rlvr."""

    def load(self) -> Iterator[RookworldChessTask]:
        every = (*shipped_examples(), *chat_examples())
        wanted = ("policy", "environment") if self.config.task == "both" else (self.config.task,)
        rows = [row for row in every if row.task in wanted]
        count = len(rows) if self.config.num_tasks < 0 else min(self.config.num_tasks, len(rows))
        for row in (rows[i * len(rows) // count] for i in range(count)):
            messages = messages_of(row.prompt)
            # A chat prompt of the default options is one message of the user.
            text = messages[0]["content"] if messages else row.prompt
            yield RookworldChessTask(
                RookworldChessData(
                    prompt=text,
                    asked=row.prompt,
                    expected=row.completion or "",
                    malformed_reward=self.config.malformed_reward,
                )
            )
