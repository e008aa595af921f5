"""Adapters of the tasks and rewards for other training libraries. They import neither torch nor those libraries."""

from functools import cache

from ..files import asset
from ..tasks import task_named
from ..tasks.corpus import read_corpus
from ..tasks.types import Example


@cache
def shipped_examples() -> tuple[Example, ...]:
    """Return the training rows that ship with the package, labels included, for training with another library."""
    return read_corpus(asset("data/train.txt")).examples


@cache
def chat_examples() -> tuple[Example, ...]:
    """Return the positions of these rows as examples of the chat task, with the best move of each as its label."""
    return read_corpus(asset("data/train.txt"), tasks=[task_named("chat")]).examples
