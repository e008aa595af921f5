"""TRL's GRPOTrainer trains with our reward functions on the shipped model and rows."""

import re
from pathlib import Path

import pytest

from rookworld_rlvr.interop.trl import reward_functions, trl_rows


def test_trl_trains_three_steps_with_both_rewards(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer

    from rookworld_rlvr.model.loading import tiny_model_folder

    rows = trl_rows()
    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=144,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=1,
    )
    folder = str(tiny_model_folder())
    trainer = trl.GRPOTrainer(
        model=folder,
        args=config,
        reward_funcs=reward_functions(),
        train_dataset=Dataset.from_list([*rows[:12], *rows[-12:]]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert [log["step"] for log in logs] == [1, 2, 3]
    logged = {key for log in logs for key in log}
    assert {"rewards/policy_reward/mean", "rewards/environment_reward/mean"} <= logged
    assert max(log["reward"] for log in logs) > 0.3, "answers of a model that knows the formats"
    assert max(log["grad_norm"] for log in logs) > 0


def test_trl_program_in_the_documentation_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    document = Path(__file__).resolve().parents[2] / "docs/libraries.md"
    [program] = re.findall(r"```python\n(from datasets.*?)```", document.read_text("utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/libraries.md", "exec"), {})
    assert any(tmp_path.rglob("trainer_state.json"))
