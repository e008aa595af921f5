"""A fixture that imports the files of `studies/` as modules."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="session")
def studies() -> Iterator[SimpleNamespace]:
    """Yield the modules of the folder, which import each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        names = ("study", "results", "verdicts", "page", "run")
        modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
        yield SimpleNamespace(**modules)
