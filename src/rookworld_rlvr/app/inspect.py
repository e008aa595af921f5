"""`rookworld inspect BATCH`: replay the batch of a fault, and show the terms of its loss and any fault that recurs."""

import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from ..errors import DONE, UserError
from ..files import follow
from ..model.weights import load_training_state
from ..objective import LossSizes
from ..report.terminal import printable
from ..rewards.rubric import MoveSource
from ..rollout.generator import GeneratorKind
from ..stability.faults import FaultError
from ..training.all_moves import MoveBatch
from ..training.checkpoint import checkpoint_step, first_whole, list_checkpoints, load_checkpoint
from ..training.checks import check_kl, check_loss
from ..training.config import RunConfig
from ..training.diagnosis import load_fault
from ..training.loss import MicroLoss
from ..training.run_files import CONFIG_FILE
from ..training.state import StepContext
from ..training.step import check_gradient, completions_loss, kl_limit, loss_plan, moves_loss
from .arguments import OneLineParser
from .build import build_unsaved_run, make_console, print_lines
from .train import saved_settings

SHOWN_SAMPLES = 8


def main(argv: list[str]) -> int:
    """Run the command and return 0, whether or not the fault occurs again. Raises UserError."""
    parser = OneLineParser(prog="rookworld inspect", description="Replay the batch of a fault.")
    parser.add_argument("batch", metavar="BATCH", type=follow, help="a file of a run's folder, faults/step-N.pt")
    inspect_batch(parser.parse_args(argv).batch)
    return DONE


def inspect_batch(path: Path) -> None:
    """Print the saved fault and samples, then run the forward and backward pass again. Raises UserError."""
    saved = load_fault(path)
    console = make_console()
    fault = saved["fault"]
    lines = [printable(f"step {saved['step']}: {fault['kind']}: {fault['tensor']}: {fault['detail']}")]
    for sample in saved["samples"][:SHOWN_SAMPLES]:
        prompt, completion = printable(sample["prompt"]), printable(sample["completion"])
        lines.append(f"reward {sample['reward']:+.3f}  {prompt}  →  {completion}")
    print_lines(console, *lines)
    if saved["batch"] is None or not len(saved["batch"].tokens_BT):
        print_lines(console, "nothing to replay: it happened without a batch of completions")
        return
    context, weights = _context(path.resolve().parents[1], saved)
    print_lines(console, f"weights: {weights}")
    _replay(console, context, saved)


def _context(run_folder: Path, saved: dict[str, Any]) -> tuple[StepContext, str]:
    """Return the run's context, with the weights in the file or of the newest earlier checkpoint, and their origin."""
    try:
        raw = OmegaConf.merge(OmegaConf.structured(RunConfig), saved_settings(run_folder / CONFIG_FILE))
        config: Any = OmegaConf.to_object(raw)
    except (ValueError, OmegaConfBaseException) as error:
        raise UserError(f"inspect: expected the run's {CONFIG_FILE} in {run_folder}: {error}") from error
    config.evaluation.rows = 0
    # A single process replays the batch, even if several processes trained.
    config.processes = 1
    # Nothing is sampled or scored here. A server or an engine is not started, because it may be what failed.
    config.generator.kind = GeneratorKind.hf
    config.rubric.source = MoveSource.rules
    context = build_unsaved_run(config).context
    earlier = [folder for folder in list_checkpoints(run_folder) if checkpoint_step(folder) < saved["step"]]
    loaded: list[Path] = []

    def load(folder: Path) -> None:
        load_checkpoint(folder, context)
        loaded.append(folder)

    if earlier:
        first_whole(earlier[::-1], load, lambda line: print(f"rookworld: {line}", file=sys.stderr))
    if saved["policy"] is not None:
        load_training_state(context.policy.model, saved["policy"])
        return context, "those of the fault"
    return context, str(loaded[-1] if loaded else "those the run began with")


def _replay(console: Console, context: StepContext, saved: dict[str, Any]) -> None:
    policy, batch = context.policy, saved["batch"].to(context.policy.device)
    tokens, max_tokens = batch.trained_tokens(), context.config.generator.max_new_tokens
    sizes = LossSizes(completions=len(batch.tokens_BT), tokens_per_update=tokens, max_tokens=max_tokens)
    weight = saved.get("moves_temperature", 0.0)
    plan = loss_plan(context, sizes, kl_coef=saved["kl_coef"], moves_temperature=weight)
    try:
        if isinstance(batch, MoveBatch):
            loss, totals = moves_loss(policy, batch, plan)
            print_lines(console, f"{'expected value':<15} {totals.expected_value_sum:.6g}")
        else:
            micro_loss = completions_loss(policy, batch, plan)
            loss = micro_loss.loss
            _show_terms(console, micro_loss)
            if plan.objective.all_moves_coef:
                print_lines(console, "left out: the expected value over all legal moves, which the file does not have")
            check_loss(loss, batch)
            check_kl(micro_loss.totals, kl_limit(context.config), batch)
        loss.backward()
        grads = [p.grad for p in policy.model.parameters() if p.grad is not None]
        grad_norm = float(torch.nn.utils.get_total_norm(grads))
        print_lines(console, f"gradient norm   {grad_norm:.6g}")
        check_gradient(context, grad_norm, batch)
    except FaultError as error:
        print_lines(console, f"again: {error.fault}")
        return
    print_lines(console, "not again: forward and backward pass are finite and usual here")


def _show_terms(console: Console, micro_loss: MicroLoss) -> None:
    tokens = micro_loss.totals
    terms = {
        "loss": micro_loss.loss.item(),
        "surrogate mean": tokens.surrogate_sum / tokens.count,
        "kl term mean": tokens.kl_term_sum / tokens.count,
        "entropy mean": tokens.entropy_sum / tokens.count,
        "largest ratio": tokens.ratio_max,
        "largest kl": tokens.kl_max,
    }
    print_lines(console, *(f"{name:<15} {value:.6g}" for name, value in terms.items()))
