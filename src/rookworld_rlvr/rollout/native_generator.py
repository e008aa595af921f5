"""Our own fast generator for groups of short completions of short prompts, with the trainer's own model.

A prompt is computed once for its group, keys and values are in preallocated buffers, and finished completions leave
the batch. Each completion samples with its own uniform numbers, one for each token, by the inverse of the distribution
function. Apart from rounding, the sampled tokens depend neither on the batch nor on later samples.

The file has the generator, the batch of completions that grow together, and the layouts, with which the model's
attention keeps the keys and values of prompts and completions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.batch import padded, position_ids
from ..model.device import cores, map_on_cores
from ..model.sharded import is_sharded
from ..model.shared_prefix import attend_shared, attention_bias, sharing, states
from .generator import Prompts, SampledCompletion, TrainerModelGenerator, room_for
from .sampling import inverse_cdf, top_k_logprobs

# The batch is made smaller once at most this fraction of its rows would be left.
COMPACT_BELOW = 0.75
# Minimum number of completions per core: threads with little to compute mostly wait for Python and each other.
ROWS_PER_CORE = 24
# Pads cost time only in the pass over the prompts. Later passes cost almost the same for few rows as for many.
MOST_PADDING = 128
# Number of slots by which the buffers of keys and values grow: most completions need only half of the maximum length.
PAGE = 48


@dataclass(slots=True)
class Rows:
    """The completions in the batch, group by group."""

    ids_B: Tensor
    """Row of each completion in the tensors of all completions, see `DecodeBatch`."""
    prompt_lengths_B: Tensor
    newest_B: Tensor
    """The token drawn last."""
    growing_B: Tensor
    """False once a completion has ended, by itself or by the limit."""

    def keep(self, rows: Tensor) -> None:
        self.ids_B, self.prompt_lengths_B = self.ids_B[rows], self.prompt_lengths_B[rows]
        self.newest_B, self.growing_B = self.newest_B[rows], self.growing_B[rows]


class NativeGenerator(TrainerModelGenerator):
    """Our own generator, see `Generator`. The model must be able to share prompts, see `Policy.shares`."""

    _shares_prompts = True

    def _most_padding(self, _prompts: Prompts) -> int:
        return MOST_PADDING

    def _sample(self, prompts: Prompts, uniform_PGT: Tensor, temperature: float, top_k: int) -> list[SampledCompletion]:
        """See `TrainerModelGenerator._sample`. On a CPU the prompts are divided among the cores."""
        device, group_size = uniform_PGT.device, uniform_PGT.shape[1]

        @torch.no_grad()
        def complete(part: slice) -> list[SampledCompletion]:
            with self._autocast(), sharing(self._model):
                return self._batch(temperature, top_k).complete(prompts[part], uniform_PGT[part])

        enough = max(1, len(prompts) * group_size // ROWS_PER_CORE)
        # Threads cannot share a sharded model, whose gathered weights the first pass to end would free.
        count = 1 if is_sharded(self._model) else min(cores(device), len(prompts), enough)
        bounds = [len(prompts) * number // count for number in range(count + 1)]
        parts = map_on_cores(complete, [slice(*ends) for ends in pairwise(bounds)], device)
        return [completion for part in parts for completion in part]

    def _batch(self, temperature: float, top_k: int) -> "DecodeBatch":
        return DecodeBatch(self, temperature, top_k)


class DecodeBatch:
    """Completions that are generated together.

    A row is a completion that still grows; its `ids_B` is its place in `_tokens_BT`, `_logprobs_BT`, `_counts_B` (its
    number of tokens) and `_uniform_BT` (its numbers in [0, 1); no columns for greedy decoding). These hold all
    completions, also when `_compact` has dropped rows that have ended. All growing rows have the same number of tokens,
    `_drawn`, and the keys and values of one less, because the newest token is the input of the next pass. An ended row
    that is still in the batch draws further tokens, which do not count.
    """

    def __init__(self, generator: NativeGenerator, temperature: float, top_k: int) -> None:
        self._model, self._drawn = generator._model, 0
        self._eos_id, self._pad_id = generator._eos_id, generator._pad_id
        self._temperature, self._top_k = temperature, top_k
        self._limit = generator._config.max_new_tokens
        self._positions = generator._positions
        self._device = next(self._model.parameters()).device

    def complete(self, prompts: Prompts, uniform_PGT: Tensor) -> list[SampledCompletion]:
        """Return G completions of each prompt, each drawn with T uniform numbers of its own."""
        self._begin(prompts, uniform_PGT)
        while self._growing:
            self._advance()
            self._compact()
        return self._completions()

    def _begin(self, prompts: Prompts, uniform_PGT: Tensor) -> None:
        """Compute the prompts and draw every completion's first token."""
        group_size = uniform_PGT.shape[1]
        tokens_PL, attention_PL = padded(prompts, self._pad_id, self._device, "right")
        lengths_P = attention_PL.sum(1)
        # Only a check: a shorter prompt has more room than the longest one.
        room_for(int(lengths_P.max()), self._positions, self._limit)
        layout = PromptLayout()
        states_PLE = states(self._model, tokens_PL, position_ids(attention_PL), layout)
        last_PE = states_PLE[torch.arange(len(prompts), device=self._device), lengths_P - 1]

        rows = len(prompts) * group_size
        self._tokens_BT = torch.zeros(rows, self._limit, dtype=torch.long, device=self._device)
        self._logprobs_BT = torch.zeros(rows, self._limit, device=self._device)
        self._uniform_BT = uniform_PGT.flatten(0, 1)
        self._counts_B = torch.zeros(rows, dtype=torch.long, device=self._device)
        self._rows = Rows(
            ids_B=torch.arange(rows, device=self._device),
            prompt_lengths_B=lengths_P.repeat_interleave(group_size),
            newest_B=torch.zeros(rows, dtype=torch.long, device=self._device),
            growing_B=torch.ones(rows, dtype=torch.bool, device=self._device),
        )
        self._layout = self._group_layout(layout, attention_PL.bool(), group_size)
        self._draw(last_PE.repeat_interleave(group_size, 0), 0)
        self._drawn = 1
        self._count()

    def _group_layout(self, prompts: "PromptLayout", real_PL: Tensor, group_size: int) -> "GroupLayout":
        return GroupLayout(prompts, real_PL, group_size=group_size, slots=self._limit)

    def _advance(self) -> None:
        """Draw the next token of each row."""
        self._layout.write_to(self._drawn - 1)
        self._step(self._drawn)
        self._drawn += 1
        self._count()

    def _step(self, drawn: int | Tensor) -> None:
        """Run the model over each row's newest token, and draw the next one.

        `drawn` is the number of tokens drawn so far, also as a tensor (1,). All results are written in place.
        """
        positions_B = (self._rows.prompt_lengths_B + (drawn - 1)).clamp(max=self._positions - 1)
        states_B1E = states(self._model, self._rows.newest_B[:, None], positions_B[:, None], self._layout)
        self._draw(states_B1E.squeeze(1), drawn)

    def _draw(self, states_BE: Tensor, drawn: int | Tensor) -> None:
        """Draw the token that follows each row's state, each with its own number, and add it to the row."""
        rows = self._rows
        logits_BV = self._model.get_output_embeddings()(states_BE).float()
        logprobs_BV = torch.log_softmax(logits_BV / (self._temperature or 1.0), -1)
        if self._temperature:
            uniform_B = self._uniform_BT[rows.ids_B, drawn]
            drawn_B = inverse_cdf(top_k_logprobs(logprobs_BV, self._top_k), uniform_B)
        else:
            drawn_B = logprobs_BV.argmax(-1)
        rows.newest_B.copy_(drawn_B)
        self._tokens_BT[rows.ids_B, drawn] = drawn_B
        self._logprobs_BT[rows.ids_B, drawn] = logprobs_BV.gather(-1, drawn_B[:, None]).squeeze(-1)
        self._counts_B[rows.ids_B] += rows.growing_B
        room_B = (self._positions - rows.prompt_lengths_B).clamp(max=self._limit)
        rows.growing_B &= (drawn_B != self._eos_id) & (drawn + 1 < room_B)

    def _count(self) -> None:
        """Count the growing rows, the groups that have one, and the most in a group, in one transfer from the device.

        The Python loop needs these numbers to continue.
        """
        left_P = self._rows.growing_B.view(self._layout.groups, self._layout.group_size).sum(1)
        counts = torch.stack([left_P.sum(), (left_P > 0).sum(), left_P.max()]).tolist()
        self._growing, self._growing_groups, self._most_growing = counts

    def _compact(self) -> None:
        """Drop groups that have ended, and shrink the others to the largest number of growing rows in a group."""
        growing_PG = self._rows.growing_B.view(self._layout.groups, self._layout.group_size)
        groups, size = self._needed()
        if not 0 < groups * size <= COMPACT_BELOW * growing_PG.numel():
            return
        # Growing groups and rows first, each in their order.
        groups_P = growing_PG.any(1).int().argsort(descending=True, stable=True)[:groups]
        rows_PG = growing_PG[groups_P].int().argsort(dim=1, descending=True, stable=True)[:, :size]
        rows = (groups_P[:, None] * self._layout.group_size + rows_PG).flatten()
        self._layout.keep(groups_P, rows_PG)
        self._rows.keep(rows)

    def _needed(self) -> tuple[int, int]:
        """Return the number of groups, and of rows in each, that hold all growing rows; 0 if no row grows."""
        return self._growing_groups, self._most_growing

    def _completions(self) -> list[SampledCompletion]:
        columns = [values.tolist() for values in (self._tokens_BT, self._logprobs_BT, self._counts_B)]
        return [
            SampledCompletion(tuple(tokens[:count]), tuple(logprobs[:count]), tokens[count - 1] == self._eos_id)
            for tokens, logprobs, count in zip(*columns, strict=True)
        ]


class PromptLayout:
    """Layout of a pass over right-padded prompts (P, L), whose keys and values are kept."""

    def __init__(self) -> None:
        self.keys_PKLD: list[Tensor] = []
        """One tensor per call of attention in a pass; some models have several calls per layer."""
        self.values_PKLD: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.keys_PKLD.append(key.contiguous())
        self.values_PKLD.append(value.contiguous())
        # A pad follows its prompt, so that no token of a prompt sees one.
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return mixed.transpose(1, 2)


class GroupLayout:
    """Layout of a pass over the newest tokens (P·G, 1) of G completions of each of P prompts.

    Slots are numbered from a completion's first token. A token sees its prompt and the slots up to its own.
    """

    _own_bias: Tensor | None = None
    """Bias (S,) that hides slots; None if all of them are seen."""

    def __init__(
        self, prompts: PromptLayout, real_PL: Tensor, *, group_size: int, slots: int, first_slots: int = PAGE
    ) -> None:
        """Make buffers of `first_slots` slots at first, which grow to at most `slots`."""
        self.groups, self.group_size, self._most_slots = len(real_PL), group_size, slots
        self._slots, self.used = min(first_slots, slots), 0
        """Number of slots in the buffers, and of those that are filled."""
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
        self.used, self._call = slot + 1, 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        call, self._call = self._call, self._call + 1
        keys, values = self._write(self._keys[call], key), self._write(self._values[call], value)
        prompt = (self._prompt_keys[call], self._prompt_values[call], self._prompt_bias)
        grouped = query.view(self.groups, self.group_size, *query.shape[1:])
        return attend_shared(grouped, prompt, (keys, values, self._own_bias), scaling).flatten(0, 1)

    def _write(self, buffer: Tensor, new_BKTD: Tensor) -> Tensor:
        new = new_BKTD.unflatten(0, (self.groups, self.group_size)).transpose(1, 2)
        buffer[..., self.used - 1 : self.used, :] = new
        return buffer[..., : self.used, :]

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
                kept = chosen(buffer[..., : self.used, :])
                buffers[layer] = F.pad(kept, (0, 0, 0, self._slots - self.used))
