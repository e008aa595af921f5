"""Errors that end a command, and exit codes. An illegal or malformed completion never raises one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Start of a note on an error that several ranks raise. The rank that reports the error follows.
RAISED_ON = "raised on rank "

# Exit codes of the commands.
DONE = 0
BAD_INPUT = 2
"""Bad input or configuration. One line on stderr says what was expected, what was given and where."""
REFUSED = 3
"""A preflight check refused."""
GAVE_UP = 4
"""Training, or something that it needs, failed and could not recover. If training gave up, there is a diagnosis."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or a signal; shells use the same code. A run has saved a checkpoint and can be resumed."""


# In torch's errors about pickled files. They advise to load the file without this safeguard, or to report a defect.
SAFEGUARD = ("weights_only", "Weights only")
NOT_PLAIN = "a file that is damaged, or has more than tensors and plain values, which is not read since it may run code"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type if the message is empty.

    A message of torch about a pickled file is replaced, because it advises to switch off the safeguard.

    >>> first_line(ValueError("expected 1\\nand more")), first_line(KeyboardInterrupt())
    ('expected 1', 'KeyboardInterrupt')
    """
    if any(word in str(error) for word in SAFEGUARD):
        return NOT_PLAIN
    return next(iter(str(error).splitlines()), type(error).__name__)


class UserError(ValueError):
    """Bad input or configuration: one clear line, exit code 2."""


@contextmanager
def prefixed(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise an error of these kinds that the block raises as a UserError, with `where` before its message."""
    try:
        yield
    except kinds as error:
        raise UserError(f"{where}: {error}") from error


@contextmanager
def left_out(what: str, say: Callable[[str], object]) -> Iterator[None]:
    """Run a block that only observes, such as a report: an exception ends the block alone, and `say` gets a line."""
    try:
        yield
    except Exception as error:
        say(f"{what} is left out: {type(error).__name__}: {first_line(error)}")


class PreflightError(RuntimeError):
    """A preflight check refused: exit code 3."""


class TrainingGaveUpError(RuntimeError):
    """Training cannot continue: exit code 4."""


class ScorerError(RuntimeError):
    """A scorer failed: its engine died and could not be replaced. Within a step it counts as a fault."""
