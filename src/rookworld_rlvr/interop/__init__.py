"""Adapters of the tasks and rewards for other training libraries. They import neither torch nor those libraries."""

from functools import cache

from ..files import asset
from ..rewards import RubricConfig
from ..rewards.score import Scorer
from ..rewards.scorer import make_scorer
from ..tasks import task_named
from ..tasks.corpus import read_corpus
from ..tasks.types import Example

# The reward of text without any structure in a default run. Another lower end of the rewards is given in its place.
MALFORMED_REWARD = RubricConfig().malformed_reward


@cache
def shared_scorer(malformed_reward: float) -> Scorer:
    """Return the scorer of a default run, one for all calls, since it holds the evaluation cache.

    Rewards are from `malformed_reward`, which is at most 0, to 1. Raises ValueError for another one.
    """
    return make_scorer(RubricConfig(malformed_reward=malformed_reward))


@cache
def shipped_examples() -> tuple[Example, ...]:
    """Return the training rows that ship with the package, labels included, for training with another library."""
    return read_corpus(asset("data/train.txt")).examples


@cache
def chat_examples() -> tuple[Example, ...]:
    """Return the positions of these rows as examples of the chat task, with the best move of each as its label."""
    return read_corpus(asset("data/train.txt"), tasks=[task_named("chat")]).examples
