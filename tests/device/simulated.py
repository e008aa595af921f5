"""A simulated accelerator: tensors on `sim:0` wrap CPU tensors, and every operation on them is intercepted.

It finds errors that a GPU would show: tensors of two devices in one operation, values that Python reads (each a wait
for the device), and factory calls without a device. It does not simulate bf16, real kernels, memory or streams. The
design follows `torch/testing/_internal/two_tensor.py`, a subclass of torch.Tensor that wraps tensors.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "sim"
aten = torch.ops.aten
# Operations that may mix tensors of both devices: copies between them, and indexing by a CPU tensor.
BETWEEN = (aten.copy_.default, aten._to_copy.default)
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


class SimTensor(torch.Tensor):
    """A tensor that reports the simulated device as its own; `held` has the values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "SimTensor":
        made: SimTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"SimTensor({self.held!r})"

    def tolist(self) -> Any:
        """Return the values as lists and count one wait. torch refuses `tolist` for subclasses."""
        Simulated.waits += 1
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Simulated.run(func, args, kwargs or {})


class Simulated(TorchDispatchMode):
    """A mode that also intercepts factory calls, which have no tensor argument."""

    waits = 0
    """Number of values that were read from the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Simulated.run(func, args, kwargs or {})

    @classmethod
    def run(cls, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        flat, _ = tree_flatten((args, kwargs))
        sims = [value for value in flat if isinstance(value, SimTensor)]
        on_cpu = [v for v in flat if isinstance(v, torch.Tensor) and not isinstance(v, SimTensor) and v.dim() > 0]
        indexed = func in INDEXING and isinstance(args[0], SimTensor)
        if sims and on_cpu and func not in BETWEEN and not indexed:
            raise RuntimeError(f"expected all tensors on one device, found {NAME}:0 and cpu, in {func}")
        if func is aten._local_scalar_dense.default and sims:
            cls.waits += 1
        wanted = kwargs.get("device")
        here = torch.device(wanted).type == NAME if wanted is not None else bool(sims)
        if func is aten.copy_.default:
            here = isinstance(args[0], SimTensor)
        if func is aten._to_copy.default and sims and not here:
            cls.waits += 1
        given = {name: torch.device("cpu") if name == "device" and here else value for name, value in kwargs.items()}
        result = func(*tree_map(_held, args), **tree_map(_held, given))
        same = {id(sim.held): sim for sim in sims}
        return tree_map(lambda value: _wrapped(value, same, here), result)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, SimTensor) else value


def _wrapped(value: Any, same: dict[int, SimTensor], here: bool) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, SimTensor):
        return value
    # An operation in place returns the tensor that it was given.
    return same[id(value)] if id(value) in same else SimTensor(value) if here else value


def _backend() -> ModuleType:
    module = ModuleType(f"torch.{NAME}")
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "get_amp_supported_dtype": lambda: [torch.bfloat16],
        "manual_seed_all": lambda _seed: None,
        "synchronize": lambda _device=None: None,
        # Random numbers come from the CPU's generator.
        "get_rng_state": lambda _device=0: torch.get_rng_state(),
        "set_rng_state": lambda state, _device=0: torch.set_rng_state(state),
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module


def _register() -> None:
    from torch.utils import backend_registration

    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_backend())
    library = torch.library.Library("aten", "IMPL")
    kernels: dict[str, Callable[..., Any]] = {
        "empty_strided": lambda *sizes, **given: SimTensor(torch.empty_strided(*sizes, dtype=given.get("dtype"))),
        "empty.memory_format": lambda size, **given: SimTensor(torch.empty(size, dtype=given.get("dtype"))),
        "_copy_from": _copy_from,
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "PrivateUse1")
    # The kernels are unregistered when the library is deleted.
    _kept.append(library)


_kept: list[Any] = []


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _held(target).copy_(_held(source), non_blocking)
    return target


def main(arguments: list[str]) -> int:
    """Run `rookworld` with these arguments and its models on the simulated device.

    Prints how often Python waited for the device in each step. This needs its own process, because torch counts the
    devices only once, at the first backward pass.
    """
    from rookworld_rlvr.app import build
    from rookworld_rlvr.app.cli import main as rookworld
    from rookworld_rlvr.training import loop

    step_alone = loop.grpo_step

    def step_counted(*given: Any) -> Any:
        before = Simulated.waits
        report = step_alone(*given)
        print(f"a step waited {Simulated.waits - before} times")
        return report

    loop.grpo_step = step_counted
    try:
        _register()
    except (AttributeError, ImportError, RuntimeError) as error:
        print(f"SKIP: torch {torch.__version__} lacks the hook for a device written in python: {error}")
        return 0
    # With this setting a module's tied weights stay tied when it is moved.
    torch.__future__.set_swap_module_params_on_conversion(True)
    build.select_device = lambda _requested, _local_rank=None: torch.device(NAME, 0)
    with Simulated():
        return rookworld(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
