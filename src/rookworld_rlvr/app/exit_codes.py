"""Exit codes of the commands."""

DONE = 0
BAD_INPUT = 2
"""One line on stderr says what was expected, what came, and where."""
REFUSED = 3
"""A preflight check refused."""
GAVE_UP = 4
"""Training, or what it needs, failed again and again; a diagnosis is written."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or a signal, as a shell reports it; a run has saved a checkpoint and can be resumed."""
