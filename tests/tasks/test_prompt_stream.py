import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.tasks.prompt_stream import PromptStream
from rookworld_rlvr.tasks.types import Example


def examples(policy: int, environment: int) -> list[Example]:
    rows = [Example("policy", f"P: {i}", None) for i in range(policy)]
    return rows + [Example("environment", f"A: {i}", None) for i in range(environment)]


def stream_of(rows: list[Example], policy_share: float, seed: int) -> PromptStream:
    return PromptStream(rows, {"policy": policy_share, "environment": 1 - policy_share}, seed)


def tasks(drawn: list[Example]) -> Counter[str]:
    return Counter(example.task for example in drawn)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.floats(0, 1), st.integers(0, 300))
def test_number_of_draws_per_task_stays_within_one_of_its_share(share: float, n: int) -> None:
    drawn = stream_of(examples(7, 5), share, seed=0).draw(n)
    assert len(drawn) == n
    assert abs(tasks(drawn)["policy"] - n * share) <= 1
    assert abs(tasks(drawn)["environment"] - n * (1 - share)) <= 1


def test_three_of_four_prompts_are_of_the_policy_task_by_a_share_of_0_75() -> None:
    drawn = stream_of(examples(9, 9), 0.75, seed=1).draw(40)
    fours = [tasks(drawn[start : start + 4]) for start in range(0, 40, 4)]
    assert fours == [{"policy": 3, "environment": 1}] * 10


def test_epoch_has_every_example_once_and_next_epoch_is_reshuffled() -> None:
    stream = stream_of(examples(50, 0), 1.0, seed=3)
    first, second = stream.draw(50), stream.draw(50)
    assert set(first) == set(second) == set(examples(50, 0))
    assert first != second
    assert first != examples(50, 0)


def test_draws_depend_on_seed_and_not_on_draw_sizes() -> None:
    whole = stream_of(examples(20, 30), 0.75, seed=5).draw(90)
    pieces = stream_of(examples(20, 30), 0.75, seed=5)
    assert [example for n in (1, 0, 40, 49) for example in pieces.draw(n)] == whole
    assert stream_of(examples(20, 30), 0.75, seed=6).draw(90) != whole


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    st.integers(0, 120),
    st.integers(0, 120),
    st.sampled_from([0.5, 0.7, 1.0, 0.25]),
)
def test_prompt_stream_resumed_through_json_equals_uninterrupted(before: int, after: int, share: float) -> None:
    uninterrupted = stream_of(examples(11, 13), share, seed=2)
    uninterrupted.draw(before)
    resumed = stream_of(examples(11, 13), share, seed=2)
    resumed.load_state_dict(json.loads(json.dumps(uninterrupted.state_dict())))
    assert resumed.draw(after) == uninterrupted.draw(after)
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_changed_share_applies_to_draws_after_resuming() -> None:
    before = stream_of(examples(10, 10), 1.0, seed=0)
    before.draw(1000)
    resumed = stream_of(examples(10, 10), 0.5, seed=0)
    resumed.load_state_dict(before.state_dict())
    assert abs(tasks(resumed.draw(20))["policy"] - 10) <= 1


@pytest.mark.parametrize("other", [stream_of(examples(5, 6), 0.75, 0), stream_of(examples(5, 5), 0.75, 1)])
def test_state_of_other_data_or_seed_is_refused_without_changes(other: PromptStream) -> None:
    stream = stream_of(examples(5, 5), 0.75, seed=0)
    stream.draw(3)
    state = stream.state_dict()
    with pytest.raises(ValueError, match="expected prompt stream state of data and seed"):
        stream.load_state_dict(other.state_dict())
    assert stream.state_dict() == state


@pytest.mark.parametrize(("policy", "environment", "task"), [(0, 5, "policy"), (5, 0, "environment")])
def test_a_task_with_a_share_and_no_examples_is_refused(policy: int, environment: int, task: str) -> None:
    with pytest.raises(ValueError, match=f"expected examples of task {task}"):
        stream_of(examples(policy, environment), 0.75, seed=0)


def test_a_task_without_share_is_never_drawn_and_needs_no_examples() -> None:
    assert tasks(stream_of(examples(0, 5), 0.0, seed=0).draw(12)) == {"environment": 12}
    assert tasks(stream_of(examples(5, 5), 0.0, seed=0).draw(12)) == {"environment": 12}
