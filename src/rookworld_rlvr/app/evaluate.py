"""`rookworld evaluate model.path=…`: the held-out table of any model."""

from contextlib import closing, nullcontext
from pathlib import Path

from omegaconf import DictConfig

from ..evaluation import summarise, to_json
from ..evaluation.run import evaluate
from ..training.data import evaluation_rows, load_data
from ..training.errors import UserError
from ..training.policy import load_policy, select_device
from ..training.run_folder import write_json
from .config import EvaluateConfig
from .hydra_command import run_command
from .judges import make_measure
from .tables import evaluation_table
from .wiring import make_console, make_generator, set_threads


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    return run_command("evaluate", EvaluateConfig, argv, _evaluate)


def _evaluate(config: EvaluateConfig, _raw: DictConfig) -> None:
    if config.evaluation_rows < 1:
        raise UserError(f"evaluation_rows: expected 1 or more, got {config.evaluation_rows}")
    if config.output and not Path(config.output).resolve().parent.is_dir():
        raise UserError(f"output: expected a file in a folder that exists, got {config.output}")
    set_threads(config.threads)
    data = load_data(config.data, seed=config.seed)
    policy = load_policy(config.model, select_device(config.device), config.precision)
    rows = evaluation_rows(data.held_out, config.evaluation_rows)
    generator = make_generator(policy, config.generator)
    engine = make_measure(config.engine, config.evaluation_nodes, "engine")
    with closing(engine.pool) if engine else nullcontext():
        table = to_json(summarise(evaluate(generator, policy.tokenizer, rows, engine=engine)))
    make_console().print(evaluation_table(table))
    if config.output:
        write_json(Path(config.output), table)
