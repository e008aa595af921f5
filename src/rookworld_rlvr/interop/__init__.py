"""The tasks and rewards behind other libraries' interfaces. No torch; each library is imported where it is chosen."""

from ..files import asset
from ..tasks import Example
from ..tasks.corpus import read_corpus


def shipped_examples() -> tuple[Example, ...]:
    """The training rows that ship with the package, labels included, for those who train with another library."""
    return read_corpus(asset("data/train.txt")).examples
