"""The score function and the rows for verl. Its signature is that of verl 0.9.1."""

import inspect
from pathlib import Path

import datasets
import pytest

from rookworld_rlvr.interop import chat_examples
from rookworld_rlvr.interop.verl import compute_score, write_rows


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


def test_signature_is_verls() -> None:
    assert list(inspect.signature(compute_score).parameters)[:4] == [
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
    ]


def test_row_of_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match="expected extra_info with the prompt"):
        compute_score("openai/gsm8k", "42", "42", {"index": 0})
