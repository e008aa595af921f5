"""The shipped model as a move chooser, and an API and a server of it."""

import threading
from collections.abc import Iterator

import pytest

from rookworld_rlvr.app.play import load_chooser
from rookworld_rlvr.play.api import PlayApi
from rookworld_rlvr.play.choice import MoveChooser
from rookworld_rlvr.play.server import Server

# Seconds between two looks for an end. The default, 0.5, is longer than most tests.
POLL_S = 0.01


@pytest.fixture(scope="session")
def tiny() -> MoveChooser:
    return load_chooser("tiny", seed=0)


@pytest.fixture(scope="session")
def writer() -> MoveChooser:
    """Return the shipped model as a chooser of the moves that it writes."""
    return load_chooser("tiny", seed=0, decoding="text")


@pytest.fixture(scope="session")
def api(tiny: MoveChooser) -> PlayApi:
    """Return the API of two names for the same model."""
    return PlayApi([("tiny", tiny), ("other", tiny)])


@pytest.fixture(scope="session")
def server(api: PlayApi) -> Iterator[Server]:
    """Yield a running server on a free local port."""
    served = Server("127.0.0.1", 0, api)
    thread = threading.Thread(target=served.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()
