"""`rookworld export`: plain transformers loads the folder, its model card is valid, and nothing is uploaded."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from rookworld_rlvr.app.cli import main


@pytest.fixture(scope="module")
def finished(train_once: Callable[..., Path]) -> Path:
    return train_once("steps=2", "evaluation.rows=2", "checkpoint_every=1")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_exported_folder_loads_in_transformers_and_has_a_valid_card(
    finished: Path, tmp_path: Path, no_network: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "exported"
    capsys.readouterr()
    assert main(["export", str(finished), "--to", str(target)]) == 0
    assert f"hf upload USER/NAME {target}" in capsys.readouterr().out
    assert "trainer_state.pt" not in {file.name for file in target.iterdir()}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    inputs = tokenizer("P: 8/8/8/8/8/8/8/K1k5 w - - 0 1", return_tensors="pt")
    assert model.generate(**inputs, max_new_tokens=4, do_sample=False).shape[1] > inputs["input_ids"].shape[1]
    card = ModelCard.load(target / "README.md")
    assert card.data.license == "mit" and card.data.model_name == "exported"
    results = {result.metric_type: result for result in card.data.eval_results}
    assert "policy/valid" in results and results["environment/valid"].metric_args["n"] == 2
    assert all(f"`{key}`" in card.text for key in results) and "No headline key was tested" in card.text
    assert "million parameters" in card.text
    assert "higher is better" in card.text


def test_card_of_an_unevaluated_checkpoint_claims_no_scores(finished: Path, tmp_path: Path) -> None:
    assert main(["export", str(finished), "--to", str(tmp_path / "one"), "--checkpoint", "step-1"]) == 0
    card = ModelCard.load(tmp_path / "one" / "README.md")
    assert card.data.eval_results is None and "was not evaluated" in card.text and "1 steps" in card.text


@pytest.mark.parametrize(("given", "message"), [
    (["{run}"], "export: the following arguments are required: --to"),
    (["/nope", "--to", "{here}/x"], "expected a run's folder"),
    (["{run}", "--to", "{here}/x", "--checkpoint", "step-9"], "export: expected a checkpoint of"),
    (["{run}", "--to", "{run}"], "export: expected a new or an empty folder"),
])  # fmt: skip
def test_invalid_export_is_refused_in_one_line(
    given: list[str], message: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["export", *(text.format(run=finished, here=tmp_path) for text in given)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
