"""verl's own reward manager loads our function from its configuration and scores our rows with it.

Read and run with verl 0.9.1 (`trainer/ppo/reward.py`, `experimental/reward_loop/reward_manager/naive.py`). verl pins an
older transformers than ours, so no requirements file has it. To run this file, install verl and the packages that its
import asks for with `pip install --no-deps` beside those of `peers`: ray, tensordict<=0.10.0, codetiming, torchdata,
msgpack, cachetools. Without verl, tests/interop/test_verl_rewards.py tests the names that verl passes.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from rookworld_rlvr.interop import chat_examples
from rookworld_rlvr.interop.verl import write_rows

reward = pytest.importorskip("verl.trainer.ppo.reward", reason="verl is not installed: see the docstring")


@pytest.mark.parametrize("path", ["pkg://rookworld_rlvr.interop.verl", "file"])
def test_verls_reward_manager_scores_our_rows(path: str, chat_model: Path, tmp_path: Path) -> None:
    import asyncio

    from datasets import Dataset
    from omegaconf import OmegaConf
    from verl import DataProto

    from rookworld_rlvr.interop import verl as module

    source = path if path != "file" else str(module.__file__)
    manager = {"source": "register", "name": "naive", "module": None}
    function = {"path": source, "name": "compute_score", "reward_kwargs": {}}
    config = OmegaConf.create({"reward": {"custom_reward_function": function, "reward_manager": manager}})
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    file = tmp_path / "chess.parquet"
    write_rows(file)
    row = Dataset.from_parquet(str(file))[0]

    async def scored(scorer: Any, text: str) -> Any:
        tokens = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
        batch = {"responses": tokens, "attention_mask": torch.ones_like(tokens)}
        columns = {name: np.array([row[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")}
        return await scorer.run_single(DataProto.from_dict(tensors=batch, non_tensors=columns))

    async def both() -> list[Any]:
        # In the loop that it will use, as verl makes it.
        scorer = reward.load_reward_manager(config, tokenizer)
        return [await scored(scorer, text) for text in (str(chat_examples()[0].completion), "Hello.")]

    right, noise = (SimpleNamespace(**result) for result in asyncio.run(both()))
    assert right.reward_score > 0.5 and right.reward_extra_info["valid"] == 1.0
    assert noise.reward_score == -0.3 and noise.reward_extra_info == {"score": -0.3, "valid": 0.0}
