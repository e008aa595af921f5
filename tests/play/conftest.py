"""The model that ships at a table, and a server of it."""

import threading
from collections.abc import Iterator

import pytest

from rookworld_rlvr.app.play import load_mover
from rookworld_rlvr.play.choice import Mover
from rookworld_rlvr.play.server import Server
from rookworld_rlvr.play.table import Table


@pytest.fixture(scope="session")
def tiny() -> Mover:
    return load_mover("tiny", seed=0)


@pytest.fixture(scope="session")
def table(tiny: Mover) -> Table:
    """Two models, which are one."""
    return Table([("tiny", tiny), ("other", tiny)])


@pytest.fixture(scope="session")
def server(table: Table) -> Iterator[Server]:
    """A server on a free port of this machine."""
    served = Server("127.0.0.1", 0, table)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()
