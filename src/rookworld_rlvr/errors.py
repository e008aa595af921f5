"""Errors that end a command, and exit codes. A model's mistakes are never among them."""

# Begins a note of an error that several processes raise; the number of the process that reports it follows.
RAISED_ON = "raised on rank "

# Exit codes of the commands.
DONE = 0
BAD_INPUT = 2
"""One line on stderr says what was expected, what came, and where."""
REFUSED = 3
"""A preflight check refused."""
GAVE_UP = 4
"""Training, or what it needs, failed again and again; a diagnosis is written."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or a signal, as a shell reports it; a run has saved a checkpoint and can be resumed."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's type where it has none.

    >>> first_line(ValueError("expected 1\\nand more")), first_line(KeyboardInterrupt())
    ('expected 1', 'KeyboardInterrupt')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


class UserError(ValueError):
    """Bad input or configuration: one clear line, exit code 2."""


class PreflightError(RuntimeError):
    """A preflight check refused: exit code 3."""


class TrainingGaveUpError(RuntimeError):
    """Training cannot go on: a diagnosis, exit code 4."""


class ScorerError(RuntimeError):
    """A scorer failed: its engine died and could not be replaced. A run treats it as a fault."""
