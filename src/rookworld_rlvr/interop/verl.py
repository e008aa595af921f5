"""The rewards as a score function for verl, and its rows as a parquet file.

    python -c "from rookworld_rlvr.interop.verl import write_rows; write_rows('chess.parquet')"
    python -m verl.trainer.main_ppo data.train_files=chess.parquet \\
        reward.custom_reward_function.path=pkg://rookworld_rlvr.interop.verl …

Source: verl 0.9.1, `trainer/ppo/reward.py` (`get_custom_reward_fn`), `experimental/reward_loop/reward_manager/naive.py`
(the call) and `data.train_files`. This module does not import verl.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookworld_rlvr.interop import MALFORMED_REWARD, chat_examples, shared_scorer
from rookworld_rlvr.rewards import ScoreRequest
from rookworld_rlvr.tasks.messages import messages_of

DATA_SOURCE = "rookworld/chat"
# verl's reward managers call from a pool of threads, and the scorer starts its engines at the first position that the
# evaluation cache lacks.
_ONE_AT_A_TIME = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    malformed_reward: float = MALFORMED_REWARD,
    **_more: Any,
) -> dict[str, float]:
    """Return the reward of a completion as `score`, and `valid`, 1 for a completion that its task accepts.

    `ground_truth` is the label, empty without one. `extra_info` has the prompt as `write_rows` writes it. For rewards
    from 0 to 1 set `reward.custom_reward_function.reward_kwargs.malformed_reward=0`. Raises ValueError for a row of
    other data.
    """
    prompt = (extra_info or {}).get("prompt")
    if not isinstance(prompt, str):
        raise ValueError(f"expected extra_info with the prompt, as write_rows writes it, got {data_source!r} without")
    with _ONE_AT_A_TIME:
        [score] = shared_scorer(malformed_reward).score_all([ScoreRequest(prompt, solution_str, ground_truth or None)])
    return {"score": score.total, "valid": float(score.failure is None)}


def write_rows(path: str | Path) -> int:
    """Write the positions that ship as chat rows in verl's columns to a parquet file; return their number."""
    from datasets import Dataset

    rows = [
        {
            "data_source": DATA_SOURCE,
            "prompt": messages_of(example.prompt),
            "ability": "chess",
            "reward_model": {"style": "rule", "ground_truth": example.completion or ""},
            "extra_info": {"index": index, "prompt": example.prompt},
        }
        for index, example in enumerate(chat_examples())
    ]
    Dataset.from_list(rows).to_parquet(str(path))
    return len(rows)
