"""What a command ends with."""

DONE = 0
BAD_INPUT = 2
"""One line on stderr says what was expected, what came, and where."""
REFUSED = 3
"""A preflight check refused."""
GAVE_UP = 4
"""Training, or what it needs, failed again and again; a diagnosis is written."""
INTERRUPTED = 130
"""As a shell reports it; training itself ends an interrupt with a checkpoint and 0."""
