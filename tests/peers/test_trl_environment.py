"""TRL's GRPOTrainer lets a model play by the tool of `MoveEnvironment`, and trains it with the environment's reward.

TRL asks for a chat template that it knows and that shows tool calls, so the model has Qwen3's, which TRL ships. TRL's
own tests replace `generate` by token lists, because their tiny models know no call. This one first learns to call.
"""

import random
from pathlib import Path
from statistics import fmean
from typing import Any

import chess
import pytest
import torch
from torch.nn.functional import cross_entropy

from rookworld_rlvr.interop.trl import MoveEnvironment, move_rows

pytest.importorskip("trl", reason="needs trl: scripts/setup.sh peers makes an environment that has it")

ROWS, GROUP = 2, 8
CONVERSATIONS, LESSONS, LESSON_SIZE = 40, 120, 8


def tool_tokenizer(folder: Path) -> Any:
    """Return the small tokenizer with the template of Qwen3 and, to keep rows short, the texts that it repeats."""
    import trl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=2048)
    template = Path(trl.__file__).with_name("chat_templates") / "qwen3.jinja"
    tokenizer.chat_template = template.read_text("utf-8")
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    shown = tokenizer.apply_chat_template(move_rows()[0]["prompt"], tools=[MoveEnvironment().move], tokenize=False)
    repeated = [shown.split("FEN:")[0], "<|im_start|>assistant\n", "<|im_start|>user\n", "<think>\n\n</think>\n\n"]
    call = ['<tool_call>\n{"name": "move", "arguments": {"uci": "', '"}}\n</tool_call>']
    tokenizer.add_tokens([*repeated, *call, "<tool_response>\nYou played", ".\n</tool_response>", "Done."])
    return tokenizer


def conversation(row: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    """Return a row's messages with a call of the tool by a random legal move, its result, and a last word."""
    environment = MoveEnvironment()
    environment.reset(**row)
    uci = rng.choice([move.uci() for move in chess.Board(row["fen"]).legal_moves])
    call = {"type": "function", "function": {"name": "move", "arguments": {"uci": uci}}}
    return [
        *row["prompt"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "move", "content": environment.move(uci)},
        {"role": "assistant", "content": "Done."},
    ]


@pytest.fixture(scope="module")
def caller(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small Llama that has learned to call the tool `move`, mostly with illegal moves."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.chat_template_utils import get_training_chat_template

    tokenizer, rng = tool_tokenizer(small_model), random.Random(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**shape, **ids, vocab_size=len(tokenizer), max_position_embeddings=2048))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    # Down to 0, so that the model does not end in the middle of a swing, which would be another one on each CPU.
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, LESSONS)
    template = {"tools": [MoveEnvironment().move], "chat_template": get_training_chat_template(tokenizer)}
    rows = move_rows()[:ROWS]
    prompts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False, **template)
        for row in rows
    ]
    # Prompts of different lengths: each lesson is about one of them.
    told = [[conversation(row, rng) for _ in range(CONVERSATIONS)] for row in rows]
    right = {"padding": True, "padding_side": "right", "return_dict": False}
    padded = [torch.tensor(tokenizer.apply_chat_template(texts, **right, **template)) for texts in told]
    for lesson in range(LESSONS):
        prompt = prompts[lesson % ROWS]
        tokens = padded[lesson % ROWS][torch.randint(CONVERSATIONS, (LESSON_SIZE,))]
        targets = tokens[:, len(prompt) :]
        logits = model(tokens, logits_to_keep=targets.shape[1] + 1).logits[:, :-1]
        loss = cross_entropy(logits.transpose(1, 2), targets, ignore_index=tokenizer.pad_token_id)
        loss.backward()
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("caller")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_trl_trains_by_the_rewards_of_moves_that_the_model_plays_by_the_tool(
    caller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    # Silences the warning that `environment_factory` may change, because the version is pinned.
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = GRPOTrainer(
        model=str(caller),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=ROWS * GROUP,
            num_generations=GROUP,
            max_completion_length=64,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            seed=1,
        ),
        train_dataset=Dataset.from_list(move_rows()[:ROWS]),
        processing_class=AutoTokenizer.from_pretrained(caller),
        environment_factory=MoveEnvironment,
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert [log["step"] for log in logs] == [1, 2]
    assert all(log["tools/call_frequency"] > 0 and log["tools/failure_frequency"] <= 0.5 for log in logs)
    assert max(log["reward_std"] for log in logs) > 0 and max(log["grad_norm"] for log in logs) > 0
    # The environments still hold the positions and moves of the last step.
    rewards = [environment.get_reward() for environment in trainer.environments]
    assert len(rewards) == ROWS * GROUP and len(set(rewards)) > 1
    assert logs[-1]["rewards/MoveEnvironment/mean"] == pytest.approx(fmean(rewards), abs=1e-5)
