"""Choice among the legal moves: compared with plain passes, its players, and its values beside those of the text."""

import math
from pathlib import Path

import chess
import pytest
import torch

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.config import Decoding
from rookworld_rlvr.evaluation.legal_choice import LegalPlayer, choice_values, legal_logprobs, model_player
from rookworld_rlvr.evaluation.players import DecodingConfig, ModelPlayer
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.tasks import Task, task_named
from rookworld_rlvr.tasks.chat.prompts import ChatPromptConfig
from rookworld_rlvr.tasks.types import Example

CHECK = "4k3/8/8/8/8/8/4r3/3QK3 w - - 0 1"
MATE = "R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)


def plain_logprob(policy: Policy, start: str, text: str) -> float:
    """Return the log-prob of a text behind another by a plain pass."""
    before, after = (prompt_tokens(policy.tokenizer, part) for part in (start, text))
    with torch.no_grad():
        logprobs = policy.model(torch.tensor([[*before, *after]])).logits[0].log_softmax(-1)
    return sum(float(logprobs[len(before) - 1 + i, token]) for i, token in enumerate(after))


def test_logprobs_of_legal_moves_equal_plain_passes(policy: Policy) -> None:
    task, fens = task_named("policy"), [chess.STARTING_FEN, MATE, CHECK]
    found = legal_logprobs(policy, task, [task.prompt(fen) for fen in fens])
    assert [sorted(logprobs) for logprobs in found] == [
        sorted(move.uci() for move in chess.Board(fen).legal_moves) for fen in fens
    ]
    assert found[1] == {}
    padding = " " * (90 - len(CHECK))
    for move, logprob in found[2].items():
        wanted = plain_logprob(policy, f"P: {CHECK}{padding}M:", f" {move}")
        assert logprob == pytest.approx(wanted, abs=1e-3)


def test_chosen_move_is_the_likeliest_or_drawn_by_probability(policy: Policy) -> None:
    board, task = chess.Board(CHECK), task_named("policy")
    [logprobs] = legal_logprobs(policy, task, [task.prompt(CHECK)])
    best = max(logprobs, key=logprobs.__getitem__)
    assert LegalPlayer(policy, task).choose([board, chess.Board(MATE)], [0, 1]) == [best, ""]
    player = LegalPlayer(policy, task, DecodingConfig(temperature=1.0))
    drawn = [player.drawn(logprobs, number, board) for number in range(2000)]
    total = math.log(sum(map(math.exp, logprobs.values())))
    for move, logprob in logprobs.items():
        assert drawn.count(move) / len(drawn) == pytest.approx(math.exp(logprob - total), abs=0.05)
    of_two = LegalPlayer(policy, task, DecodingConfig(temperature=9.0, top_k=2))
    assert {of_two.drawn(logprobs, number, board) for number in range(99)} == set(
        sorted(logprobs, key=logprobs.__getitem__)[-2:]
    )


def test_values_are_those_of_the_likeliest_legal_move(policy: Policy) -> None:
    task = task_named("policy")
    [logprobs] = legal_logprobs(policy, task, [task.prompt(CHECK)])
    best = max(logprobs, key=logprobs.__getitem__)
    examples = [Example("policy", task.prompt(fen), None) for fen in (CHECK, chess.STARTING_FEN, MATE)]
    examples.append(Example("environment", "A: 8/8/8/8/8/8/8/K1k5 w - - 0 1+a1a2", None))
    for pawns, loss, right in ((5.0, 0.0, 1.0), (-5.0, 0.36, 0.0)):
        lines = tuple((move, pawns if move == best else 0.0) for move in logprobs)
        values = choice_values(policy, examples, {CHECK: Analysis(CHECK, lines), MATE: Analysis(MATE, ())})
        assert values[0]["policy/legal_choice_best"] == right
        assert values[0]["policy/legal_choice_loss"] == pytest.approx(loss, abs=0.1)
        assert values[1:] == [{}, {}, {}]


@pytest.mark.parametrize(("options", "opening"), [
    (ChatPromptConfig(prefill="auto"), ""), (ChatPromptConfig(), "<answer>"), (ChatPromptConfig(thinking=True), None),
])  # fmt: skip
def test_chat_model_chooses_behind_the_beginning_of_its_answer(
    chat_model: Path, options: ChatPromptConfig, opening: str | None
) -> None:
    task: Task = task_named("chat").configured(options)
    prompt = task.prompt(CHECK)
    assert task.opening(task.query(prompt)) == opening
    policy = load_policy(ModelConfig(path=str(chat_model)), torch.device("cpu"), Precision.fp32)
    if opening is None:
        with pytest.raises(ValueError, match="expected a task whose completions begin with a move, got chat"):
            legal_logprobs(policy, task, [prompt])
    else:
        [logprobs] = legal_logprobs(policy, task, [prompt])
        assert sorted(logprobs) == sorted(move.uci() for move in chess.Board(CHECK).legal_moves)


def test_a_player_that_must_choose_needs_completions_that_begin_with_a_move(policy: Policy) -> None:
    policy_task, chat = task_named("policy"), task_named("chat").configured(ChatPromptConfig(thinking=True))
    generator = make_generator(policy, GeneratorConfig())
    for task, decoding, kind in (
        (chat, Decoding.text, ModelPlayer), (policy_task, Decoding.legal, LegalPlayer),
        (chat, Decoding.auto, ModelPlayer), (policy_task, Decoding.auto, LegalPlayer),
    ):  # fmt: skip
        assert isinstance(model_player(policy, generator, DecodingConfig(), 0, task, decoding), kind)
    with pytest.raises(UserError, match=r"evaluation.decoding: expected text, since words come first in chat"):
        model_player(policy, generator, DecodingConfig(), 0, chat, Decoding.legal)
