"""A checkpoint of a run as a folder for the Hugging Face hub, with a card that says what it is and how good."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..errors import UserError
from ..evaluation.headline import HEADLINE
from ..files import make_folder, write_text
from ..training.checkpoint import FOLDER, STATE_FILE, list_checkpoints
from ..training.run_files import CONFIG_FILE
from .run_record import RunRecord, read_run
from .summary import summarise_run

CARD = "README.md"
# Of a checkpoint, what only a run that goes on needs.
LEFT_OUT = (STATE_FILE,)
TEMPLATE = "card.md.jinja"


def export(run: Path, target: Path, *, checkpoint: str, name: str) -> list[Path]:
    """Copy a checkpoint's model and write its card; returns the files. `checkpoint`: `last`, `best` or `step-N`.

    Raises UserError if there is no such checkpoint, or if the target holds files already.
    """
    record, source = read_run(run), _checkpoint(run, checkpoint)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"export: expected a new or an empty folder, got {target}")
    make_folder(target, "export: --to")
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name not in LEFT_OUT:
            shutil.copyfile(file, target / file.name)
    write_text(target / CARD, str(model_card(record, step=_step(source), name=name)))
    return sorted(target.iterdir())


def model_card(run: RunRecord, *, step: int, name: str) -> ModelCard:
    """The card of the checkpoint behind `step` steps. Scores are shown if that is the one that was evaluated."""
    evaluated = run.summary.get("after", {}) if run.summary.get("steps") == step else {}
    rows = [(key, evaluated[key]) for key in HEADLINE if key in evaluated]
    data = ModelCardData(
        language="en",
        license="mit",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["chess", "reinforcement-learning", "rlvr", "grpo"],
        model_name=name,
        eval_results=[_result(key, measure) for key, measure in rows] or None,
    )
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "page"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(TEMPLATE).render(
        name=name,
        run=run,
        step=step,
        rows=[(key, *(f"{float(measure[part]):.3f}" for part in ("value", "low", "high")), measure["n"])
              for key, measure in rows],
        told=summarise_run(run.summary, run.metrics).sentences() if rows else [],
        config_file=CONFIG_FILE,
    )  # fmt: skip
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")


def _result(key: str, measure: Mapping[str, Any]) -> EvalResult:
    """One key of the table, as the hub's model-index has it."""
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
    folder = known[-1] if name == "last" and known else (run / FOLDER / name).resolve()
    if not (folder / "config.json").is_file():
        there = ", ".join(["last", "best", *(path.name for path in known)])
        raise UserError(f"export: expected a checkpoint of {run}, one of {there}, got {name!r}")
    return folder


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def upload_plan(files: Sequence[Path], name: str) -> list[str]:
    """What an upload would send, a line a file."""
    return [f"{file.name}  {file.stat().st_size:,} bytes  to {name}" for file in files]
