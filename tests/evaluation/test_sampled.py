"""Sampled answers: the mean, the best value and the variety of several, scored like greedy answers."""

import random
from dataclasses import replace

import chess
import pytest
import torch

from rookworld_rlvr.evaluation.completions import Sampling, evaluate_sampled, sampled_values
from rookworld_rlvr.rewards.evaluation_cache import load_cache
from rookworld_rlvr.rewards.move_evaluations import MoveEvaluations
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.tasks.types import Example

EXAMPLE = Example("policy", f"P: {chess.STARTING_FEN}", "M: e2e4 d2d4 E: 0.3 0.2 B: e2e4")
BEST, LEGAL, ILLEGAL = (f"M: {move} E: 0.3 B: {move}" for move in ("e2e4", "a2a3", "e2e5"))


def test_mean_best_and_distinct_values_equal_hand_computation() -> None:
    values = sampled_values(EXAMPLE, [BEST, LEGAL, ILLEGAL, "nonsense"], {})
    for key, mean, best in (("valid", 3 / 4, 1.0), ("legal_best_move", 2 / 4, 1.0), ("best_move_accuracy", 1 / 4, 1.0)):
        assert values[f"sampled/policy/{key}"] == mean and values[f"spread/best/policy/{key}"] == best
    assert values["spread/distinct/policy"] == 1.0
    assert sampled_values(EXAMPLE, [BEST] * 4, {})["spread/distinct/policy"] == 1 / 4


def test_best_of_sampled_losses_is_the_lowest() -> None:
    evals = {move.uci(): 0.0 for move in chess.Board().legal_moves} | {"e2e4": 3.0}
    analyses = {chess.STARTING_FEN: Analysis(chess.STARTING_FEN, tuple(evals.items()))}
    values = sampled_values(EXAMPLE, [BEST, LEGAL], analyses)
    lost = values["sampled/policy/win_probability_loss"]
    assert values["spread/best/policy/win_probability_loss"] == 0.0 < lost < 0.5


class Writer:
    """A generator that writes one of two tokens at random."""

    def generate(self, prompts, *, group_size, temperature, seeds, top_k=0):  # type: ignore[no-untyped-def]
        from rookworld_rlvr.rollout.generator import SampledCompletion

        draws = (random.Random(seed).choices((0, 1), k=group_size) for seed in seeds)
        return [[SampledCompletion((draw,), (0.0,), True) for draw in row] for row in draws]


class Tokenizer:
    def __call__(self, prompt: str, add_special_tokens: bool) -> object:
        return type("Ids", (), {"input_ids": [1]})

    def decode(self, tokens: tuple[int, ...], skip_special_tokens: bool) -> str:
        return (BEST, ILLEGAL)[tokens[0]]


def test_sampled_draws_depend_only_on_seed_and_leave_torch_random_state() -> None:
    measure = MoveEvaluations(load_cache(""))

    def ask(seed: int) -> list[float]:
        sampling = Sampling(temperature=1.0, seed=seed)
        examples = [replace(EXAMPLE, prompt=f"{EXAMPLE.prompt[:-1]}{number}") for number in range(1, 41)]
        rows = evaluate_sampled(Writer(), Tokenizer(), examples, sampling, evaluations=measure)  # type: ignore[arg-type]
        assert [row.index for row in rows] == list(range(40))
        return [row.values["sampled/policy/legal_best_move"] for row in rows]

    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = ask(0)
    assert torch.rand(1) == expected and ask(0) == first != ask(1)
    assert sum(first) / 40 == pytest.approx(0.5, abs=0.15)


def test_keyboard_interrupt_stops_sampled_evaluation() -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_sampled(Writer(), Tokenizer(), [EXAMPLE], Sampling(1.0), progress=stop)  # type: ignore[arg-type]
