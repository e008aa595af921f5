"""The score function and the rows for verl. Its signature is that of verl 0.9.1."""

import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import pytest

from rookworld_rlvr import interop
from rookworld_rlvr.interop import chat_examples, shared_scorer
from rookworld_rlvr.interop.verl import compute_score, write_rows
from rookworld_rlvr.rewards import RubricConfig
from rookworld_rlvr.rewards.rubric import MoveSource
from rookworld_rlvr.rewards.scorer import RubricScorer, make_scorer


def test_rows_have_verls_columns_and_their_labels_earn_more_than_noise(tmp_path: Path) -> None:
    file = tmp_path / "chess.parquet"
    assert write_rows(file) == len(chat_examples()) > 4000
    rows = datasets.Dataset.from_parquet(str(file))
    assert set(rows.column_names) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    row = rows[0]
    assert row["prompt"][0]["role"] == "user" and row["reward_model"]["style"] == "rule"
    truth = row["reward_model"]["ground_truth"]
    right = compute_score(row["data_source"], truth, truth, row["extra_info"])
    noise = compute_score(row["data_source"], "Hello.", truth, row["extra_info"])
    assert right["score"] > 0.5 and right["valid"] == 1.0 and noise == {"score": -0.3, "valid": 0.0}


def test_function_takes_what_verls_reward_managers_pass() -> None:
    """The call of `naive`, `dapo` and `gdpo` in verl 0.9.1: by name, with these names.

    `reward_kwargs` of the configuration and, with a reward model, the last two are passed too.
    """
    row = {"data_source": "rookworld/chat", "solution_str": "Hello.", "ground_truth": ""}
    extra_info = {"index": 0, "prompt": chat_examples()[0].prompt, "num_turns": 2, "rollout_reward_scores": {}}
    more = {"reward_router_address": "none", "reward_model_tokenizer": None}
    for given in ({}, more):
        inspect.signature(compute_score).bind(**row, extra_info=extra_info, **given)
        assert compute_score(**row, extra_info=extra_info, **given)["score"] == -0.3
    assert not inspect.iscoroutinefunction(compute_score)
    assert compute_score(**row, extra_info=extra_info, malformed_reward=0.0)["score"] == 0.0


def test_threads_share_one_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl calls from up to 32 threads at once; two scorers would start the engines twice."""
    made, together, extra_info = [], threading.Barrier(8), {"prompt": chat_examples()[0].prompt}

    def make(config: RubricConfig) -> RubricScorer:
        # Time for the other threads to come here too.
        time.sleep(0.3)
        made.append(make_scorer(RubricConfig(source=MoveSource.rules)))
        return made[-1]

    def score_one(text: str) -> float:
        together.wait(timeout=60)
        return compute_score("rookworld/chat", text, "", extra_info)["score"]

    monkeypatch.setattr(interop, "make_scorer", make)
    shared_scorer.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        scores = list(pool.map(score_one, ["Hello.", "<answer>a1b8</answer>"] * 4))
    shared_scorer.cache_clear()
    assert len(made) == 1 and len(set(scores[::2])) == len(set(scores[1::2])) == 1 and scores[0] < scores[1]


def test_row_of_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match="expected extra_info with the prompt"):
        compute_score("openai/gsm8k", "42", "42", {"index": 0})
