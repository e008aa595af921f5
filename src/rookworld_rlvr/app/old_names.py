"""Earlier names of options and groups, which went or have other names now, with what to use in their place."""

from collections.abc import Mapping, Sequence

from ..errors import UserError

# Options of a run, a benchmark and an evaluation, each with what to use. A name stands for all options below it, too.
OPTIONS: Mapping[str, str] = {
    "evaluation_rows": "use evaluation.rows",
    "mate_in_one.path": "use evaluation.mates",
    "mate_in_one.limit": "it went; all positions of the file evaluation.mates count",
    "model.attention": "it went; the device decides",
    "data.split": "it went; write a data set's split after its name, as in data.train=NAME:SPLIT",
    "generator.vllm.urls": "use generator.vllm.url",
    "generator.vllm.sync_folder": "it went; the server gets the weights from the trainer",
    "generator.vllm.timeout_s": "it went; the time is fixed",
    "generator.vllm.retries": "it went; a request is not repeated",
}
# Options of a run and a benchmark.
RUN_OPTIONS: Mapping[str, str] = {
    "sampled_rows": "use evaluation.sampled_rows",
    "match_pairs": "use evaluation.match_pairs",
    "match_plies": "use evaluation.match_plies",
    "validation.every": "use evaluation.curve_every",
    "validation.rows": "use evaluation.curve_rows",
    "evaluation_nodes": "it went; rookworld evaluate measures by an engine, with evaluation.nodes",
    "keep_checkpoints": "it went; the two newest checkpoints are kept, and the best and the last good one",
    "rollouts_every": "it went; every tenth step has transcripts, and the first and the last",
    "max_staleness": "it went; every step samples from the current weights",
    "trust": "it went; give the program or the address again, none is taken from a saved configuration",
    "distributed.kind": "use distributed",
    "distributed.timeout_s": "it went; the time is fixed",
    "model.dropout": "it went; dropout is always off",
    "model.packing": "it went; rows are packed where the model allows it",
    "model.compile": "it went; the blocks are never compiled",
    "data.mixture": "use data.tasks, as in data.tasks=[policy:3,environment:1]",
    "data.policy_share": "use data.tasks, as in data.tasks=[policy:3,environment:1]",
    "rubric.policy.correctness": "use rubric.policy.weights",
    "rubric.environment.correctness": "use rubric.environment.weights",
    "rubric.stockfish.cache": "it went; evaluations are always kept, and XDG_CACHE_HOME names the folder",
    "rubric.stockfish.timeout_s": "it went; the time grows with rubric.stockfish.nodes",
    "objective.clip.clip_low": "use objective.clip.low",
    "objective.clip.clip_high": "use objective.clip.high",
    "objective.mismatch.cap": "use objective.mismatch_cap",
    "objective.mismatch.mode": "use objective.mismatch_cap; 0 turns the correction off",
    "objective.loss=bnpo": "use objective.loss=dapo",
    "kl.measured": "use kl.form=off in place of kl.measured=false",
    "recovery.guard.kl_limit": "use recovery.kl_limit",
    "recovery.guard.spike_factor": "it went; the factor is 10",
    "recovery.restore_after": "it went; two faults in a row restore a checkpoint",
    "recovery.max_restores": "it went; eight restores are allowed",
    "optim.beta1": "it went; the decay is 0.9",
    "optim.beta2": "it went; the decay is 0.99",
    "logging.project": "it went; the environment variable WANDB_PROJECT names the project",
}
# Options of an evaluation.
EVALUATE_OPTIONS: Mapping[str, str] = {
    "evaluation_nodes": "use evaluation.nodes",
    "match.pairs": "use evaluation.match_pairs",
    "match.max_plies": "use evaluation.match_plies",
    "engine_match.pairs": "use evaluation.match_pairs",
    "engine_match.max_plies": "use evaluation.match_plies",
    "engine_match.decoding": "use match.decoding",
    "engine_match.pgn": "use match.pgn",
    "engine_match.opponent.path": "use stockfish.path",
    "engine_match.opponent": "use match.opponent=stockfish and match.stockfish",
    "stockfish.cache": "it went; evaluations are always kept, and XDG_CACHE_HOME names the folder",
    "stockfish.timeout_s": "it went; the time is fixed",
}
# Values of groups that set a single option.
VALUES: Mapping[str, str] = {
    "generator.kind=static": "use generator.kind=native",
    "generator=static": "use generator.kind=native",
    **{f"generator={kind}": f"use generator.kind={kind}" for kind in ("native", "hf", "vllm", "vllm_server")},
    "model=tiny": "use model.path=tiny",
}
RUN_VALUES: Mapping[str, str] = {
    "model=rookworld_124m": "use experiment=rookworld_124m",
    "optim=rookworld_124m": "use experiment=rookworld_124m",
    "logging=console": "use logging.tracker=none",
    **{f"logging={tracker}": f"use logging.tracker={tracker}" for tracker in ("wandb", "tensorboard")},
    **{f"rubric={source}": f"use rubric.source={source}" for source in ("engine", "labels", "rules")},
    **{f"kl={form}": f"use kl.form={form}" for form in ("off", "exact", "in_reward", "k3_naive")},
    "kl=warmup": "use kl.warmup_steps=50",
    "reference=refreshed": "use reference.refresh_every=50",
    "recovery=off": "use recovery.enabled=false",
    "objective=bnpo": "use objective.loss=dapo",
    "distributed=none": "use processes=1",
}
EVALUATE_VALUES: Mapping[str, str] = {
    "model=rookworld_124m": "use model.path=jrahn/RookWorld-LM-124M",
    "suites=[engine_match]": "use suites=[match] and match.opponent=stockfish",
}
OLD_NAMES: Mapping[str, Mapping[str, str]] = {
    "train": {**OPTIONS, **RUN_OPTIONS, **VALUES, **RUN_VALUES},
    "bench": {**OPTIONS, **RUN_OPTIONS, **VALUES, **RUN_VALUES},
    "evaluate": {**OPTIONS, **EVALUATE_OPTIONS, **VALUES, **EVALUATE_VALUES},
    "sft": {"model.attention": OPTIONS["model.attention"]},
}


def refuse_old_names(command: str, overrides: Sequence[str]) -> None:
    """Raise UserError if an override has an old name of an option or a group of the command, with what to use."""
    old = OLD_NAMES[command]
    for override in overrides:
        name, _, value = override.lstrip("+~").partition("=")
        # A sweep has several values. The name may be that of an option below the old one.
        values = [f"{name}={one}" for one in value.split(",")]
        groups = [name[:end] for end, character in enumerate(name) if character == "."]
        for found in (*values, name, *groups):
            if found in old:
                raise UserError(f"{found}: {old[found]}")
