"""A gymnasium environment of one question: the observation is a prompt, the action a completion.

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
    """Ask a prompt, judge the answer, end. Both tasks are asked, told apart by the prompt's prefix."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - gymnasium's own form.

    def __init__(
        self,
        examples: Sequence[Example] | None = None,
        config: RubricConfig | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`examples`: what is asked, by default the training rows that ship. Raises ValueError for none of them."""
        self._examples = shipped_examples() if examples is None else tuple(examples)
        if not self._examples:
            raise ValueError("expected examples to ask, got none")
        self._scorer = make_scorer(config)
        self.render_mode = render_mode
        self.observation_space = spaces.Text(MOST_CHARACTERS, charset=CHARACTERS)
        self.action_space = spaces.Text(MOST_CHARACTERS, min_length=0, charset=CHARACTERS)
        self._asked, self._said = self._examples[0], ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a prompt; `info` has its task and its label."""
        super().reset(seed=seed)
        self._asked, self._said = self._examples[int(self.np_random.integers(len(self._examples)))], ""
        return self._asked.prompt, {"task": str(self._asked.task), "expected": self._asked.completion or ""}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge the answer; `info` has the reward's components and why the parser refused it. The episode has ended."""
        self._said = action
        question = ScoreRequest(self._asked.prompt, action, self._asked.completion, step=None)
        [score] = self._scorer.score_all([question])
        failure = str(score.failure.reason) if score.failure else ""
        return self._asked.prompt, score.total, True, False, {"components": dict(score.components), "failure": failure}

    def render(self) -> str:
        """The prompt and the answer, if there is one."""
        return self._asked.prompt + self._said

    def close(self) -> None:
        """Let go of the judge."""
        self._scorer.close()


gymnasium.register("rookworld/ChessText-v0", entry_point=f"{__name__}:ChessTextEnv")
