"""What ends a command early; the command line turns each into its exit code. Model mistakes are never among them."""

RAISED_ON = "raised on rank "
"""Begins a note of an error that several processes raise; then comes the number of the one that tells it."""


class UserError(ValueError):
    """Bad input or configuration: one clear line, exit code 2."""


class PreflightError(RuntimeError):
    """A preflight check refused: exit code 3."""


class TrainingGaveUpError(RuntimeError):
    """Training cannot go on: a diagnosis, exit code 4."""


class ScorerError(RuntimeError):
    """The judge itself failed: its process died and could not be replaced. A run treats it as a fault."""
