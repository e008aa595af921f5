"""TRL's GRPOTrainer as a side of a comparison; see `sides` and `peers`."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any

# A module in this folder.
import sides

# Names of the option in transformers, the newest first.
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


@dataclass(frozen=True)
class TrlSide:
    """Settings of TRL's side."""

    overrides: list[str]
    """Overrides of our configuration, from which data, reward and number of samples are taken."""
    settings: dict[str, Any]
    """Arguments of GRPOConfig."""
    same_process: bool


def theirs(connection: Connection, side: TrlSide) -> None:
    """Make TRL's rounds, see `sides.Side`: run `GRPOTrainer.train`, which waits at the end of a round."""
    if side.same_process:
        from rookworld_rlvr.app.process import prepare_process

        prepare_process()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from rookworld_rlvr.app.build import set_threads
    from rookworld_rlvr.model.loading import TINY, tiny_model_folder
    from rookworld_rlvr.tasks.prompt_stream import PromptStream, shares
    from rookworld_rlvr.training.data import load_data

    before_gib = sides.begin_memory()
    config = sides.configured(side.overrides)
    set_threads(config.threads)
    torch.manual_seed(config.seed)
    sampler = PromptStream(load_data(config.data, seed=config.seed).train, shares(config.data.tasks), config.seed)
    examples = sampler.draw(config.objective.prompts_per_step * config.steps)
    counted = sides.Counted()
    arguments = dict(side.settings)
    checkpointing = arguments.pop(CHECKPOINTING[0])
    # transformers 5.17 has the older name.
    known = {spec.name for spec in fields(GRPOConfig)}
    arguments[next(name for name in CHECKPOINTING if name in known)] = checkpointing
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=str(tiny_model_folder()) if config.model.path == TINY else config.model.path,
            reward_funcs=scoring(config, counted),
            args=GRPOConfig(output_dir=folder, **arguments),
            train_dataset=Dataset.from_list([{"prompt": e.prompt, "label": e.completion} for e in examples]),
            callbacks=[waiting(connection, counted, before_gib, checkpointing=checkpointing)],
        )
        trainer.model.generate = timed(trainer.model.generate, counted)
        # It would print into the table.
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def timed(generate: Callable[..., Any], counted: sides.Counted) -> Callable[..., Any]:
    """Return a function that samples by `generate` and counts the seconds."""
    from rookworld_rlvr.model.device import synchronise

    def measured(*given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        sampled = generate(*given, **named)
        synchronise(sampled.device)
        counted.generate_s += time.perf_counter() - started
        return sampled

    return measured


def scoring(config: Any, counted: sides.Counted) -> Callable[..., list[float]]:
    """Return TRL's reward function: our rubric, with the same evaluations of moves."""
    from rookworld_rlvr.rewards.score import ScoreRequest
    from rookworld_rlvr.rewards.scorer import make_scorer

    scorer = make_scorer(config.rubric)

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], label: list[str | None], **_: Any
    ) -> list[float]:
        started = time.perf_counter()
        rows = zip(prompts, completions, label, strict=True)
        scores = scorer.score_all([ScoreRequest(prompt, text, known) for prompt, text, known in rows])
        rewards = [score.total for score in scores]
        counted.add_step([len(ids) for ids in completion_ids], rewards)
        counted.score_s += time.perf_counter() - started
        return rewards

    return reward


def waiting(connection: Connection, counted: sides.Counted, before_gib: float, *, checkpointing: bool) -> Any:
    """Return a TRL callback that sends each finished round and waits for the next one's steps; None ends training."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._next(control)

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            counted.updates += 1
            self._left -= 1
            if self._left == 0:
                assert named["model"].is_gradient_checkpointing == checkpointing
                connection.send(counted.round(grown_gib=sides.grown_gib(before_gib, sides.peak_gib())))
                self._next(control)

        def _next(self, control: Any) -> None:
            self._left = connection.recv()
            control.should_training_stop = self._left is None
            counted.begin()

    return Turns()
