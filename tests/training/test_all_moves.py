"""Expected value over all legal moves: compared with enumeration and finite differences, and in runs."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import chess
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.config import Decoding
from rookworld_rlvr.evaluation.legal_choice import choice_values, model_player
from rookworld_rlvr.evaluation.players import DecodingConfig
from rookworld_rlvr.model.batch import micro_batches
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.objective import LossSizes
from rookworld_rlvr.play.choice import MoveChooser
from rookworld_rlvr.rewards.evaluation_cache import load_cache
from rookworld_rlvr.rewards.rubric import Rubric, RubricConfig
from rookworld_rlvr.rewards.score import MoveChoice, ScoreRequest
from rookworld_rlvr.rollout.generator import GeneratorConfig, SampledCompletion
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch, move_tokens, prompt_tokens
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.tasks import parse_prompt, task_named
from rookworld_rlvr.tasks.chat.prompts import ChatPromptConfig, Form, Notation
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.all_moves import beside, expected_value, move_batch, up_to_move
from rookworld_rlvr.training.collection import collect
from rookworld_rlvr.training.data import default_file
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.step import completions_and_moves_loss, completions_loss, grpo_step, loss_plan, moves_loss

# The shipped evaluations contain the positions of the shipped training rows.
DEFAULTS = ("rubric.source=cached", "data.train=default", "data.held_out=default", "data.tasks=[policy,environment:0]")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)


@pytest.fixture(scope="module")
def groups(policy: Policy) -> list[Group]:
    """Groups of three positions with the values of their moves, each with the incomplete completion `M: a1a1`."""
    cache, rubric = load_cache("default"), Rubric(RubricConfig())
    rows = [row for row in read_corpus(default_file("train.txt")).examples if row.task == "policy"][:3]
    begun = tuple(policy.tokenizer("M: a1a1", add_special_tokens=False).input_ids)
    score = rubric.score(rows[0].prompt, "M: a1a1")
    sample = Sample(SampledCompletion(begun, (0.0,) * len(begun), True), "M: a1a1", score)
    made = []
    for row in rows:
        analysis = cache.get(parse_prompt(row.prompt).fen)
        assert analysis is not None
        choice = rubric.move_choice(row.prompt, "M: a1a1", analysis)
        made.append(Group(row, prompt_tokens(policy.tokenizer, row.prompt), (sample,), choice))
    return made


def values_of(group: Group) -> Mapping[str, float]:
    assert group.choice is not None
    return group.choice.values


def by_enumeration(policy: Policy, group: Group) -> float:
    """Return the expected value, computed by a plain pass of the whole text for each move."""
    start = (*group.prompt_tokens, *group.samples[0].completion.tokens[:1])
    expected = 0.0
    for move, value in values_of(group).items():
        tokens = move_tokens(policy.tokenizer, "M:", move)
        with torch.no_grad():
            logprobs = policy.model(torch.tensor([[*start, *tokens]])).logits[0].log_softmax(-1)
        chance = sum(float(logprobs[len(start) - 1 + i, token]) for i, token in enumerate(tokens))
        expected += value * float(torch.tensor(chance).exp())
    return expected


def test_move_tokens_continue_the_text_up_to_the_first_marker(policy: Policy, groups: list[Group]) -> None:
    for start in ("M:", f"{groups[0].example.prompt}M:"):
        for move in (" a1a2", " e7e8q"):
            whole = prompt_tokens(policy.tokenizer, start + move)
            assert whole == prompt_tokens(policy.tokenizer, start) + move_tokens(policy.tokenizer, "M:", move), move


@pytest.fixture(params=["joined", "swallowed"])
def joining(request: pytest.FixtureRequest, policy: Policy) -> Policy:
    """Return a policy whose tokenizer joins the blank before a move with the marker, or takes both for one word."""
    vocabulary = {"M:": 1, "M: ": 2, "e2e4": 3, " e2e4": 4, "<unk>": 0, "</s>": 5}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    # Words end with their blank, as in a superword vocabulary; or marker and move are one unknown word.
    if request.param == "joined":
        tokenizer.pre_tokenizer = Split(" ", "merged_with_previous")
    else:
        tokenizer.pre_tokenizer = Split("\n", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    return replace(policy, tokenizer=fast)


def test_tokenizer_that_joins_the_blank_before_a_move_is_refused(joining: Policy, groups: list[Group]) -> None:
    group = replace(groups[0], choice=MoveChoice("M:", {" e2e4": 1.0}))
    wanted = r"objective.all_moves_coef: expected a tokenizer whose tokens of 'M:' begin"
    sample = replace(group.samples[0], completion=SampledCompletion((1, 3), (0.0, 0.0), True), text="M: e2e4")
    with pytest.raises(UserError, match=wanted):
        move_batch([replace(group, samples=(sample,))], joining)


def test_without_a_token_that_ends_before_the_move_there_is_no_term(policy: Policy, groups: list[Group]) -> None:
    group = replace(groups[0], choice=MoveChoice("M", values_of(groups[0])))
    assert up_to_move(group, policy) is None and move_batch([group], policy) is None
    assert up_to_move(groups[0], policy) is not None


def test_tokenizer_that_joins_moves_is_refused_before_training(
    joining: Policy, train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rookworld_rlvr.app.build.load_policy", lambda *_: joining)
    train("steps=1", "objective.all_moves_coef=1", exit_code=2)
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "objective.all_moves_coef: expected a tokenizer whose tokens of" in error


def test_model_with_a_joining_tokenizer_plays_what_it_writes_and_has_no_choice_values(joining: Policy) -> None:
    fen = chess.STARTING_FEN
    analysis = Analysis(fen, (("e2e4", 30), ("a2a3", -10)), "test")
    example = Example("policy", f"P: {fen}", None)
    assert choice_values(joining, [example], {fen: analysis}) == [{}]
    generator = make_generator(joining, GeneratorConfig(max_new_tokens=4))
    assert chess.Move.from_uci(MoveChooser(joining, generator, seed=0).play(fen).move) in chess.Board().legal_moves
    with pytest.raises(UserError, match=r"evaluation\.decoding: expected text, got legal: expected a tokenizer"):
        model_player(joining, generator, DecodingConfig(), 0, task_named("policy"), Decoding.legal)


def test_move_values_cover_all_legal_moves_with_maximum_1(groups: list[Group]) -> None:
    for group in groups:
        board = chess.Board(parse_prompt(group.example.prompt).fen)
        values = values_of(group)
        assert values.keys() == {f" {move.uci()}" for move in board.legal_moves}
        assert max(values.values()) == 1 and min(values.values()) < 1


def test_expected_value_equals_enumeration(policy: Policy, groups: list[Group]) -> None:
    batch = move_batch(groups, policy)
    assert batch is not None
    value, _, _ = expected_value(policy, batch, temperature=1.0)
    wanted = sum(by_enumeration(policy, group) for group in groups) / len(groups)
    assert 0 < wanted < 1 and float(value.detach()) == pytest.approx(wanted, rel=1e-4)


def test_entropy_over_legal_moves_equals_its_definition(policy: Policy, groups: list[Group]) -> None:
    batch = move_batch(groups, policy)
    assert batch is not None
    _, entropy, logprobs = expected_value(policy, batch, temperature=1.0)
    of_moves = [float(part.sum()) for part in logprobs.split(batch.loss_mask_BT.sum(1).tolist())]
    wanted = -sum(math.exp(value) * value for value in of_moves) / len(groups)
    assert wanted > 0.1 and float(entropy.detach()) == pytest.approx(wanted, rel=1e-5)


def test_temperature_adds_the_entropy_over_legal_moves_to_the_term(
    make_run: Callable[..., Run], policy: Policy, groups: list[Group]
) -> None:
    batch = move_batch(groups, policy)
    assert batch is not None
    value, entropy, _ = (float(number.detach().sum()) for number in expected_value(policy, batch, temperature=1.0))
    context = make_run("objective.all_moves_coef=2").context
    sizes = LossSizes(completions=1, tokens_per_update=1.0, max_tokens=1)
    plan = loss_plan(context, sizes, kl_coef=0.0, moves_temperature=0.3)
    loss, totals = moves_loss(policy, batch, plan)
    assert loss.item() == pytest.approx(-2 * (value + 0.3 * entropy), rel=1e-5) and entropy > 0
    assert totals.move_entropy_sum == pytest.approx(entropy) and totals.expected_value_sum == pytest.approx(value)


def test_temperature_falls_linearly_over_the_steps_of_a_run(make_run: Callable[..., Run]) -> None:
    context = make_run("steps=2", "objective.all_moves_temperature=0.5").context
    assert [grpo_step(context, step).moves_temperature for step in range(3)] == [0.5, 0.25, 0.0]


def test_micro_batches_of_moves_give_same_expected_value_and_gradient(policy: Policy, groups: list[Group]) -> None:
    batch = move_batch(groups, policy)
    assert batch is not None
    weight = policy.model.get_input_embeddings().weight
    whole, _, _ = expected_value(policy, batch, temperature=0.7)
    [wanted] = torch.autograd.grad(whole, [weight])
    parts = [
        expected_value(policy, part, temperature=0.7)[0] for part in micro_batches(batch, 17, by_prompt=policy.packs)
    ]
    assert len(parts) > 3
    [gradient] = torch.autograd.grad(torch.stack(parts).sum(), [weight])
    assert float(torch.stack(parts).sum().detach()) == pytest.approx(float(whole.detach()), rel=1e-4)
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-6)


def test_expected_value_gradient_equals_finite_differences(policy: Policy, groups: list[Group]) -> None:
    batch = move_batch(groups[:1], policy)
    assert batch is not None
    weight = policy.model.get_output_embeddings().weight
    value, _, _ = expected_value(policy, batch, temperature=1.0)
    [gradient] = torch.autograd.grad(value, [weight])
    direction, step = gradient / gradient.norm(), 1e-2
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(direction, alpha=sign * step)
            sides.append(float(expected_value(policy, batch, temperature=1.0)[0]))
            weight.sub_(direction, alpha=sign * step)
    assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(float(gradient.norm()), rel=0.02)


def test_groups_without_values_or_without_a_first_marker_are_left_out(policy: Policy, groups: list[Group]) -> None:
    bare = replace(groups[0], choice=None)
    silent = replace(
        groups[1], samples=(replace(groups[1].samples[0], completion=SampledCompletion((1,), (0.0,), True)),)
    )
    assert move_batch([bare, silent], policy) is None
    alone, beside = move_batch([groups[2]], policy), move_batch([bare, groups[2], silent], policy)
    assert alone is not None and beside is not None
    assert torch.equal(alone.tokens_BT, beside.tokens_BT) and torch.equal(alone.values_B, beside.values_B)


FEN = "7k/8/8/8/8/8/4P3/K7 w - - 0 1"


@pytest.mark.parametrize(
    ("name", "options", "completion", "begun"),
    [
        ("policy", None, "  M: e2e4 e2e3  E: 1", "  M:"),
        ("policy", None, "e2e4 M: e2e3", None),
        ("policy", None, "M", None),
        ("chat", ChatPromptConfig(prefill="auto"), "e2e4</answer>", ""),
        ("chat", ChatPromptConfig(), "I play <answer>e2e4</answer>", "I play <answer>"),
        ("chat", ChatPromptConfig(form=Form.move_line), "MOVE: e2e4", "MOVE:"),
        ("chat", ChatPromptConfig(), "e2e4", None),
        ("chat", ChatPromptConfig(), "<think><answer>e2e4</answer>", None),
        ("chat", ChatPromptConfig(), "<think>pawn</think><answer>e2e4", "<think>pawn</think><answer>"),
    ],
)
def test_task_says_where_a_completion_names_its_move(
    name: str, options: ChatPromptConfig | None, completion: str, begun: str | None
) -> None:
    task = task_named(name).configured(options) if options else task_named(name)
    assert task.before_move(completion, task.query(task.prompt(FEN))) == begun


@pytest.mark.parametrize(
    ("notation", "form", "prefill", "shown", "end"),
    [
        (Notation.uci, Form.answer, "auto", "e2e4 a1b1", "<"),
        (Notation.san, Form.boxed, "auto", "e4 Kb1", "}"),
        (Notation.uci, Form.bare, "", "e2e4 a1b1", None),
    ],
)
def test_chat_moves_follow_the_prompt_and_end_in_its_form(
    chat_model: Path, notation: Notation, form: Form, prefill: str, shown: str, end: str | None
) -> None:
    policy, rubric = (
        load_policy(ModelConfig(path=str(chat_model)), torch.device("cpu"), Precision.fp32),
        Rubric(RubricConfig()),
    )
    end = policy.tokenizer.eos_token if end is None else end
    task = task_named("chat").configured(ChatPromptConfig(prefill=prefill, notation=notation, form=form))
    example = Example("chat", task.prompt(FEN), None)
    sample = Sample(SampledCompletion((1, 2), (0.0, 0.0), False), "no", rubric.score(example.prompt, "no"))
    choice = rubric.move_choice(example.prompt, "no", Analysis(FEN, (("e2e4", 1.0), ("a1b1", 0.0))))
    group = Group(example, prompt_tokens(policy.tokenizer, example.prompt), (sample,), choice)
    batch = move_batch([group], policy)
    assert batch is not None and list(values_of(group)) == shown.split()
    assert batch.values_B[0] == 1 > batch.values_B[1] > 0
    for row, length, text in zip(
        batch.tokens_BT.tolist(), batch.attention_BT.sum(1).tolist(), shown.split(), strict=True
    ):
        assert tuple(row[: len(group.prompt_tokens)]) == group.prompt_tokens
        assert policy.tokenizer.decode(row[len(group.prompt_tokens) : length]) == text + end


def test_one_pass_over_completions_and_moves_equals_two(make_run: Callable[..., Run], chat_model: Path) -> None:
    run = make_run(
        *(
            "data.tasks=[chat]",
            f"model.path={chat_model}",
            "data.train=default",
            "data.held_out=default",
            "data.limit=8",
        ),
        *("data.chat.prefill=auto", "rubric.source=cached", "precision=fp32"),
        "objective.entropy_coef=0.1",
    )
    context, policy = run.context, run.context.policy
    kept = collect(context.sampler, policy.model, context.config.objective, step=0)
    batch = make_batch(kept.groups, pad_id=policy.pad_id, device=policy.device)
    batch = replace(batch, advantages_B=torch.linspace(-1, 1, len(batch.tokens_BT)))
    moves = move_batch(kept.groups, policy)
    assert moves is not None and policy.packs
    sizes = LossSizes(completions=len(batch.tokens_BT), tokens_per_update=batch.trained_tokens(), max_tokens=48)
    plan = loss_plan(context, sizes, kl_coef=0.1, moves_temperature=0.1)
    weight = policy.model.get_input_embeddings().weight
    [own], other = beside([batch], moves)
    assert own is not None and other is None and len(own.tokens_BT) == len(moves.tokens_BT)
    together, totals = completions_and_moves_loss(policy, batch, own, plan)
    alone, value = completions_loss(policy, batch, plan), moves_loss(policy, moves, plan)
    assert totals.count == batch.trained_tokens() and totals.kl_count == totals.count
    assert totals.expected_value_sum == pytest.approx(value[1].expected_value_sum, rel=1e-4)
    assert float(together.detach()) == pytest.approx(float((alone.loss + value[0]).detach()), rel=1e-4)
    [gradient], [wanted] = (torch.autograd.grad(loss, [weight]) for loss in (together, alone.loss + value[0]))
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-6)


def test_moves_go_with_the_completions_of_their_prompt_once(policy: Policy, groups: list[Group]) -> None:
    batch, moves = make_batch(groups, pad_id=0, device=policy.device), move_batch(groups, policy)
    assert moves is not None
    # A completion that writes a marker before its move has another prefix than its prompt.
    assert beside([batch], moves)[0] == [None]
    near = replace(moves, prompts_B=moves.prompts_B - len(groups))
    parts, rest = beside([batch.select(batch.prompts_B == 1), batch.select(batch.prompts_B < 2)], near)
    assert parts[0] is not None and set(parts[0].prompts_B.tolist()) == {1}
    assert parts[1] is not None and set(parts[1].prompts_B.tolist()) == {0}
    assert rest is not None and set(rest.prompts_B.tolist()) == {2}


def test_all_moves_term_raises_expected_value_and_adds_its_metric(train: Callable[..., Path]) -> None:
    given = (
        *DEFAULTS,
        "model.path=tiny",
        "evaluation.rows=0",
        "data.limit=4",
        "optim.lr=0.0003",
        "steps=3",
        "kl.coef=0",
    )
    steps = rows(train(*given, "objective.all_moves_coef=3"))
    values = [step.get("reward/expected_value") for step in steps]
    assert {step["reward/expected_value_prompts"] for step in steps} == {1.0}
    assert None not in values and values[-1] > values[0] + 0.02
    assert "reward/expected_value" not in rows(train(*given, "steps=1", "objective.all_moves_coef=0"))[0]


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_environment_prompts_and_label_source_have_no_move_values(make_run: Callable[..., Run]) -> None:
    for source, with_values in (("cached", 1), ("labels", 0)):
        run = make_run(f"rubric.source={source}", "data.train=default", "data.held_out=default")
        prompts = [next(row.prompt for row in run.data.train if row.task == task) for task in ("policy", "environment")]
        scores = run.context.sampler.scorer.score_all([ScoreRequest(prompt, "", None) for prompt in prompts])
        assert [score.analysis is not None for score in scores] == [bool(with_values), False]
