"""A gymnasium environment of one step: the observation is a prompt, the action a completion.

import rookworld_rlvr.interop.gymnasium_env
env = gymnasium.make("rookworld/ChessText-v0")
"""

import string
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from ..rewards import RubricConfig
from ..rewards.scorer import ScoreRequest, make_scorer
from ..tasks import Example
from .examples import shipped_examples

MOST_CHARACTERS = 2048
CHARACTERS = "".join(sorted(string.printable))


class ChessTextEnv(gymnasium.Env[str, str]):
    """Episodes of one prompt and one completion. Both tasks occur; a prompt's prefix names its own."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - gymnasium's own form.

    def __init__(
        self,
        examples: Sequence[Example] | None = None,
        config: RubricConfig | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`examples`: the prompts, by default of the training rows that ship. Raises ValueError for an empty list."""
        self._examples = shipped_examples() if examples is None else tuple(examples)
        if not self._examples:
            raise ValueError("expected examples, got none")
        self._scorer = make_scorer(config)
        self.render_mode = render_mode
        self.observation_space = spaces.Text(MOST_CHARACTERS, charset=CHARACTERS)
        self.action_space = spaces.Text(MOST_CHARACTERS, min_length=0, charset=CHARACTERS)
        self._example, self._completion = self._examples[0], ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Choose a prompt; `info` has its task and its label."""
        super().reset(seed=seed)
        self._example, self._completion = self._examples[int(self.np_random.integers(len(self._examples)))], ""
        return self._example.prompt, {"task": str(self._example.task), "expected": self._example.completion or ""}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the completion; `info` has the reward's components and the parser's complaint. The episode ends."""
        self._completion = action
        request = ScoreRequest(self._example.prompt, action, self._example.completion, step=None)
        [score] = self._scorer.score_all([request])
        failure = str(score.failure.reason) if score.failure else ""
        info = {"components": dict(score.components), "failure": failure}
        return self._example.prompt, score.total, True, False, info

    def render(self) -> str:
        """The prompt and the completion, if there is one."""
        return self._example.prompt + self._completion

    def close(self) -> None:
        """Close the scorer."""
        self._scorer.close()


gymnasium.register("rookworld/ChessText-v0", entry_point=f"{__name__}:ChessTextEnv")
