"""Arms with another update than GRPO's: their commands, what they train on, and a real run of each."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.objective import AdvantageConfig, AdvantageScale
from rookworld_rlvr.rewards import Rubric
from rookworld_rlvr.rewards.rubric import MoveSource, RubricConfig
from rookworld_rlvr.tasks.policy import parse_policy
from rookworld_rlvr.tasks.types import Example, Task
from rookworld_rlvr.training.collection import collect, synced_sampler

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["steps=2", "evaluation_rows=8", "sampled_rows=0", "match_pairs=0", "device=cpu"]
FEN = "8/8/8/8/8/8/8/K1k5 w - - 0 1"
POLICY_LABEL = Example(Task.policy, f"P: {FEN}", " M: a1a2 E: 0.5 B: a1a2")
ENVIRONMENT_LABEL = Example(Task.environment, f"A: {FEN}+a1a2++", "8/8/8/8/8/8/K7/2k5 b - - 1 1+0.001+0+0")


def test_arms_with_another_update_run_a_program_of_their_own(
    studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    members = studies.study.members("sft_against_rl", studies.study.read_study("sft_against_rl"))
    commands = {member.arm: member.command for member in members}
    assert commands["grpo"][1:4] == ["-m", "rookworld_rlvr", "train"]
    for arm, kind in (("supervised", "labels"), ("rejection", "best")):
        _, program, given, *overrides = commands[arm]
        assert Path(program) == ROOT / "studies/updates.py" and given == kind
        assert not any(override.startswith("update=") for override in overrides)


@pytest.mark.parametrize("wrong", [["update=worst"], ["update=labels", "update=best"]])
def test_unknown_or_repeated_update_is_refused(wrong: list[str], studies: SimpleNamespace) -> None:
    with pytest.raises(studies.run.UserError, match=r"expected update= once, one of labels, best, shuffled, per_comp"):
        studies.study.composed(wrong)


def test_label_evals_are_rounded_to_the_models_grid(studies: SimpleNamespace) -> None:
    label = Example(Task.policy, f"P: {FEN}", " M: a1a2 a1b2 E: 4.64 -0.54 B: a1a2")
    written = parse_policy(studies.updates.round_label_evals(label).completion)
    assert (written.moves, written.evals_pawns, written.best) == (("a1a2", "a1b2"), (4.5, -0.5), "a1a2")
    other = Example(Task.environment, "A: x+a1a2+", "y+0.001+0+0")
    assert studies.updates.round_label_evals(other) == other


def test_first_best_completion_of_each_group_is_imitated(studies: SimpleNamespace) -> None:
    config = studies.study.composed([*SHORT, "objective.prompts_per_step=2", "objective.group_size=3"])
    run = build_unsaved_run(config)
    with synced_sampler(run.context):
        collected = collect(run.context, 0).collected
    run.close()
    assert collected is not None
    collected.rewards_PG = torch.tensor([[0.1, 0.7, 0.7], [0.9, 0.2, 0.3]])
    imitated = studies.updates.best_of_groups(collected)
    for group, best, example in zip(collected.groups, (1, 0), imitated, strict=True):
        assert example.tokens[: example.prompt_length] == group.prompt_tokens
        assert example.tokens[example.prompt_length :] == group.samples[best].completion.tokens


def test_shuffled_rewards_stay_in_their_group_and_repeat_by_seed(studies: SimpleNamespace) -> None:
    rewards_PG = torch.arange(24.0).reshape(3, 8)

    def shuffled(seed: int, step: int) -> torch.Tensor:
        collected = SimpleNamespace(rewards_PG=rewards_PG)
        context = SimpleNamespace(config=SimpleNamespace(seed=seed))
        collection = studies.updates.collect_shuffled(lambda *_: SimpleNamespace(collected=collected), context, step)
        assert collection.collected is collected
        return collected.rewards_PG

    assert torch.equal(shuffled(0, 1).sort(dim=1).values, rewards_PG) and torch.equal(shuffled(0, 1), shuffled(0, 1))
    orders = [shuffled(0, 1), shuffled(0, 2), shuffled(1, 1)]
    assert all(not torch.equal(one, other) for i, one in enumerate(orders) for other in [rewards_PG, *orders[:i]])
    assert len({tuple((row - row.min()).tolist()) for row in orders[0]}) == 3


def test_component_weights_give_the_reward_of_a_well_formed_completion(studies: SimpleNamespace) -> None:
    rubric = Rubric(RubricConfig(source=MoveSource.labels))
    for label, completion in (
        (POLICY_LABEL, " M: a1a2 a1b1 E: 0.1 0.3 B: a1b1"),
        (ENVIRONMENT_LABEL, f"{FEN}+0.001+0+0"),
    ):
        score = rubric.score(label.prompt, completion, label.completion)
        group = SimpleNamespace(example=label, samples=[SimpleNamespace(score=score)])
        weights = studies.updates.component_weights(rubric, group)
        weighted = sum(weights[name] * value for name, value in score.components.items())
        assert score.failure is None and sum(weights.values()) == pytest.approx(1)
        assert 0.3 < weighted < 1 and weighted == pytest.approx((score.total + 0.3) / 1.3)


def test_components_weigh_the_same_whatever_their_range(studies: SimpleNamespace) -> None:
    """The first completion is best in a component of small range, the last one in a component of full range."""
    rubric = Rubric(RubricConfig(source=MoveSource.rules))
    names = [f"correctness/{name}" for name in ("candidates", "best_legal")]
    rows = [(0.6, 0.0), (0.5, 0.0), (0.5, 0.0), (0.5, 1.0)]
    samples = [SimpleNamespace(score=SimpleNamespace(components=dict(zip(names, row, strict=True)))) for row in rows]
    collected = SimpleNamespace(groups=[SimpleNamespace(example=POLICY_LABEL, samples=samples)])
    objective = SimpleNamespace(advantage=AdvantageConfig(scale=AdvantageScale.none, std_floor=1e-4))
    context = SimpleNamespace(config=SimpleNamespace(objective=objective, rubric=RubricConfig()))
    advantages = studies.updates.advantages_per_component(context, collected)[0]
    weights = studies.updates.component_weights(rubric, collected.groups[0])
    one, rest = 3**0.5, -(3**-0.5)
    expected = [weights[names[0]] * first + weights[names[1]] * second
                for first, second in ((one, rest), (rest, rest), (rest, rest), (rest, one))]  # fmt: skip
    assert advantages.tolist() == pytest.approx(expected, abs=1e-4)


def test_outcome_filter_leaves_out_groups_without_right_and_wrong(studies: SimpleNamespace) -> None:
    """The groups that are left have rewards 0, 1, 0, 1: mean 1/2, std 1/2."""
    reward = Rubric(RubricConfig(source=MoveSource.rules)).score
    right, wrong = (reward(POLICY_LABEL.prompt, f" M: a1a2 E: 0.5 B: {best}") for best in ("a1a2", "a1c1"))
    outcomes = [(right, wrong), (right, right), (wrong, wrong), (wrong, right)]
    groups = [SimpleNamespace(samples=[SimpleNamespace(score=score) for score in group]) for group in outcomes]
    rewards_PG = torch.tensor([[0.0, 1.0], [5.0, -5.0], [0.3, 0.4], [0.0, 1.0]])
    collected = SimpleNamespace(groups=groups, rewards_PG=rewards_PG)
    objective = SimpleNamespace(advantage=AdvantageConfig(scale=AdvantageScale.batch))
    context = SimpleNamespace(config=SimpleNamespace(objective=objective))
    advantages_PG = studies.updates.advantages_of_mixed_groups(context, collected)
    torch.testing.assert_close(advantages_PG, torch.tensor([[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "per_component", "outcome_filter"])
def test_run_with_other_rewards_or_advantages_trains(
    kind: str, studies: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*SHORT, "objective.prompts_per_step=4", "optim.warmup_steps=0", f"output_root={tmp_path}"]
    assert studies.updates.main([kind, *given]) == 0, capsys.readouterr().out
    [metrics] = tmp_path.glob("*/*/metrics.jsonl")
    assert all(json.loads(line)["optim/update_norm"] > 0 for line in metrics.read_text().splitlines()[-2:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "best"])
def test_imitation_run_trains_and_measures_kl_and_reward(
    kind: str, studies: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*SHORT, "objective.prompts_per_step=4", "optim.warmup_steps=0", f"output_root={tmp_path}"]
    assert studies.updates.main([kind, *given]) == 0, capsys.readouterr().out
    [run] = tmp_path.glob("*/*/summary.json")
    steps = [json.loads(line) for line in (run.parent / "metrics.jsonl").read_text().splitlines()][-2:]
    assert [step["kl/reference"] == 0 for step in steps] == [True, False]
    assert all(0 < step["reward/mean"] < 1 and step["optim/update_norm"] > 0 for step in steps)
    # The loss is the cross-entropy of whole answers in nats per token.
    assert all(0.05 < step["loss"] < 2 for step in steps)
    assert "policy/win_probability_loss" in json.loads(run.read_text())["gain"]


def test_updates_program_refuses_an_unknown_kind_in_one_line(
    studies: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert studies.updates.main(["worst"]) == 2
    kinds = "labels, best, shuffled, per_component, outcome_filter"
    assert capsys.readouterr().err == f"studies: expected one of {kinds}, got worst\n"
