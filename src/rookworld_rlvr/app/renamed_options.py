"""Options, group choices and commands of earlier versions, each with its present name or the reason for its removal."""

from collections.abc import Sequence

REMOVED = "(removed: "
"""Prefix of a hint that gives a reason instead of a new name; the hint ends with the closing bracket."""
LEAVE_OUT = f"{REMOVED}it is the default, leave it out)"
FIXED_MIXTURE = f"{REMOVED}the mixture of the tasks is fixed)"
NO_SELF_PLAY = f"{REMOVED}prompts come from the examples alone)"

NOW_CONSTANTS = (
    "recovery.good_steps recovery.ramp_steps recovery.max_ineffective_steps recovery.keep_faults "
    "recovery.guard.history recovery.guard.spike_sigmas recovery.guard.kl_floor recovery.guard.collapse_drop "
    "warnings kl.raise_above kl.raise_factor kl.lower_below kl.lower_factor kl.max_coef "
    "objective.collection.refill_rounds reference.mixup rubric.policy.structure rubric.policy.parse "
    "rubric.policy.eval_scale_pawns rubric.policy.eval_tolerance rubric.environment.structure "
    "rubric.environment.parse rubric.environment.similarity rubric.environment.unparsable_fen_credit "
    "rubric.warmup_start distributed.check_every data.held_out_fraction rubric.stockfish.hash_mib "
    "rubric.stockfish.attempts stockfish.hash_mib stockfish.attempts objective.advantage.clip kl.token_clamp "
)
"""Options of earlier versions that nobody set: their values stand in the code."""

# An entry without "=" covers the option and everything below it; with "=" it covers one value or one group choice.
RENAMED_OPTIONS: dict[str, str] = {
    "init_from": "model.path",
    "objective.advantage.gate": "objective.advantage.outcome_filter",
    "match_halfmoves": "match_plies",
    "objective.collection.uninformative": "objective.collection.zero_variance",
    "data.mixture.headroom": FIXED_MIXTURE,
    "data.mixture.adaptive": FIXED_MIXTURE,
    "data.live": NO_SELF_PLAY,
    "data.self_play": NO_SELF_PLAY,
    "experiment=live": NO_SELF_PLAY,
    "experiment=self_play": NO_SELF_PLAY,
    "reference=gated": "reference=on_improvement",
    "reference.mode=gated": "reference.mode=on_improvement",
    "rubric.judge": "rubric.source",
    "rubric.judge=verdicts": "rubric.source=cached",
    "rubric.verdicts": "rubric.move_evals",
    "rubric.engine": "rubric.stockfish",
    "rubric.rungs": "rubric.tiers",
    "engine": "stockfish",
    "judge_processes": "(removed: completions are scored in the process of the run)",
    "judge_timeout_s": "(removed: completions are scored in the process of the run)",
    "selfplay.max_halfmoves": "selfplay.max_plies",
    "match.max_halfmoves": "match.max_plies",
    "engine_match.max_halfmoves": "engine_match.max_plies",
    "closed_world": f"{REMOVED}the suite world_model is gone)",
    "balanced": f"{REMOVED}recalls of the suite environment are by class)",
    "retention": f"{REMOVED}suites=[label_loss] on both models, then evaluate compare)",
    "puzzles": f"{REMOVED}suites=[mate_in_one] solves positions of a file)",
    "world_model": f"{REMOVED}the suite world_model is gone)",
    "generator.compile": "(removed: it was slower wherever it was measured)",
    "generator.top_p": "(removed: training needs the whole distribution's log-probs)",
    "generator.top_k": "(removed: training needs the whole distribution's log-probs)",
    "kl=ratio_corrected": "kl.form=k2_straight_through",
    "kl.form=ratio_corrected": "kl.form=k2_straight_through",
    "kl=proportional": "kl=adaptive",
    "kl.control=proportional": "kl.control=adaptive",
    "kl=budget": "kl=adaptive",
    "kl.control=budget": "kl.control=adaptive",
    "kl.gain": "(removed: with the proportional and budget controllers)",
    "kl.error_clip": "(removed: with the proportional and budget controllers)",
    "objective.clip.dual_clip": "(removed: recovery catches a token that runs away against its advantage)",
    "objective.collection.kl_cap": "(removed: recovery and kl.coef bound the KL)",
    "objective.entropy.coef": "objective.entropy_coef",
    "objective.entropy": "(removed: the entropy bonus has a fixed coefficient, objective.entropy_coef)",
    "reference.tolerance": "(removed: a refresh on improvement allows no fall of the score)",
    "reference.kl_budget": "(removed: reference.refresh_every alone decides when a refresh is due)",
    "reference.reset_optimizer": "(removed: the optimiser keeps its moments at a refresh)",
    "logging.wandb_mode": "(removed: set the environment variable WANDB_MODE; the default is offline)",
    "logging=trackio": f"{REMOVED}use logging=wandb or logging=tensorboard)",
    "logging.tracker=trackio": f"{REMOVED}use logging.tracker=wandb or logging.tracker=tensorboard)",
    "logging.console_every": "(removed: the console has a line per step)",
    "kl.warmup_factor": "(removed: the warm-up begins at 0)",
    "rubric.stockfish.cache_folder": "(removed: set XDG_CACHE_HOME)",
    "stockfish.cache_folder": "(removed: set XDG_CACHE_HOME)",
    "objective.mismatch.floor": "(removed: the masks drop ratios below 1 / objective.mismatch.cap)",
    "generator.vllm.sleep": "(removed: vLLM on CUDA always gives its memory back while the trainer works)",
    "model.lora": f"{REMOVED}all weights are trained)",
    "data=default": LEAVE_OUT,
    "rubric=default": LEAVE_OUT,
    "recovery=default": LEAVE_OUT,
    "optim=tiny": LEAVE_OUT,
}
RENAMED_OPTIONS |= dict.fromkeys(NOW_CONSTANTS.split(), f"{REMOVED}now a constant in the code)")
RENAMED_COMMANDS: dict[str, str] = {
    "warmstart": "sft",
    "pretrain": "(removed: bash recipes/tiny_model/run.sh makes a model from nothing)",
    "data verdicts": "data evals",
    "data selfplay": "(removed: evaluate 'suites=[selfplay]' selfplay.pgn=games.pgn plays games that are data)",
}


def renamed_option(overrides: Sequence[str]) -> str:
    """Return one line on the first override that names an option of earlier versions, or "" if none does.

    >>> renamed_option(["steps=3", "++steps=4"])
    ''
    """
    return next(filter(None, map(_hint, overrides)), "")


def renamed_command(words: Sequence[str]) -> str:
    """Return one line if `words`, a command and perhaps its subcommand, were renamed or removed, else ""."""
    for length in (1, 2):
        old = " ".join(words[:length])
        if old in RENAMED_COMMANDS:
            return _line(f"rookworld {old}", RENAMED_COMMANDS[old], "rookworld ")
    return ""


def _hint(override: str) -> str:
    name, _, value = override.lstrip("+~").partition("=")
    if new := RENAMED_OPTIONS.get(f"{name}={value}"):
        return _line(f"{name}={value}", new)
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        old, below = ".".join(parts[:length]), "".join(f".{part}" for part in parts[length:])
        if new := RENAMED_OPTIONS.get(old):
            return _line(name, new if new.startswith(REMOVED) else new + below)
    return ""


def _line(old: str, new: str, prefix: str = "") -> str:
    if new.startswith(REMOVED):
        return f"{old} was removed: {new.removeprefix(REMOVED).removesuffix(')')}"
    return f"{old} was renamed: use {prefix}{new}"
