"""Entry point of `python -m rookworld_rlvr`."""

from .app.cli import console

console()
