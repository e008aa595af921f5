"""The model that ships at a table, a server of it, and a browser."""

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rookworld_rlvr.app.uci import load_mover
from rookworld_rlvr.play.choice import Mover
from rookworld_rlvr.play.server import Server
from rookworld_rlvr.play.table import Table

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; skips where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()
