"""Drafts looked up in the prompt: a guess of a completion's next tokens, for the model to check in one pass.

An `A:` answer repeats its prompt's position except for the squares of a move. Each place in the prompt has a score
for how well the tokens before it match the completion's latest tokens; older tokens count less. The draft is the
tokens after the best place. A square that differs lowers the score of its place. A search for the last few tokens
would lose the place there (prompt lookup decoding: github.com/apoorvumang/prompt-lookup-decoding).
"""

import torch
from torch import Tensor

# Weight of a match relative to the match one token later; an endless run of matches sums to 1 / (1 - DECAY).
DECAY = 0.75
# About the last four tokens matched.
SURE = 2.5


class PromptLookup:
    """Drafts for B completions, group by group. Prompts are given as the tokens by which an answer repeats them."""

    def __init__(self, prompts_PL: Tensor, real_PL: Tensor, group_size: int) -> None:
        self._prompts_BL = prompts_PL.masked_fill(~real_PL, -1).repeat_interleave(group_size, 0)
        # One place more than tokens: behind the last nothing follows.
        self._scores_BL = torch.zeros(self._prompts_BL.shape[0], prompts_PL.shape[1] + 1, device=prompts_PL.device)

    def see(self, tokens_BT: Tensor, counts_B: Tensor) -> None:
        """The first `counts_B` of each row's tokens were added to its completion."""
        for t in range(tokens_BT.shape[1]):
            before_BL = self._scores_BL
            matched_BL = before_BL[:, :-1] * DECAY + (self._prompts_BL == tokens_BT[:, t : t + 1])
            self._scores_BL = torch.nn.functional.pad(matched_BL, (1, 0))
            if tokens_BT.shape[1] > 1:
                self._scores_BL = torch.where((t < counts_B)[:, None], self._scores_BL, before_BL)

    def sure_B(self) -> Tensor:
        """Rows whose draft is likely to be right."""
        return self._scores_BL[:, :-1].amax(1) >= SURE

    def drafts_BK(self, count: int) -> Tensor:
        """The tokens that follow each row's best place; any token where the prompt has ended."""
        last = self._prompts_BL.shape[1] - 1
        places_B = self._scores_BL[:, :-1].argmax(1)
        places_BK = places_B[:, None] + torch.arange(count, device=places_B.device)
        return self._prompts_BL.gather(1, places_BK.clamp(max=last)).clamp(min=0)

    def keep(self, rows: Tensor) -> None:
        """These rows alone, in this order."""
        self._prompts_BL, self._scores_BL = self._prompts_BL[rows], self._scores_BL[rows]
