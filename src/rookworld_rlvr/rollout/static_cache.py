"""Keys and values of prompts and of their growing completions, in preallocated buffers."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from ..model.shared_prefix import attend_prompts, attend_shared, attention_bias

# Number of slots by which buffers grow: most completions need only half of the maximum length.
PAGE = 48


class PromptLayout:
    """Layout of a pass over right-padded prompts (P, L), whose keys and values are kept."""

    def __init__(self) -> None:
        self.keys_PKLD: list[Tensor] = []
        """One tensor per call of attention in a pass; some models have several calls per layer."""
        self.values_PKLD: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.keys_PKLD.append(key.contiguous())
        self.values_PKLD.append(value.contiguous())
        return attend_prompts(query, key, value, scaling)


class GroupLayout:
    """Layout of a pass over the newest tokens (P·G, 1) of G completions of each of P prompts.

    Slots are numbered from a completion's first token. A token sees its prompt and the slots up to its own.
    """

    def __init__(self, prompts: PromptLayout, real_PL: Tensor, *, group_size: int, slots: int) -> None:
        self.groups, self.group_size, self._most_slots = len(real_PL), group_size, slots
        self._slots, self._used = min(PAGE, slots), 0
        self._prompt_keys, self._prompt_values = prompts.keys_PKLD, prompts.values_PKLD
        self._prompt_bias = attention_bias(real_PL)[:, None, None, None, None, :]
        groups, key_heads, _, width = prompts.keys_PKLD[0].shape
        shape = (groups, key_heads, group_size, self._slots, width)
        # One buffer per call of attention, for keys and for values.
        self._keys, self._values = ([states.new_empty(shape) for states in prompts.keys_PKLD] for _ in range(2))

    def write_to(self, slot: int) -> None:
        """Set the slot of the next pass's tokens."""
        if slot >= self._slots:
            self._slots = min(self._slots + PAGE, self._most_slots)
            self._resize_buffers(lambda filled: filled)
        self._used, self._call = slot + 1, 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        call, self._call = self._call, self._call + 1
        keys, values = self._write(self._keys[call], key), self._write(self._values[call], value)
        prompt = (self._prompt_keys[call], self._prompt_values[call], self._prompt_bias)
        grouped = query.view(self.groups, self.group_size, *query.shape[1:])
        return attend_shared(grouped, prompt, (keys, values), scaling).flatten(0, 1)

    def _write(self, buffer: Tensor, new_BKTD: Tensor) -> Tensor:
        new = new_BKTD.unflatten(0, (self.groups, self.group_size)).transpose(1, 2)
        buffer[..., self._used - 1 : self._used, :] = new
        return buffer[..., : self._used, :]

    def keep(self, groups_P: Tensor, rows_PG: Tensor) -> None:
        """Keep only these completions of these groups and free the memory of the others."""
        self.groups, self.group_size = rows_PG.shape
        for stored in (self._prompt_keys, self._prompt_values):
            stored[:] = [tensor[groups_P] for tensor in stored]
        self._prompt_bias = self._prompt_bias[groups_P]
        self._resize_buffers(lambda filled: filled.transpose(1, 2)[groups_P[:, None], rows_PG].transpose(1, 2))

    def _resize_buffers(self, chosen: Callable[[Tensor], Tensor]) -> None:
        """Copy the selected cache entries (P, K, G, S, D) into resized buffers."""
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                kept = chosen(buffer[..., : self._used, :])
                buffers[layer] = F.pad(kept, (0, 0, 0, self._slots - self._used))
