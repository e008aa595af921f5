"""What a judge raises when it cannot judge; never for what a model wrote."""


class JudgeError(RuntimeError):
    """The judge itself failed: its process died and could not be replaced."""
