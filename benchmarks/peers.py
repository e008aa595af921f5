"""Speed and memory of our step and of TRL's GRPOTrainer on the same work, in turns.

    .venv-peers/bin/python benchmarks/peers.py
    .venv-peers/bin/python benchmarks/peers.py --steps 2 --rounds 3 --threads 1 --json peers.json

Needs the environment for comparisons (`bash scripts/setup.sh peers`: TRL 1.16). Each side is a process of its own that
stays alive and makes one round of steps per request. The sides take turns, and the side that begins a round alternates;
a warm-up before that does not count. A step is measured as a whole: prompts, generation, reward, training, update.

The same on both sides: model and its float32 weights; the prompts and their order, both tasks mixed as our sampler
draws them; samples per prompt; longest completion; the reward, which is our rubric in the training process;
temperature 1, no top-p, no top-k; KL coefficient and a reference model in every step; bf16 autocast, or float32 on a
CPU without instructions for bf16 (`--precision`); dropout 0; micro-batch; one update per step by fused AdamW; learning
rate (constant, and so small that the completions stay like those of the starting model), betas, no weight decay,
gradients clipped at 1; loss dapo, clip 0.2 and 0.28, advantages divided by the batch's standard deviation; threads; no
logging, saving or evaluation within a round.

The sides differ as follows. Our side samples with its default generator, which computes a prompt once per group and on
a CPU uses float32 even with bf16; it trains packed rows, splits a micro-batch if a core would be idle, makes all checks
and guards, and prepares its process (allocator, waiting threads) before torch is imported, as `rookworld` does. TRL
calls `generate` under autocast and pads. Its attention is --trl-attention. Its gradient checkpointing, which is on by
default and trades speed for memory, is off without --trl-checkpointing. With --same-process its process is prepared
like ours.

The script checks that both sides made the same number of completions and updates, and that their mean lengths are
about equal. Memory is the growth of the peak of resident memory over the resident memory after the imports, before the
model is loaded; on CUDA it is the peak of the memory that torch allocated.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

# Modules in this folder. A script can import them, and so can the processes that it spawns.
import sides
import trl_side

LENGTH_TOLERANCE = 0.1


@dataclass(frozen=True)
class Settings:
    """Settings of both sides."""

    prompts: int
    group_size: int
    max_new_tokens: int
    micro_batch: int
    kl_coef: float
    lr: float
    seed: int
    threads: int
    model: str
    total_steps: int
    trl_attention: str
    trl_checkpointing: bool
    same_process: bool
    device: str
    precision: str

    @property
    def completions(self) -> int:
        """Completions per step."""
        return self.prompts * self.group_size

    def overrides(self) -> list[str]:
        """Return the overrides of our configuration; all other options have their defaults."""
        return [
            f"model.path={self.model}",
            f"objective.prompts_per_step={self.prompts}",
            f"objective.group_size={self.group_size}",
            f"generator.max_new_tokens={self.max_new_tokens}",
            # TRL also samples the completions of a step as one batch.
            f"generator.batch_size={self.completions}",
            f"optim.micro_batch_size={self.micro_batch}",
            f"optim.lr={self.lr}",
            "optim.warmup_steps=0",
            "optim.min_lr_fraction=1",
            f"kl.coef={self.kl_coef}",
            # TRL has no term for all legal moves.
            "objective.all_moves_coef=0",
            f"seed={self.seed}",
            f"threads={self.threads}",
            f"steps={self.total_steps}",
            f"precision={self.precision}",
            f"device={self.device}",
        ]


def trl_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of GRPOConfig: those that differ from its defaults, and some that are shown on purpose."""
    return {
        "per_device_train_batch_size": settings.micro_batch,
        "gradient_accumulation_steps": settings.completions // settings.micro_batch,
        "num_generations": settings.group_size,
        "max_completion_length": settings.max_new_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "beta": settings.kl_coef,
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "scale_rewards": "batch",
        "num_iterations": 1,
        "learning_rate": settings.lr,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "max_steps": settings.total_steps,
        "shuffle_dataset": False,
        "bf16": settings.precision == "bf16",
        "use_cpu": settings.device == "cpu",
        "disable_dropout": True,
        "activation_checkpointing": settings.trl_checkpointing,
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": settings.trl_attention},
        "seed": settings.seed,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def check_work(rounds: list[list[sides.Round]], settings: Settings, steps: int) -> None:
    """Raise SystemExit if a side did not do the round's work, or if the mean lengths of the completions differ."""
    for row in (row for side in rounds for row in side):
        if (row["completions"], row["updates"]) != (steps * settings.completions, steps):
            raise SystemExit(f"expected {steps} steps of {settings.completions} completions and one update, got {row}")
    our_length, their_length = (fmean(row["length"] for row in side) for side in rounds)
    if abs(our_length / their_length - 1) > LENGTH_TOLERANCE:
        raise SystemExit(f"expected completions of about equal length, got {our_length:.1f} and {their_length:.1f}")


def result(rounds: list[list[sides.Round]]) -> dict[str, Any]:
    """Return the medians of both sides, and ours divided by TRL's."""
    our_rounds, their_rounds = rounds
    names = ("median", "low", "high")
    speed = sides.ratio(our_rounds, their_rounds, "completions_per_s")
    return {
        "ours": sides.medians(our_rounds),
        "trl": sides.medians(their_rounds),
        "completions_per_s": dict(zip(names, speed, strict=True)),
        "grown_memory": our_rounds[-1]["grown_gib"] / their_rounds[-1]["grown_gib"],
        "rounds": {"ours": our_rounds, "trl": their_rounds},
    }


def show(measured: dict[str, Any]) -> None:
    """Print the result as Markdown."""
    columns = ("", "completions/s", "seconds a round", "mean length", "mean reward", "grown memory, GiB")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in ("ours", "trl"):
        row = measured[name]
        figures = f"{row['completions_per_s']:.1f} | {row['wall_s']:.2f} | {row['length']:.1f} | {row['reward']:+.3f}"
        print(f"| {name} | {figures} | {row['grown_gib']:.3f} |")
    speed = measured["completions_per_s"]
    times = f"{speed['median']:.2f} ({speed['low']:.2f}–{speed['high']:.2f})"
    print(f"| ours/TRL | {times} | | | | {measured['grown_memory']:.2f} |")


def arguments_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    # In the second step there are no new sizes for which kernels are chosen.
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=144)
    parser.add_argument("--micro-batch", type=int, default=64, help="must divide prompts × group size")
    parser.add_argument("--kl-coef", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--model", default="tiny", help="or a folder")
    parser.add_argument("--trl-attention", choices=("eager", "sdpa"), default="sdpa")
    parser.add_argument("--trl-checkpointing", action="store_true", help="gradient checkpointing, TRL's own default")
    parser.add_argument("--same-process", action="store_true", help="TRL, too, with our allocator and waiting threads")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of both sides")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), help="of both sides; default: what precision=auto is here"
    )
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    if arguments.prompts * arguments.group_size % arguments.micro_batch or arguments.kl_coef <= 0:
        parser.error("expected a micro-batch that divides prompts × group size, and a KL coefficient above 0")
    return arguments


def usual_precision(device: str) -> str:
    """Return what `precision=auto` is on this machine. The measured processes import torch on their own, later."""
    import torch

    from rookworld_rlvr.model.device import Precision, resolve_precision

    return resolve_precision(Precision.auto, torch.device(device)).value


def main() -> int:
    arguments = vars(arguments_given())
    steps, rounds, warmup, path = (arguments.pop(name) for name in ("steps", "rounds", "warmup_steps", "json"))
    arguments["precision"] = arguments["precision"] or usual_precision(arguments["device"])
    settings = Settings(**arguments, total_steps=warmup + steps * rounds)
    print(f"{settings}\nTRL: {trl_settings(settings)}\nours: {' '.join(settings.overrides())}\n", flush=True)
    other = trl_side.TrlSide(settings.overrides(), trl_settings(settings), settings.same_process)
    with sides.started([(sides.ours, settings.overrides()), (trl_side.theirs, other)]) as ends:
        [our_warmup], [their_warmup] = sides.take_turns(ends, rounds=1, steps=warmup, warmup_steps=0)
        found_rounds = sides.take_turns(ends, rounds=rounds, steps=steps, warmup_steps=0)
    check_work(found_rounds, settings, steps)
    warmup_s = {"ours": our_warmup["wall_s"], "trl": their_warmup["wall_s"]}
    measured = {"settings": asdict(settings) | {"steps": steps}, "warmup_s": warmup_s, **result(found_rounds)}
    print(f"warm-up of {warmup} steps: ours {warmup_s['ours']:.1f} s, TRL {warmup_s['trl']:.1f} s\n")
    show(measured)
    if path:
        path.write_text(json.dumps(measured, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
