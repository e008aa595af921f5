"""Answer to the command `uci`, in a module of its own so that it can be sent before torch is imported."""

from ..tasks.policy.text import MAX_CANDIDATES

NAME, AUTHOR = "rookworld", "the rookworld-rlvr team"
MAX_ATTEMPTS, MAX_TOP_K = 10, 64


def without_mark(line: str) -> str:
    """Return a line without the byte-order mark, in whatever decoding, that some programs write before their first one.

    >>> without_mark("\N{ZERO WIDTH NO-BREAK SPACE}uci"), without_mark("ï»¿uci"), without_mark("uci")
    ('uci', 'uci', 'uci')
    """
    place = next((i for i, character in enumerate(line) if character.isascii()), len(line))
    return line[place:]


def introduction(checkpoint: str) -> tuple[str, ...]:
    """Return the answer to `uci`: the engine's name, its options with their defaults, and `uciok`."""
    return (
        f"id name {NAME}",
        f"id author {AUTHOR}",
        "option name Temperature type string default 0",
        f"option name TopK type spin default 0 min 0 max {MAX_TOP_K}",
        f"option name MultiPV type spin default 1 min 1 max {MAX_CANDIDATES}",
        f"option name Attempts type spin default 3 min 0 max {MAX_ATTEMPTS}",
        f"option name Checkpoint type string default {checkpoint}",
        "uciok",
    )
