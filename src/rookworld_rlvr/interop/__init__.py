"""The tasks and rewards behind other libraries' interfaces. No torch; each library is imported where it is chosen."""

from importlib import resources
from pathlib import Path

from ..tasks import Example
from ..tasks.corpus import read_corpus


def shipped_examples() -> tuple[Example, ...]:
    """The training rows that ship with the package, labels included, for those who train with another library."""
    return read_corpus(Path(str(resources.files("rookworld_rlvr") / "assets" / "data" / "train.txt"))).examples
