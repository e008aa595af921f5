"""Provenance of a result: versions of the software, and digests of rows."""

import platform
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import version

from . import __version__

LIBRARIES = ("torch", "transformers", "tokenizers", "chess")


def software() -> dict[str, str]:
    """Return versions by name: of Python, of this package, and of the libraries that compute and score."""
    own = {"python": platform.python_version(), "rookworld-rlvr": __version__}
    return own | {name: version(name) for name in LIBRARIES}


def digest(rows: Iterable[tuple[int, ...] | str]) -> str:
    """Return the number of rows and their hash as one text. It is equal only for equal rows in the same order."""
    sha, count = sha256(), 0
    for row in rows:
        sha.update(repr(row).encode())
        count += 1
    return f"{count} rows of sha256 {sha.hexdigest()[:16]}"
