"""Export of a checkpoint as a folder for the Hugging Face hub, with a model card about its formats and scores."""

import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open
from transformers import PreTrainedModel

from ..errors import UserError
from ..evaluation.headline import MATCH_ELO, headline_keys
from ..evaluation.keys import key_of, lower_is_better
from ..files import follow, make_folder, write_text
from ..model.device import Precision
from ..model.loading import ModelConfig, is_model_folder, load_policy
from ..model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ..shell import setting, shell_word
from ..training.checkpoint import FOLDER, STATE_FILE, checkpoint_step, list_checkpoints
from ..training.run_files import CONFIG_FILE
from .markdown import code, escaped
from .page import template
from .run_record import RunRecord, read_run
from .summary import summarise_run

CARD = "README.md"
TEMPLATE = "card.md.jinja"
WEIGHTS = "model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


def export(run: Path, target: Path, *, checkpoint: str) -> list[Path]:
    """Copy a checkpoint's model to `target`, write its card, and return the files in `target`. An adapter is merged.

    `checkpoint` is `last`, `best` or `step-N`. Raises UserError if it does not exist, or if `target` is not empty.
    """
    record, source = read_run(run), _checkpoint(run, checkpoint)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"export: expected a new or an empty folder, got {target}")
    merged = _merged(source)
    make_folder(target, "export: --to")
    # An adapter is in the merged weights.
    left_out = {STATE_FILE, *(ADAPTER_FILES if merged else ())}
    for file in sorted(source.iterdir()):
        # Only a resumed run needs the trainer's state.
        if file.is_file() and not file.is_symlink() and file.name not in left_out:
            shutil.copyfile(file, target / file.name)
    if merged:
        merged.save_pretrained(target)
    name, parameters = target.resolve().name, _parameters(target / WEIGHTS)
    card = model_card(record, step=checkpoint_step(source), name=name, parameters=parameters)
    write_text(target / CARD, str(card))
    return sorted(target.iterdir())


def _merged(source: Path) -> PreTrainedModel | None:
    """Return the model of a checkpoint that has an adapter, with the adapter merged; None for any other checkpoint."""
    if not (source / ADAPTER_CONFIG).is_file():
        return None
    return load_policy(ModelConfig(path=str(source)), torch.device("cpu"), Precision.fp32).model


def model_card(run: RunRecord, *, step: int, name: str, parameters: int) -> ModelCard:
    """Return the card of the checkpoint after `step` steps. It has scores only if the run evaluated this checkpoint."""
    evaluated = _evaluated(run.summary) if run.summary.get("steps") == step else {}
    rows = [(key, evaluated[key]) for key in headline_keys() if key in evaluated]
    data = ModelCardData(
        language="en",
        license="mit",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["chess", "reinforcement-learning", "rlvr", "grpo"],
        model_name=name,
        eval_results=[_result(key, measure) for key, measure in rows] or None,
    )
    text = template(TEMPLATE, autoescape=False).render(
        escaped=escaped,
        code=code,
        name=name,
        run=run,
        step=step,
        parameters=f"{parameters / 1e6:.1f} million" if parameters else "",
        rows=[_table_row(key, measure) for key, measure in rows],
        sentences=summarise_run(run.summary, run.metrics).sentences() if rows else [],
        config_file=CONFIG_FILE,
        play=f"rookworld play --model {shell_word(name)}",
        uci=f"rookworld uci --model {shell_word(name)}",
        evaluate=f"rookworld evaluate {shell_word(setting('model.path', name))}",
    )  # fmt: skip
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")


def _evaluated(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the measures of the evaluated checkpoint, including the Elo of its match."""
    elo = summary.get("match", {}).get("elo")
    return {**summary.get("after", {}), **({MATCH_ELO: elo} if elo else {})}


def _parameters(weights: Path) -> int:
    """Return the number of parameters in a safetensors file; 0 if there is no file."""
    if not weights.is_file():
        return 0
    with safe_open(weights, framework="pt") as tensors:
        return sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def _table_row(key: str, measure: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of the card's table: key, meaning and direction, value, ends of the interval, and count."""
    digits = 0 if key == MATCH_ELO else 3
    direction = "lower" if lower_is_better(key) else "higher"
    values = (f"{float(measure[part]):.{digits}f}" for part in ("value", "low", "high"))
    meaning = key_of(key).meaning
    return key, f"{meaning}; {direction} is better", *values, str(measure["n"])


def _result(key: str, measure: Mapping[str, Any]) -> EvalResult:
    """Return a measure in the form of the hub's model index."""
    return EvalResult(
        task_type="text-generation",
        task_name=f"chess, {key.split('/')[0]}",
        dataset_type="rookworld-rlvr-held-out",
        dataset_name="held-out rows of rookworld-rlvr",
        metric_type=key,
        metric_name=key,
        metric_value=round(float(measure["value"]), 6),
        metric_args={"low": measure["low"], "high": measure["high"], "n": measure["n"]},
    )


def _checkpoint(run: Path, name: str) -> Path:
    known = list_checkpoints(run.resolve())
    folder = (known[-1] if name == "last" and known else follow(run / FOLDER / name)).resolve()
    # `best` is a link to another checkpoint. A run from an untrusted source may contain links to any file.
    if not folder.is_relative_to(run.resolve()) or not is_model_folder(folder):
        there = ", ".join(["last", "best", *(path.name for path in known)])
        raise UserError(f"export: expected a checkpoint of {run}, one of {there}, got {name!r}")
    return folder
