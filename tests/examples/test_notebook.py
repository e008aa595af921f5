"""The notebook from a model of one's own to a trained one, run cell by cell with a small chat model."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "own_model.ipynb"
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


@pytest.mark.slow
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
