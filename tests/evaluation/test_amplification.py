"""Exact probabilities of the label's best move, and the table by the rank of that move before training."""

from collections.abc import Iterator

import pytest
import torch

from rookworld_rlvr.evaluation.amplification import PROBABILITY, RANK, amplification, best_move_probabilities
from rookworld_rlvr.evaluation.table import Row
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.tasks.types import Example, Task
from rookworld_rlvr.training.config import DataConfig
from rookworld_rlvr.training.data import load_data

# The king has three moves.
FEN = "7k/8/8/8/8/8/8/K7 w - - 0 1"
LABEL = "  M: a1a2 a1b1 E: 0.5 0.1 B: a1a2"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)


def plain_chance(policy: Policy, context: str, move: str) -> float:
    """Return the log probability of a move after its context, from one forward pass without a batch."""
    tokens = policy.tokenizer(context, add_special_tokens=False).input_ids
    whole = policy.tokenizer(f"{context} {move}", add_special_tokens=False).input_ids
    assert whole[: len(tokens)] == tokens
    with torch.no_grad():
        logprobs = policy.model(torch.tensor([whole])).logits[0].log_softmax(-1)
    return sum(float(logprobs[place - 1, whole[place]]) for place in range(len(tokens), len(whole)))


def test_best_move_probability_equals_plain_forward_pass(policy: Policy) -> None:
    example = Example(Task.policy, f"P: {FEN}", LABEL)
    [values] = best_move_probabilities(policy, [example], micro_batch_size=2, temperature=1.0).values()
    chances = {move: plain_chance(policy, f"P: {FEN}  M:", move) for move in ("a1a2", "a1b1", "a1b2")}
    assert values[PROBABILITY] == pytest.approx(torch.tensor(chances["a1a2"]).exp().item(), rel=1e-4)
    assert values[RANK] == 1 + sum(chance > chances["a1a2"] for chance in chances.values())


def test_moves_with_equal_highest_eval_count_as_one_move(policy: Policy) -> None:
    tied = LABEL.replace("0.5 0.1", "0.5 0.5")
    examples = [Example(Task.policy, f"P: {FEN}", label) for label in (LABEL, tied)]
    one, both = best_move_probabilities(policy, examples, micro_batch_size=128, temperature=1.0).values()
    assert both[PROBABILITY] > one[PROBABILITY] and both[RANK] <= one[RANK]


def test_unlabelled_and_environment_rows_have_no_best_move_probability(policy: Policy) -> None:
    environment = Example(Task.environment, f"A: {FEN}+a1a2+a1a2+", "7k/8/8/8/8/8/K7/8 b - - 1 1+0.001+0+0")
    examples = [Example(Task.policy, f"P: {FEN}", None), environment]
    assert best_move_probabilities(policy, examples, micro_batch_size=8, temperature=1.0) == {}


def test_best_move_probability_is_independent_of_the_batch(policy: Policy) -> None:
    rows = [row for row in load_data(DataConfig(), seed=0).held_out if row.task is Task.policy][:3]
    together = best_move_probabilities(policy, rows, micro_batch_size=16, temperature=1.0)
    for row in rows:
        [alone] = best_move_probabilities(policy, [row], micro_batch_size=64, temperature=1.0).values()
        assert together[row] == pytest.approx(alone, rel=1e-4)


def rows(*values: tuple[float, int]) -> Iterator[Row]:
    for place, (chance, rank) in enumerate(values):
        yield Row(place, place, {PROBABILITY: chance, RANK: float(rank)})
    yield Row(len(values), "the other task", {"environment/valid": 1.0})


def test_table_counts_gains_and_losses_by_rank_before_training() -> None:
    before = list(rows((0.5, 1), (0.4, 1), (0.2, 3), (0.01, 6), (0.02, 30)))
    after = list(rows((0.6, 1), (0.3, 2), (0.4, 1), (0.01, 6), (0.5, 1)))
    lines = amplification(before, after)
    assert [(line["ranks"], line["positions"], line["gained"], line["lost"], line["first"]) for line in lines] == [
        ("1", 2, 1, 1, 1),
        ("2-3", 1, 1, 0, 1),
        ("6-", 2, 1, 0, 1),
    ]
    assert lines[0]["before"] == pytest.approx(0.45) and lines[2]["after"] == pytest.approx(0.255)
    assert amplification([], []) == []
