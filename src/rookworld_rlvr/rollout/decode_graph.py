"""Decoding by CUDA graphs: our own generator, whose decode step is captured once and then replayed. Experimental.

Beside a small model most of a decode step is Python and the launches of some hundred kernels. A graph launches all of
them at once. It needs tensors of fixed shapes at fixed places, so the batch is in `DecodeBuffers`, and is rounded up to
a bucket: to a power of two of groups and of completions in a group, and to a multiple of tokens and slots. The step is
that of `DecodeBatch`, and the weights are read where they are, so that an update in place leaves the graphs valid.
Without CUDA the same step runs without a graph, which is slower than `NativeGenerator`: for tests alone.
"""

import math
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from .generator import Prompts, SampledCompletion
from .native_generator import PAGE, DecodeBatch, GroupLayout, NativeGenerator, PromptLayout

# Prompts are padded to a multiple of this number of tokens. Pads cost only memory reads.
PROMPT_STRIDE = 64
# Number of decode steps between two counts of the growing rows, for which Python waits.
STEPS_PER_COUNT = 8


class GraphGenerator(NativeGenerator):
    """`NativeGenerator` whose decode steps are CUDA graphs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `TrainerModelGenerator`."""
        super().__init__(*arguments, **options)
        self.buffers = DecodeBuffers()

    def _batch(self, temperature: float, top_k: int) -> "GraphBatch":
        self.buffers.drop_graphs_of_other_weights(self._model)
        return GraphBatch(self, temperature, top_k)


class DecodeBuffers:
    """Tensors by name that keep their places from batch to batch, and the graphs that were captured over them."""

    def __init__(self) -> None:
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        """Captured decode steps, by everything that is constant in a graph."""
        self._pool: Any = None
        self._flat: dict[str, Tensor] = {}
        self._weights: tuple[Hashable, ...] = ()

    def drop_graphs_of_other_weights(self, model: nn.Module) -> None:
        """Drop all graphs if a weight of the model is another tensor than before; changed values need nothing."""
        weights = places_of_weights(model)
        if weights != self._weights:
            self._drop_graphs()
            self._weights = weights

    def filled(self, name: str, values: Tensor) -> Tensor:
        """Return the buffer `name` as a tensor of the shape of `values`, which are copied into it."""
        return self._view(name, values.shape, values).copy_(values)

    def zeros(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the buffer `name` as zeros of this shape, with the type and the device of `like`."""
        return self._view(name, shape, like).zero_()

    def whole(self, name: str, values: Tensor) -> Tensor:
        """Return all rows of the buffer `name`, of which the first are those of `values` (N, …), copied into it.

        There may be more than N. A graph refers to all of them, so that it is valid for any N.
        """
        self.filled(name, values)
        return self._flat[name].view(-1, *values.shape[1:])

    def run(self, key: Hashable, step: Callable[[], None], count: int, device: torch.device) -> None:
        """Take `count` steps, on CUDA by replaying the graph of this key, after it was captured if there is none.

        Raises UserError if the step cannot be captured.
        """
        if device.type == "cuda" and key not in self.graphs:
            # A step without a graph, before the capture: the first call of some kernels must not be captured.
            step()
            count -= 1
            self.graphs[key] = self._captured(step, device)
        take = self.graphs[key].replay if device.type == "cuda" else step
        for _ in range(count):
            take()

    def _captured(self, step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Graphs share a pool for what they compute in between: they run one after the other and leave nothing there.
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # A cast weight that autocast had kept from before would be a copy that no update reaches.
        fresh_casts = torch.autocast(
            device.type,
            torch.get_autocast_dtype(device.type),
            enabled=torch.is_autocast_enabled(device.type),
            cache_enabled=False,
        )
        try:
            with fresh_casts, torch.cuda.graph(graph, pool=self._pool):
                step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"generator.cuda_graph: the decode step cannot be captured: {reason}") from error
        return graph

    def _view(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        size, flat = math.prod(shape), self._flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != like.dtype or flat.device != like.device:
            self._drop_graphs()
            self._flat.pop(name, None)
            del flat
            self._flat[name] = flat = torch.zeros(size, dtype=like.dtype, device=like.device)
        return flat[:size].view(shape)

    def _drop_graphs(self) -> None:
        self.graphs.clear()
        # A pool without graphs cannot be used again.
        self._pool = None


def places_of_weights(model: nn.Module) -> tuple[Hashable, ...]:
    """Return where each parameter and buffer of the model is, with its form: the same after updates in place."""
    held = chain(model.parameters(), model.buffers())
    return tuple((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) for tensor in held)


class GraphBatch(DecodeBatch):
    """`DecodeBatch` in buffers of fixed places, padded to its bucket with groups that have ended."""

    _layout: "StaticLayout"

    def __init__(self, generator: GraphGenerator, temperature: float, top_k: int) -> None:
        super().__init__(generator, temperature, top_k)
        self._buffers = generator.buffers

    def _begin(self, prompts: Prompts, uniform_PGT: Tensor) -> None:
        groups, *shape = uniform_PGT.shape
        missing, self._real = rounded_up(groups) - groups, groups * shape[0]
        super()._begin(
            [*prompts, *[prompts[-1]] * missing], torch.cat([uniform_PGT, uniform_PGT.new_zeros(missing, *shape)])
        )
        self._rows.growing_B[self._real :] = False
        self._count()
        self._tokens_BT = self._buffers.whole("tokens", self._tokens_BT)
        self._logprobs_BT = self._buffers.whole("logprobs", self._logprobs_BT)
        self._counts_B = self._buffers.whole("counts", self._counts_B)
        if self._temperature:
            self._uniform_BT = self._buffers.whole("uniform", self._uniform_BT)
        self._drawn_1 = self._buffers.filled("drawn", self._counts_B.new_full((1,), self._drawn))
        self._place_rows()

    def _group_layout(self, prompts: PromptLayout, real_PL: Tensor, group_size: int) -> "StaticLayout":
        return StaticLayout(prompts, real_PL, group_size=group_size, slots=self._limit, buffers=self._buffers)

    def _place_rows(self) -> None:
        for name in ("ids_B", "prompt_lengths_B", "newest_B", "growing_B"):
            setattr(self._rows, name, self._buffers.filled(name, getattr(self._rows, name)))

    def _advance(self) -> None:
        """Draw the next tokens of each row, some at a time."""
        layout, slot = self._layout, self._drawn - 1
        seen = layout.see_slots_after(slot)
        steps = min(STEPS_PER_COUNT, seen - slot, self._limit - self._drawn)
        key = (layout.groups, layout.group_size, layout.prompt_length, seen, self._temperature, self._top_k)
        self._buffers.run(key, self._static_step, steps, self._device)
        self._drawn += steps
        layout.used = self._drawn - 1
        self._count()

    def _static_step(self) -> None:
        """Draw the next token of each row. Everything that changes from step to step is in the buffers."""
        self._layout.write_to_slot(self._drawn_1 - 1)
        self._step(self._drawn_1)
        self._drawn_1 += 1

    def _needed(self) -> tuple[int, int]:
        groups, size = super()._needed()
        return rounded_up(groups), min(rounded_up(size), self._layout.group_size)

    def _compact(self) -> None:
        before = self._rows.ids_B
        super()._compact()
        if self._rows.ids_B is not before:
            self._place_rows()

    def _completions(self) -> list[SampledCompletion]:
        self._tokens_BT, self._logprobs_BT = self._tokens_BT[: self._real], self._logprobs_BT[: self._real]
        self._counts_B = self._counts_B[: self._real]
        return super()._completions()


class StaticLayout(GroupLayout):
    """`GroupLayout` in buffers of fixed places. A pass's slot is a tensor, and later slots are hidden by a bias."""

    def __init__(
        self, prompts: PromptLayout, real_PL: Tensor, *, group_size: int, slots: int, buffers: DecodeBuffers
    ) -> None:
        super().__init__(prompts, real_PL, group_size=group_size, slots=slots, first_slots=0)
        self._buffers, self._slots, self._seen = buffers, slots, 0
        pads = -real_PL.shape[1] % PROMPT_STRIDE
        self.prompt_length = real_PL.shape[1] + pads
        """Number of tokens of a prompt, with its pads."""
        for stored in (self._prompt_keys, self._prompt_values):
            stored[:] = [F.pad(tensor, (0, 0, 0, pads)) for tensor in stored]
        self._prompt_bias = F.pad(self._prompt_bias, (0, pads), value=-torch.inf)
        for name, stored in (("keys", self._keys), ("values", self._values)):
            # Zeros, because a hidden slot's value is multiplied by a weight of 0, and may be left from weights of NaN.
            stored[:] = [
                buffers.zeros(f"{name} {call}", (*empty.shape[:3], slots, empty.shape[4]), empty)
                for call, empty in enumerate(stored)
            ]
        self._place_prompts()

    def see_slots_after(self, slot: int) -> int:
        """Let passes attend to whole pages of slots that include `slot`, and return their number of slots."""
        self._seen = min((slot // PAGE + 1) * PAGE, self._most_slots)
        return self._seen

    def write_to_slot(self, slot_1: Tensor) -> None:
        """Set the slot of the next pass's tokens, a tensor (1,)."""
        self._slot_1, self._call = slot_1, 0
        hidden_S = torch.arange(self._seen, device=slot_1.device) > slot_1
        self._own_bias = torch.zeros(self._seen, device=slot_1.device).masked_fill_(hidden_S, -torch.inf)

    def _write(self, buffer: Tensor, new_BKTD: Tensor) -> Tensor:
        new = new_BKTD.unflatten(0, (self.groups, self.group_size)).transpose(1, 2)
        buffer.index_copy_(3, self._slot_1, new.to(buffer.dtype))
        return buffer[..., : self._seen, :]

    def keep(self, groups_P: Tensor, rows_PG: Tensor) -> None:
        super().keep(groups_P, rows_PG)
        for name, stored in (("keys", self._keys), ("values", self._values)):
            stored[:] = [self._buffers.filled(f"{name} {call}", tensor) for call, tensor in enumerate(stored)]
        self._place_prompts()

    def _place_prompts(self) -> None:
        for name, stored in (("prompt keys", self._prompt_keys), ("prompt values", self._prompt_values)):
            stored[:] = [self._buffers.filled(f"{name} {call}", tensor) for call, tensor in enumerate(stored)]
        self._prompt_bias = self._buffers.filled("prompt bias", self._prompt_bias)


def rounded_up(count: int) -> int:
    """Return the smallest power of two that is at least `count`; 0 for 0.

    >>> [rounded_up(count) for count in (0, 1, 5, 8)]
    [0, 1, 8, 8]
    """
    return 1 << (count - 1).bit_length() if count else 0
