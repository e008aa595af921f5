"""A softmax tree small enough to enumerate, and one thread for torch.

A `Tree` is a policy that writes texts of one or two tokens from a vocabulary of three. Token 0 ends the text, and
tokens 1 and 2 are followed by one more token. The rows of its batch are all seven possible texts, whose lengths differ.
An expectation is the sum over these rows, weighted by their probabilities.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

TOKENS_BT = torch.tensor([[0, 0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]])
# State in which a token is drawn: 0 at the start, afterwards the previous token.
STATES_BT = torch.stack([torch.zeros(7, dtype=torch.long), TOKENS_BT[:, 0]], -1)
MASK_BT = torch.tensor([[True, False]] + [[True, True]] * 6)


@dataclass(frozen=True)
class Tree:
    """Policy with float64 logits (3, 3): one row for the start, one after token 1 and one after token 2."""

    logits: Tensor
    tokens_BT = TOKENS_BT
    states_BT = STATES_BT
    loss_mask_BT = MASK_BT

    def logprobs_BT(self) -> Tensor:
        """Return the log-probs (7, 2) of the tokens of every text. The masked entry belongs to no token of its text."""
        return torch.log_softmax(self.logits, -1)[STATES_BT, TOKENS_BT]

    def probabilities_B(self) -> Tensor:
        return (self.logprobs_BT() * MASK_BT).sum(-1).exp()


def make_tree(seed: int, scale: float = 1.0) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    return Tree((scale * torch.randn(3, 3, generator=generator, dtype=torch.float64)).requires_grad_())


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Run torch on one thread, because the tensors are too small to profit from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy() -> Tree:
    return make_tree(0)


@pytest.fixture
def old_policy() -> Tree:
    """Policy close to `policy`: some ratios lie within the usual clip bounds, and some beyond each of them."""
    return Tree((make_tree(0).logits + make_tree(11).logits).detach())


@pytest.fixture
def reference() -> Tree:
    return Tree(make_tree(2, scale=1.5).logits.detach())
