"""The three ways a run ends early; the command line turns each into its exit code."""


class UserError(ValueError):
    """Bad input or configuration: one clear line, exit code 2."""


class PreflightError(RuntimeError):
    """A preflight gate refused: exit code 3."""


class TrainingGaveUpError(RuntimeError):
    """Training cannot go on: a diagnosis, exit code 4."""
