"""Fast generator for groups of short completions of short prompts, with the trainer's own model.

A prompt is computed once for its group, keys and values are in preallocated buffers, and finished completions leave
the batch. Each completion samples with its own uniform numbers, one for each token, by the inverse of the distribution
function. Apart from rounding, the sampled tokens depend neither on the batch nor on later samples.

Drafts: a pass may check a guess of the next tokens (`sampling.PromptLookup`). Every position samples its token as
usual. As long as the sampled token equals the guessed token, the sample of the next position counts too. The tokens
are the same as if they were sampled one by one, so the guess changes only the speed. This is speculative sampling
(arXiv 2211.17192) with a deterministic draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.batch import padded, position_ids
from ..model.device import cores, is_accelerator, map_on_cores
from ..model.sharded import is_sharded
from ..model.shared_prefix import sharing, states
from .generator import GeneratorBaseConfig, PromptLengthError, Prompts, SampledCompletion, TrainerModelGenerator
from .sampling import PromptLookup, inverse_cdf, top_k_logprobs
from .static_cache import GroupLayout, PromptLayout

# Number of tokens that a pass computes at little more than the cost of one per row; drafts fill it up.
PASS_TOKENS, ACCELERATOR_PASS_TOKENS = 256, 2048
# The batch is made smaller once at most this fraction of its rows would be left.
COMPACT_BELOW = 0.75
# Minimum number of completions per core: threads with little to compute mostly wait for Python and each other.
ROWS_PER_CORE = 24
# Pads cost time only in the pass over the prompts. Later passes cost almost the same for few rows as for many.
MOST_PADDING = 128


@dataclass(slots=True)
class _Rows:
    """The completions in the batch, group by group."""

    ids_B: Tensor
    """Row of each completion in `_SampledTokens`."""
    prompt_lengths_B: Tensor
    counts_B: Tensor
    """Number of tokens drawn so far."""
    newest_B: Tensor
    """The token drawn last."""
    growing_B: Tensor
    """False once a completion has ended, by itself or by the limit."""

    def keep(self, rows: Tensor) -> None:
        self.ids_B, self.prompt_lengths_B, self.counts_B = (
            values[rows] for values in (self.ids_B, self.prompt_lengths_B, self.counts_B)
        )
        self.newest_B, self.growing_B = self.newest_B[rows], self.growing_B[rows]


@dataclass(frozen=True, slots=True)
class _SampledTokens:
    """Tokens of all completions, including those that left the batch, and their uniform numbers."""

    tokens_BT: Tensor
    logprobs_BT: Tensor
    uniform_BT: Tensor
    """In [0, 1), float32; no columns for greedy decoding."""
    counts_B: Tensor
    """Number of tokens of each completion."""


@dataclass(frozen=True, slots=True)
class _BatchCounts:
    """Counts that the Python loop needs to continue, read from the device in one transfer."""

    growing: int
    """Number of rows that have not ended."""
    longest: int
    """Largest number of tokens of a row, including ended rows."""
    shortest: int
    groups: int
    """Number of groups with a growing row."""
    fullest: int
    """Largest number of growing rows in a group."""
    confident: int
    """Number of growing rows whose draft is likely to be right."""


class StaticGenerator(TrainerModelGenerator):
    """The fast generator, see `Generator`. The model must be able to share prompts, see `Policy.shares`."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: GeneratorBaseConfig,
        *,
        echo_ids: Sequence[int] | None = None,
        **others: Any,
    ) -> None:
        """Create a generator. `echo_ids` lists the token that repeats each token id in a completion; None: the same."""
        super().__init__(model, config, **others)
        self._echo_ids = None if echo_ids is None else torch.tensor(echo_ids)

    def _most_padding(self, _prompts: Prompts) -> int:
        return MOST_PADDING

    def _sample(self, prompts: Prompts, uniform_PGT: Tensor, temperature: float, top_k: int) -> list[SampledCompletion]:
        """See `TrainerModelGenerator._sample`. On a CPU the prompts are divided among the cores."""
        device, group_size = uniform_PGT.device, uniform_PGT.shape[1]

        @torch.no_grad()
        def complete(part: slice) -> list[SampledCompletion]:
            with self._autocast(), sharing(self._model):
                return _Batch(self, temperature, top_k).complete(prompts[part], uniform_PGT[part])

        enough = max(1, len(prompts) * group_size // ROWS_PER_CORE)
        # Threads cannot share a sharded model, whose gathered weights the first pass to end would free.
        count = 1 if is_sharded(self._model) else min(cores(device), len(prompts), enough)
        bounds = [len(prompts) * number // count for number in range(count + 1)]
        parts = map_on_cores(complete, [slice(*ends) for ends in pairwise(bounds)], device)
        return [completion for part in parts for completion in part]


class _Batch:
    """Completions that are generated together.

    A row is a completion that still grows; its `ids_B` is its place in `_sampled`, where its tokens are collected, and
    stays the same when `_compact` drops rows that have ended. A row with n tokens has the keys and values of n - 1 of
    them, because the newest token is the input of the next pass.
    """

    def __init__(self, generator: StaticGenerator, temperature: float, top_k: int) -> None:
        self._model, self._echo_ids = generator._model, generator._echo_ids
        self._eos_id, self._pad_id = generator._eos_id, generator._pad_id
        self._temperature, self._top_k = temperature, top_k
        self._most_drafts = generator._config.draft_tokens
        self._limit = generator._config.max_new_tokens
        self._positions = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        self._device = next(self._model.parameters()).device
        self._pass_tokens = ACCELERATOR_PASS_TOKENS if is_accelerator(self._device) else PASS_TOKENS

    def complete(self, prompts: Prompts, uniform_PGT: Tensor) -> list[SampledCompletion]:
        """Return G completions of each prompt, each drawn with T uniform numbers of its own."""
        self._begin(prompts, uniform_PGT)
        while self._counts.growing:
            self._advance()
            self._compact()
        return self._completions()

    def _begin(self, prompts: Prompts, uniform_PGT: Tensor) -> None:
        """Compute the prompts and draw every completion's first token."""
        group_size = uniform_PGT.shape[1]
        tokens_PL, attention_PL = padded(prompts, self._pad_id, self._device, "right")
        lengths_P = attention_PL.sum(1)
        if int(lengths_P.max()) >= self._positions:
            raise PromptLengthError(self._positions, int(lengths_P.max()))
        layout = PromptLayout()
        states_PLE = states(self._model, tokens_PL, position_ids(attention_PL), layout)
        last_PE = states_PLE[torch.arange(len(prompts), device=self._device), lengths_P - 1]

        rows, slots = len(prompts) * group_size, self._limit + self._most_drafts
        self._sampled = _SampledTokens(
            torch.zeros(rows, slots + 1, dtype=torch.long, device=self._device),
            torch.zeros(rows, slots + 1, device=self._device),
            uniform_PGT.flatten(0, 1),
            torch.zeros(rows, dtype=torch.long, device=self._device),
        )
        self._rows = _Rows(
            ids_B=torch.arange(rows, device=self._device),
            prompt_lengths_B=lengths_P.repeat_interleave(group_size),
            counts_B=torch.zeros(rows, dtype=torch.long, device=self._device),
            newest_B=torch.zeros(rows, dtype=torch.long, device=self._device),
            growing_B=torch.ones(rows, dtype=torch.bool, device=self._device),
        )
        real_PL = attention_PL.bool()
        self._layout = GroupLayout(layout, real_PL, group_size=group_size, slots=slots)
        if self._echo_ids is not None:
            tokens_PL = self._echo_ids.to(tokens_PL.device)[tokens_PL]
        self._lookup = PromptLookup(tokens_PL, real_PL, group_size)
        self._add(self._draw(last_PE.repeat_interleave(group_size, 0).unsqueeze(1)), drafts_BK=None)

    def _advance(self) -> None:
        """Run the model once over each row's newest token and its draft."""
        rows = self._rows
        drafts_BK = self._drafts()
        newest_BT = rows.newest_B[:, None] if drafts_BK is None else torch.cat([rows.newest_B[:, None], drafts_BK], 1)
        slots_BT = (rows.counts_B - 1)[:, None] + torch.arange(newest_BT.shape[1], device=self._device)
        positions_BT = (rows.prompt_lengths_B[:, None] + slots_BT).clamp(max=self._positions - 1)
        used = self._counts.longest - 1 + newest_BT.shape[1]
        self._layout.write_to(slots_BT, used=used, alike=self._counts.longest == self._counts.shortest)
        self._add(self._draw(states(self._model, newest_BT, positions_BT, self._layout)), drafts_BK)

    def _drafts(self) -> Tensor | None:
        """Return as many drafted tokens as fit into the pass; None if none fit or if most drafts are unlikely."""
        count = min(self._most_drafts, self._pass_tokens // len(self._rows.growing_B) - 1)
        if count < 1 or 2 * self._counts.confident < self._counts.growing:
            return None
        return self._lookup.drafts_BK(count)

    def _draw(self, states_BTE: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the tokens (B, T) that follow the states, each with its own number; return them and their log-probs."""
        logits_BTV = self._model.get_output_embeddings()(states_BTE).float()
        logprobs_BTV = torch.log_softmax(logits_BTV / (self._temperature or 1.0), -1)
        if self._temperature:
            at_BT = self._rows.counts_B[:, None] + torch.arange(states_BTE.shape[1], device=self._device)
            uniform_BT = self._sampled.uniform_BT[self._rows.ids_B[:, None], at_BT.clamp(max=self._limit - 1)]
            tokens_BT = inverse_cdf(top_k_logprobs(logprobs_BTV, self._top_k), uniform_BT)
        else:
            tokens_BT = logprobs_BTV.argmax(-1)
        return tokens_BT, logprobs_BTV.gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1)

    def _add(self, drawn: tuple[Tensor, Tensor], drafts_BK: Tensor | None) -> None:
        """Add the drawn tokens that count: those whose predecessors were all drafted correctly."""
        tokens_BT, logprobs_BT = drawn
        rows, at_T = self._rows, torch.arange(tokens_BT.shape[1], device=self._device)
        right_BT = torch.ones_like(tokens_BT)
        if drafts_BK is not None:
            guessed_BK = (tokens_BT[:, :-1] == drafts_BK) & (drafts_BK != self._eos_id)
            right_BT[:, 1:] = guessed_BK.cumprod(1)
        room_B = torch.minimum(self._positions - rows.prompt_lengths_B, rows.counts_B.new_tensor(self._limit))
        added_B = torch.minimum(right_BT.sum(1), room_B - rows.counts_B) * rows.growing_B
        # Tokens that do not count are written too, and are later overwritten or never read.
        where = (rows.ids_B[:, None], rows.counts_B[:, None] + at_T)
        self._sampled.tokens_BT[where], self._sampled.logprobs_BT[where] = tokens_BT, logprobs_BT
        rows.newest_B = tokens_BT.gather(1, (added_B - 1).clamp(min=0)[:, None]).squeeze(1)
        rows.counts_B = rows.counts_B + added_B
        rows.growing_B = rows.growing_B & (rows.newest_B != self._eos_id) & (rows.counts_B < room_B)
        self._sampled.counts_B[rows.ids_B] = rows.counts_B
        self._lookup.update(tokens_BT, added_B)
        self._counts = self._read()

    def _read(self) -> _BatchCounts:
        counts_B, growing_B = self._rows.counts_B, self._rows.growing_B
        left_P = growing_B.view(self._layout.groups, self._layout.group_size).sum(1)
        of_rows = left_P.sum(), counts_B.max(), counts_B.min()
        confident = (self._lookup.is_confident_B() & growing_B).sum()
        return _BatchCounts(*torch.stack([*of_rows, (left_P > 0).sum(), left_P.max(), confident]).tolist())

    def _compact(self) -> None:
        """Drop groups that have ended, and shrink the others to the largest number of growing rows in a group."""
        growing_PG, size = self._rows.growing_B.view(self._layout.groups, self._layout.group_size), self._counts.fullest
        if not 0 < self._counts.groups * size <= COMPACT_BELOW * growing_PG.numel():
            return
        groups_P = growing_PG.any(1).nonzero().squeeze(1)
        rows_PG = growing_PG[groups_P].int().argsort(dim=1, descending=True, stable=True)[:, :size]
        rows = (groups_P[:, None] * self._layout.group_size + rows_PG).flatten()
        self._layout.keep(groups_P, rows_PG)
        self._lookup.keep(rows)
        self._rows.keep(rows)
        self._counts = self._read()

    def _completions(self) -> list[SampledCompletion]:
        columns = [
            values.tolist() for values in (self._sampled.tokens_BT, self._sampled.logprobs_BT, self._sampled.counts_B)
        ]
        return [
            SampledCompletion(tuple(tokens[:count]), tuple(logprobs[:count]), tokens[count - 1] == self._eos_id)
            for tokens, logprobs, count in zip(*columns, strict=True)
        ]
