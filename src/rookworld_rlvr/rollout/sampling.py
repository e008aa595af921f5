"""Sampling of tokens: seeds, inverse distribution function, top-k, and drafts for speculative sampling.

The random numbers of a prompt depend only on its own seed. So its samples do not depend on the other prompts of a
batch, on the number of processes, or on earlier samples.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SEED_BYTES = 7
# Weight of a match relative to a match one token later. An endless run of matches sums to 1 / (1 - DECAY).
DECAY = 0.75
# Score from which a draft is likely to be right: about the last four tokens matched.
CONFIDENT_SCORE = 2.5
# Tokenizer of `recipes/tiny_model`: the character for square a1 in the token of a piece, and the first of the 128
# characters for a square and the side to move in a prompt.
SQUARE_MARK, PROMPT_MARK = 0xE000, 0xE200


def derive_seed(*parts: object) -> int:
    """Return a seed from 0 to 2**56 - 1, derived from the text of the parts.

    >>> derive_seed(0, 1) == derive_seed("0", "1") != derive_seed(1, 0)
    True
    """
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")


def uniform_numbers(seeds: Sequence[int], group_size: int, count: int, device: torch.device) -> Tensor:
    """Return (P, G, count) numbers in [0, 1), float32: `count` for each of `group_size` completions of each prompt.

    They are generated on the CPU, so that all devices sample alike.
    """
    numbers = [torch.rand(group_size, count, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(numbers).to(device)


def inverse_cdf(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Return tokens (…) sampled from distributions (…, V) with numbers (…) in [0, 1).

    The sums are in float64, so that a token of probability 0 is never sampled. NaN log-probs give an arbitrary token:
    an exception would end the process before the origin of the NaN could be reported.
    """
    sums = logprobs.exp().cumsum(-1, dtype=torch.float64)
    targets = uniform.unsqueeze(-1).double() * sums[..., -1:]
    return torch.searchsorted(sums, targets, right=True).squeeze(-1).clamp(max=logprobs.shape[-1] - 1)


def top_k_logprobs(scores: Tensor, top_k: int) -> Tensor:
    """Keep the scores (…, V) of the `top_k` most likely tokens and set the others to -inf; 0 keeps all scores.

    Of equal scores at the border, only as many are kept as `top_k` allows.
    """
    if not 0 < top_k < scores.shape[-1]:
        return scores
    kept = scores.topk(top_k, dim=-1)
    return torch.full_like(scores, -torch.inf).scatter(-1, kept.indices, kept.values)


def echo_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return, for each token id, the id of the token with which a completion repeats it.

    With the tokenizer of `recipes/tiny_model`, a piece on the board of a prompt has another token than on the board of
    a completion. All other tokens, and all tokens of other tokenizers, are repeated unchanged.
    """
    ids = tokenizer.get_vocab()
    echoes = list(range(max(ids.values()) + 1))
    for token, token_id in ids.items():
        if len(token) == 2 and 0 <= (mark := ord(token[1]) - PROMPT_MARK) < 128:
            echoes[token_id] = ids.get(token[0] + chr(SQUARE_MARK + mark % 64), token_id)
    return echoes


class PromptLookup:
    """Drafts looked up in the prompt for B completions, group by group; the model then checks them in one pass.

    An `A:` completion repeats its prompt's position except for the squares of a move. Each place in the prompt has a
    score for how well the tokens before it match the completion's latest tokens; older tokens count less. The draft is
    the tokens after the place with the highest score. Source: prompt lookup decoding,
    github.com/apoorvumang/prompt-lookup-decoding.

    Prompts are given as the tokens with which a completion repeats them, see `echo_ids`.
    """

    def __init__(self, prompts_PL: Tensor, real_PL: Tensor, group_size: int) -> None:
        self._prompts_BL = prompts_PL.masked_fill(~real_PL, -1).repeat_interleave(group_size, 0)
        # One place more than tokens: the last place is after the last token.
        self._scores_BL = torch.zeros(self._prompts_BL.shape[0], prompts_PL.shape[1] + 1, device=prompts_PL.device)

    def update(self, tokens_BT: Tensor, counts_B: Tensor) -> None:
        """Update the scores after the first `counts_B` of each row's tokens were added to its completion."""
        for t in range(tokens_BT.shape[1]):
            before_BL = self._scores_BL
            matched_BL = before_BL[:, :-1] * DECAY + (self._prompts_BL == tokens_BT[:, t : t + 1])
            self._scores_BL = torch.nn.functional.pad(matched_BL, (1, 0))
            if tokens_BT.shape[1] > 1:
                self._scores_BL = torch.where((t < counts_B)[:, None], self._scores_BL, before_BL)

    def is_confident_B(self) -> Tensor:
        """Return True for rows whose draft is likely to be right."""
        return self._scores_BL[:, :-1].amax(1) >= CONFIDENT_SCORE

    def drafts_BK(self, count: int) -> Tensor:
        """Return the tokens that follow each row's best place; arbitrary tokens after the prompt's end."""
        last = self._prompts_BL.shape[1] - 1
        places_B = self._scores_BL[:, :-1].argmax(1)
        places_BK = places_B[:, None] + torch.arange(count, device=places_B.device)
        return self._prompts_BL.gather(1, places_BK.clamp(max=last)).clamp(min=0)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self._prompts_BL, self._scores_BL = self._prompts_BL[rows], self._scores_BL[rows]
