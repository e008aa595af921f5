import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.tasks.prompt_stream import MixtureConfig, PromptStream
from rookworld_rlvr.tasks.types import Example, Task


def examples(policy: int, environment: int) -> list[Example]:
    rows = [Example(Task.policy, f"P: {i}", None) for i in range(policy)]
    return rows + [Example(Task.environment, f"A: {i}", None) for i in range(environment)]


def tasks(drawn: list[Example]) -> Counter[Task]:
    return Counter(example.task for example in drawn)


WEIGHTS = st.floats(0, 10).filter(lambda weight: weight == 0 or weight > 1e-3)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, WEIGHTS, st.integers(0, 300))
def test_number_of_draws_per_task_stays_within_one_of_its_share(policy: float, environment: float, n: int) -> None:
    if not policy + environment:
        return
    drawn = PromptStream(examples(7, 5), MixtureConfig(policy, environment), seed=0).draw(n)
    share = policy / (policy + environment)
    assert len(drawn) == n
    assert abs(tasks(drawn)[Task.policy] - n * share) <= 1
    assert abs(tasks(drawn)[Task.environment] - n * (1 - share)) <= 1


def test_mixture_depends_only_on_the_ratio_of_weights() -> None:
    first = PromptStream(examples(9, 9), MixtureConfig(3, 1), seed=1).draw(40)
    assert first == PromptStream(examples(9, 9), MixtureConfig(0.75, 0.25), seed=1).draw(40)
    assert tasks(first[:4]) == {Task.policy: 3, Task.environment: 1}


def test_epoch_has_every_example_once_and_next_epoch_is_reshuffled() -> None:
    stream = PromptStream(examples(50, 0), MixtureConfig(1, 0), seed=3)
    first, second = stream.draw(50), stream.draw(50)
    assert set(first) == set(second) == set(examples(50, 0))
    assert first != second
    assert first != examples(50, 0)


def test_draws_depend_on_seed_and_not_on_draw_sizes() -> None:
    whole = PromptStream(examples(20, 30), MixtureConfig(), seed=5).draw(90)
    pieces = PromptStream(examples(20, 30), MixtureConfig(), seed=5)
    assert [example for n in (1, 0, 40, 49) for example in pieces.draw(n)] == whole
    assert PromptStream(examples(20, 30), MixtureConfig(), seed=6).draw(90) != whole


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    st.integers(0, 120),
    st.integers(0, 120),
    st.sampled_from([(1.0, 1.0), (0.7, 0.3), (1.0, 0.0), (1.0, 3.0)]),
)
def test_prompt_stream_resumed_through_json_equals_uninterrupted(
    before: int, after: int, weights: tuple[float, float]
) -> None:
    config = MixtureConfig(*weights)
    uninterrupted = PromptStream(examples(11, 13), config, seed=2)
    uninterrupted.draw(before)
    resumed = PromptStream(examples(11, 13), config, seed=2)
    resumed.load_state_dict(json.loads(json.dumps(uninterrupted.state_dict())))
    assert resumed.draw(after) == uninterrupted.draw(after)
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_changed_mixture_applies_to_draws_after_resuming() -> None:
    before = PromptStream(examples(10, 10), MixtureConfig(1, 0), seed=0)
    before.draw(1000)
    resumed = PromptStream(examples(10, 10), MixtureConfig(1, 1), seed=0)
    resumed.load_state_dict(before.state_dict())
    assert abs(tasks(resumed.draw(20))[Task.policy] - 10) <= 1


@pytest.mark.parametrize(
    "other", [PromptStream(examples(5, 6), MixtureConfig(), 0), PromptStream(examples(5, 5), MixtureConfig(), 1)]
)
def test_state_of_other_data_or_seed_is_refused_without_changes(other: PromptStream) -> None:
    stream = PromptStream(examples(5, 5), MixtureConfig(), seed=0)
    stream.draw(3)
    state = stream.state_dict()
    with pytest.raises(ValueError, match="expected prompt stream state of data and seed"):
        stream.load_state_dict(other.state_dict())
    assert stream.state_dict() == state


@pytest.mark.parametrize(("policy", "environment", "task"), [(0, 5, "policy"), (5, 0, "environment")])
def test_a_task_with_a_weight_and_no_examples_is_refused(policy: int, environment: int, task: str) -> None:
    with pytest.raises(ValueError, match=f"expected examples of task {task}"):
        PromptStream(examples(policy, environment), MixtureConfig(), seed=0)


def test_a_task_without_weight_is_never_drawn_and_needs_no_examples() -> None:
    assert tasks(PromptStream(examples(0, 5), MixtureConfig(0, 2), seed=0).draw(12)) == {Task.environment: 12}
    assert tasks(PromptStream(examples(5, 5), MixtureConfig(0, 2), seed=0).draw(12)) == {Task.environment: 12}


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), (float("nan"), 1), (float("inf"), 1)])
def test_invalid_mixture_weights_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="expected finite mixture weights"):
        MixtureConfig(*weights)


def test_a_misspelt_weight_is_refused() -> None:
    with pytest.raises(AttributeError):
        MixtureConfig().polcy = 1.0  # type: ignore[attr-defined]
