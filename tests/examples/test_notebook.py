"""The notebook from a model of one's own to a trained one, run cell by cell with a small chat model."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "own_model.ipynb"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Options that make the notebook's commands short; a user has no need of them.
SHORT = (
    "threads=1",
    "device=cpu",
    "objective.prompts_per_step=2",
    "objective.group_size=2",
    "evaluation.sampled_rows=0",
    "evaluation.curve_every=0",
    "generator.max_new_tokens=4",
    "data.limit=200",
)


@pytest.fixture
def chat_model(small_model: Path, tmp_path: Path) -> Path:
    """Folder of a random Llama with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_every_cell_of_the_notebook_runs(
    chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"MODEL": str(chat_model), "STEPS": "1", "ROWS": "2"}.items():
        monkeypatch.setenv(name, value)
    namespace: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), namespace)
            if "chat" in namespace:
                namespace["chat"] = ["experiment=chat", f"model.path={chat_model}", *SHORT]
    shown = capsys.readouterr().out
    assert "+1.000  c8g8</answer>" in shown and "chat/legal" in shown
    assert (tmp_path / "outputs" / "my-chess-model" / "model.safetensors").exists()
