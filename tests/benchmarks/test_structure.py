"""`benchmarks/structure.py` and `benchmarks/same_bits.py` on small cases counted by hand."""

from collections.abc import Callable
from types import ModuleType

LoadBenchmark = Callable[[str], ModuleType]

STEP = """from ..model import net
from .loss import f


def g(x: Any) -> None:
    pass
"""
MODULES = {
    ("training", "__init__"): '"""The same as ever."""\n',
    ("training", "step"): STEP,
    ("training", "loss"): "from . import far\n\n\ndef f() -> int:\n    return 1\n",
    ("training", "far"): "def h() -> int:\n    from .loss import f\n    return f()\n",
    ("training", "alone"): "x: Any = 0\n",
    ("model", "__init__"): "",
    ("model", "net"): "",
}


def test_the_shape_of_a_package_is_counted(load_benchmark: LoadBenchmark) -> None:
    found = load_benchmark("structure").measures(MODULES)
    assert found["files"] == 7 and found["files in `training`"] == 5 and found["files in `model`"] == 2
    assert found["one step: modules of `training` imported by `step.py`, itself included"] == 2
    assert found["one step: modules of `training` reached"] == 4
    assert found["one step: their lines"] == 6 + 5 + 3 + 1
    assert found["circles of imports"] == 1
    assert found["annotations that are `Any` alone"] == 2
    assert (found["functions"], found["median function, lines"], found["functions over 40 lines"]) == (3, 2, 0)
    assert found["docstrings that lean on a neighbour"] == 1


def test_two_runs_differ_in_the_keys_that_differ_and_not_in_time(load_benchmark: LoadBenchmark) -> None:
    bits = load_benchmark("same_bits")
    one = [{"loss": 0.5, "time/step_s": 1.0}, {"loss": 0.25, "kl": 0.0}]
    assert bits.differences(one, [{"loss": 0.5, "time/step_s": 2.0}, {"loss": 0.25, "kl": 0.0}]) == {}
    found = bits.differences(one, [{"loss": 0.5}, {"loss": 0.25000001}, {}])
    assert found == {"step": (2, (2, 3)), "loss": (2, (0.25, 0.25000001)), "kl": (2, (0.0, None))}
    assert bits.count(one) == 3
