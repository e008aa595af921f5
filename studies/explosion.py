"""`python studies/explosion.py`: reproduce each cause of the predecessor's failure and write the page about them.

Document 002, written by the predecessor, reports a KL of 15 before the first update and then NaN. Each cause that it
names, and each that was found in addition, is put into a separate run: 20 steps of 4 prompts with a GPT-2 that
supervised training has taught some of the format.
The table in `docs/studies/explosion.md` shows the effect of each cause without recovery and with it, and which
preflight checks refuse it. The script takes about 20 minutes on one core. Run it in the root folder of the checkout.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from omegaconf import OmegaConf
from torch import Tensor
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from rookworld_rlvr.app.build import build_run
from rookworld_rlvr.app.cli import main as rookworld
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.files import write_text
from rookworld_rlvr.model import batch
from rookworld_rlvr.model.loading import tiny_model_folder
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.objective import ClipConfig, keep, kl_k3
from rookworld_rlvr.objective.losses import LOSSES
from rookworld_rlvr.objective.policy_loss import PolicyLoss, clipped_surrogate
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rollout.groups import Collected
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.data import default_file
from rookworld_rlvr.training.loop import run_steps
from rookworld_rlvr.training.preflight import PreflightInput, preflight_examples, preflight_input, run_preflight
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.run_files import METRICS_FILE
from rookworld_rlvr.training.state import Hook, Moment
from rookworld_rlvr.training.trainer import begin

PAGE = Path("docs", "studies", "explosion.md")
BEGIN, END = "<!-- measured -->\n", "<!-- end of what was measured -->\n"
STEPS, SFT_STEPS = 20, 400
RUN = [
    *(f"steps={STEPS}", "threads=1", "device=cpu", "evaluation_rows=0", "validation.every=0"),
    *("objective.prompts_per_step=4", "optim.warmup_steps=0", "optim.min_lr_fraction=1"),
]
# Components that are right or wrong by the rules alone: the best move's legality, and the whole transition.
RIGHT_COMPONENTS = (
    "correctness/best_legal",
    *(f"correctness/{name}" for name in ("next_state_exact", "reward", "terminated", "truncated")),
)
# A legal best move is good from this value on: by default its win-probability loss is then at most 0.05.
GOOD_MOVE_VALUE = 0.5**0.5
# Factor on the temperature of the old log-probs in the run whose old log-probs are warped.
WARP = 0.7


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake that a trainer like the predecessor can have, and how to put it into a run."""

    name: str
    overrides: tuple[str, ...] = ()
    hook: Hook | None = None
    inject: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Context manager in which the code has the mistake."""
    random_weights: bool = False


def scaled_by_tokens(moment: Moment, context: Any, report: Any) -> None:
    """Multiply the gradient by the number of tokens, as a loss that sums over tokens would."""
    if moment is Moment.accumulated:
        tokens = float(report.collection.sampled_tokens)
        for parameter in context.policy.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(tokens)


def all_minus_1(moment: Moment, _context: Any, report: Any) -> None:
    """Set every reward to -1."""
    if moment is Moment.collected:
        report.rewards_PG.fill_(-1.0)


def is_right(score: Score) -> bool:
    """Return True if the best move is legal and, with evaluations, good (`P:`), or if the transition is right (`A:`).

    With evaluations a completion without a legal candidate is wrong. If no component applies (a `P:` prompt in mate or
    stalemate), a well-formed completion is right. A malformed completion is wrong.
    """
    components = score.components
    # `best_value` is the value of the best move times `candidates`, the share of distinct legal candidates.
    value, candidates = components.get("correctness/best_value"), components.get("correctness/candidates", 0.0)
    good = value is None or value >= GOOD_MOVE_VALUE * candidates > 0
    right = all(components.get(component, 1.0) == 1.0 for component in RIGHT_COMPONENTS)
    return score.failure is None and good and right


def right_completions(collected: Collected) -> Tensor:
    """Return which completions are right, see `is_right`; bool (P, G)."""
    return torch.tensor([[is_right(sample.score) for sample in group.samples] for group in collected.groups])


def binary(moment: Moment, _context: Any, report: Any) -> None:
    """Set the reward of a right answer to 1 and every other reward to -1."""
    if moment is Moment.collected:
        report.rewards_PG.copy_(torch.where(right_completions(report.collection.collected), 1.0, -1.0))


@contextmanager
def positions_from_pads() -> Iterator[None]:
    """Count the padding as positions, as transformers' GPT-2 does for rows that are padded on the left."""

    def counted(attention_BT: Tensor) -> Tensor:
        return torch.arange(attention_BT.shape[1]).expand(attention_BT.shape)

    with (
        patch("rookworld_rlvr.training.preflight.position_ids", counted),
        patch.object(GPT2LMHeadModel, "forward", _without_positions),
    ):
        yield


_forward = GPT2LMHeadModel.forward


def _without_positions(self: GPT2LMHeadModel, *arguments: Any, **named: Any) -> Any:
    return _forward(self, *arguments, **(named | {"position_ids": None}))


@contextmanager
def warped_old_logprobs() -> Iterator[None]:
    """Take the old log-probs from the warped distribution that was sampled from, while the new ones stay raw."""
    real = Policy.logprob_table

    def warped(self: Policy, given: batch.Batch, **named: Any) -> Any:
        return real(self, given, **(named | {"temperature": named["temperature"] * WARP}))

    with patch.object(Policy, "logprob_table", warped):
        yield


def mean_against_sum(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """Return the clipped surrogate with one ratio per completion, the exponential of new less old log-prob.

    The new log-prob is a mean over the completion's tokens, the old one a sum, as in the predecessor's code (commit
    3c352b9 of jorahn/rookworld-rlvr). The exponent has no bound. Arguments as in `clipped_policy_loss`.
    """
    lengths_B1 = loss_mask.sum(-1, keepdim=True).clamp(min=1)
    new_B1 = keep(logprobs, loss_mask).sum(-1, keepdim=True) / lengths_B1
    ratio = (new_B1 - keep(old_logprobs, loss_mask).sum(-1, keepdim=True)).exp().expand_as(logprobs)
    return clipped_surrogate(ratio, advantages_B=advantages_B, loss_mask=loss_mask, clip=clip)


def sums_as_old_logprobs() -> AbstractContextManager[Any]:
    """Use the surrogate of `mean_against_sum` in every loss."""
    return patch.dict(LOSSES, {kind: replace(loss, surrogate=mean_against_sum) for kind, loss in LOSSES.items()})


TWO_UPDATES = ("objective.epochs=2",)
CAUSES = (
    Cause("none"),
    Cause("dropout 0.1 in the policy, as GPT-2's configuration says", ("model.dropout=0.1",)),
    Cause("positions counted from the pads", ("generator.kind=hf",), inject=positions_from_pads),
    Cause("sums over tokens in place of means", hook=scaled_by_tokens),
    Cause("the same without clipping", ("optim.max_grad_norm=1e9",), hook=scaled_by_tokens),
    Cause(f"old log-probs at temperature {WARP}, new ones at 1", TWO_UPDATES, inject=warped_old_logprobs),
    Cause("every reward -1", hook=all_minus_1),
    Cause("1 for a right answer, else -1", hook=binary),
    Cause("random weights", random_weights=True),
    Cause("old log-probs as sums, new ones as means", inject=sums_as_old_logprobs),
    Cause(
        "the same with random weights and every reward -1",
        hook=all_minus_1,
        inject=sums_as_old_logprobs,
        random_weights=True,
    ),
)


def models(folder: Path) -> dict[bool, Path]:
    """Make folders of a GPT-2 with random weights (True) and one that supervised training taught the format (False)."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=len(tokenizer), n_positions=256, n_embd=128, n_layer=4, n_head=4,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    at_random, taught = folder / "random", folder / "taught"
    GPT2LMHeadModel(shape).save_pretrained(at_random)
    tokenizer.save_pretrained(at_random)
    given = [
        f"model.path={at_random}",
        f"output={taught}",
        f"corpus=[{default_file('train.txt')}]",
        f"steps={SFT_STEPS}",
        "lr=2e-3",
        "threads=1",
    ]
    if code := rookworld(["sft", *given]):
        sys.exit(code)
    return {True: at_random, False: taught}


def make_run(cause: Cause, model: Path, out: Path, *, recovery: bool) -> Run:
    """Return a run with the cause's options and hook; without recovery it has no guards and no restores."""
    given = [*RUN, *cause.overrides, f"model.path={model}", f"output_root={out}"]
    given.append(f"recovery.enabled={str(recovery).lower()}")
    raw: Any = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.from_dotlist(given))
    config: Any = OmegaConf.to_object(raw)
    run = build_run(config, raw)
    if cause.hook:
        run.context.hooks.append(cause.hook)
    return run


def kl_before_training(given: PreflightInput) -> float:
    """Return mean k3 of policy (in training mode, as in a step) and reference before any update; nats per token."""
    rows = given.batch()
    with torch.no_grad():
        given.policy.model.train()
        policy, reference = (
            side.statistics(rows, temperature=given.temperature).logprobs for side in (given.policy, given.reference)
        )
    return float(kl_k3(policy, reference).mean())


def measured(cause: Cause, model: Path, out: Path, *, recovery: bool) -> dict[str, Any]:
    """Return KL at step 0, the checks that refuse, and how a run that starts anyway `ended` (empty: all steps)."""
    with cause.inject():
        run = make_run(cause, model, out, recovery=recovery)
        given = preflight_input(run.context, preflight_examples(run.data.train))
        refused = [check.name for check in run_preflight(given) if not check.passed]
        kl_0, ended = kl_before_training(given), ""
        begin(run)
        try:
            run_steps(run, 0)
        except TrainingGaveUpError as error:
            ended = f"gave up: {str(error).partition(';')[0]}"
        finally:
            run.close()
    lines = (run.folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
    state = run.context.recovery
    recovered = {"skipped": state.skipped, "restores": state.restores, "lr_scale": state.lr_scale}
    return {
        "kl_0": kl_0,
        "refused": refused,
        "ended": ended,
        "steps": [json.loads(line) for line in lines],
        **recovered,
    }


def cells(name: str, off: dict[str, Any], on: dict[str, Any]) -> str:
    """Return the table's row of a cause, from a run without recovery and one with it."""
    refused = ", ".join(f"`{check}`" for check in off["refused"]) or "none"
    return f"| {name} | {off['kl_0']:.2f} | {refused} | {_ending(off)} | {_ending(on)} |"


def _ending(run: dict[str, Any]) -> str:
    """Return the last KL, the reward over the first and the last five steps, the faults, and how the run ended."""
    kl = [step["kl/exact"] for step in run["steps"] if step.get("kl/exact") is not None]
    rewards = [step["reward/mean"] for step in run["steps"] if step.get("reward/mean") is not None]
    first, last = fmean(rewards[:5]), fmean(rewards[-5:])
    parts = [f"KL {kl[-1]:.2f}" if kl else "no KL", f"reward {first:.2f} → {last:.2f}"]
    if run["skipped"]:
        parts.append(f"{run['skipped']} steps skipped, {run['restores']} restores, rate × {run['lr_scale']:.2g}")
    return "; ".join([*parts, run["ended"]] if run["ended"] else parts)


def main() -> None:
    """Run every cause, without recovery and with it, and write the page."""
    rows = [
        "| cause | KL at step 0 | refused by | 20 steps without recovery | 20 steps with it |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        made = models(Path(folder))
        for cause in CAUSES:
            runs = (measured(cause, made[cause.random_weights], Path(folder), recovery=on) for on in (False, True))
            rows.append(cells(cause.name, *runs))
            print(rows[-1], flush=True)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    write_text(PAGE, "\n".join([before + BEGIN, *rows, "", END + rest.partition(END)[2]]))


if __name__ == "__main__":
    main()
