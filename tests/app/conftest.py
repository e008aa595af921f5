"""Fixtures that compose a configuration as the command line does, and observers of its effects."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from hydra import compose, initialize_config_dir

from rookworld_rlvr.app.arguments import conf_folder
from rookworld_rlvr.app.build import build_unsaved_run, open_pool
from rookworld_rlvr.app.config import BenchRunConfig, EvaluateConfig, SFTRunConfig
from rookworld_rlvr.app.hydra_command import store_schema, to_dataclass
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.match import MatchConfig
from rookworld_rlvr.evaluation.players import Player
from rookworld_rlvr.model.batch import collate
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rewards import Rubric, ScorerError
from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.rollout.vllm_config import engine_arguments
from rookworld_rlvr.stability.faults import Fault, FaultError, FaultKind
from rookworld_rlvr.stability.recovery import Action, escalate
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.engine import engine_config
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.tasks.chat.prompts import ChatPromptConfig, chat_prompt
from rookworld_rlvr.training.checks import check_kl
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.loss import TokenTotals
from rookworld_rlvr.training.match_against_start import match_config, player_of
from rookworld_rlvr.training.metrics import step_metrics
from rookworld_rlvr.training.state import StepContext
from rookworld_rlvr.training.step import check_gradient, grpo_step, kl_limit

SCHEMA_OF = {
    "train": RunConfig,
    "bench": BenchRunConfig,
    "evaluate": EvaluateConfig,
    "sft": SFTRunConfig,
}
Composed = RunConfig | EvaluateConfig | SFTRunConfig


@pytest.fixture(scope="session")
def composed() -> Callable[..., Composed]:
    """Return a function that composes a command's configuration from overrides, as dataclasses."""

    def make(*overrides: str, command: str = "train") -> Composed:
        store_schema(command, SCHEMA_OF[command])
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            config: Composed = to_dataclass(compose(command, list(overrides)))
        return config

    return make


OF_THE_MACHINE = ("time/", "throughput/", "memory/")
FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
NEXT = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
LABEL = "M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.3 0.2 0.1 0.0 -0.1 B: e2e4"
P_PROBES = [
    "",
    "M: e2e4 E: 0.1",
    LABEL + " and more",
    "M: e2e4 x E: y 0.5 B: z",
    "M: e2e4 E: nan inf B: e9",
    "M: e2e4 e2e4 d2d4 E: 0.1 0.1 -2.0 B: d2d4",
    "M: e2e4 E: 0.1 B: g1f3",
    "M: a2a3 E: 0.1 B: a2a3",
]
A_PROBES = [
    f"{NEXT}+0.001",
    f"{NEXT}+0.001+0+0+more",
    "8/8 w - - 0 1+x+0+0",
    f"{NEXT}+x+2+0",
    f"{NEXT}+0.001+0+2",
    f"{FEN}+0.5+0+1",
    f"{NEXT.replace(' 0 1', ' 1 1')}+0.5+1+0",
    f"{NEXT.replace('4P3', '8')}+1.0+0+0",
]
CHAT_PROBES = ["<answer>a2a3</answer>", "MOVE: e2e5", "perhaps e2e4, perhaps d2d4"]


LEGAL = [move.uci() for move in chess.Board().legal_moves]
# In this analysis the first move mates.
VERDICT = Analysis(FEN, tuple((move, 0.5 - 0.3 * place if place else 999.99) for place, move in enumerate(LEGAL)))


def totals(config: RunConfig) -> list[float]:
    rubric = Rubric(config.rubric)
    probes = [(f"P: {FEN}", text, LABEL) for text in P_PROBES]
    probes += [(f"A: {FEN}+e2e4+e2e4+", text, None) for text in A_PROBES]  # type: ignore[misc]
    chat = chat_prompt(FEN, ChatPromptConfig())
    probes += [(chat, text, "e2e4") for text in CHAT_PROBES]
    return [rubric.score(*arguments, analysis=VERDICT).total for arguments in probes]


# The fake engine dies on this position.
DEADLY = NEXT


@pytest.fixture
def of_engines(
    fake_stockfish: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine_pids: Callable[[EnginePool], list[int]],
) -> dict[str, Any]:
    """Return observers of engines; the fake engine takes the place of the user's engine."""
    monkeypatch.setenv("STOCKFISH_PATH", str(fake_stockfish))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DIES", DEADLY)
    monkeypatch.chdir(tmp_path)

    def cached() -> dict[str, int]:
        files = [file for file in tmp_path.rglob("*.sqlite")]
        caches = {str(file.relative_to(tmp_path)): verdicts_in(file) for file in files}
        for file in [*files, *tmp_path.rglob("*.sqlite-*")]:
            file.unlink()
        return caches

    def failure(pool: EnginePool, fen: str) -> str:
        with pytest.raises(ScorerError) as failed:
            pool.analyse([fen])
        return str(failed.value)

    def verdicts(config: RunConfig) -> Any:
        """Return a pool's analyses, why it gives up a position, its number of processes and its cache files."""
        try:
            with closing(open_pool(engine_config(config.rubric.stockfish), "engine")) as pool:
                why = failure(pool, DEADLY)
                analyses = [pool.analyse([fen]) for fen in (FEN, FEN.replace(" w ", " b "))]
                return analyses, why, len(engine_pids(pool)), cached()
        except UserError as error:
            return str(error)

    return {"verdicts": verdicts}


def verdicts_in(file: Path) -> int:
    opened = sqlite3.connect(file)
    try:
        return int(opened.execute("SELECT count(*) FROM analyses").fetchone()[0])
    finally:
        opened.close()


def metrics_of_a_step(context: StepContext, step: int) -> dict[str, float]:
    """Return the metrics of a step without those that depend on the machine. The step must have no fault."""
    report = grpo_step(context, step)
    assert report.fault is None, report.fault
    metrics = step_metrics(report, context)
    return {key: metrics[key] for key in metrics if not key.startswith(OF_THE_MACHINE)}


def two_steps(config: RunConfig) -> list[Any]:
    context = build_unsaved_run(config).context
    context.config.steps = 4
    metrics = [metrics_of_a_step(context, step) for step in (0, 1)]
    return [*metrics, float(sum(p.detach().double().abs().sum() for p in context.policy.model.parameters()))]


class BiasedGenerator(HFGenerator):
    """A generator that reports every second token as 2.7 times as probable as it was, the others as a tenth."""

    def generate(self, *arguments: Any, **named: Any) -> list[list[SampledCompletion]]:
        return [[self._biased(done) for done in group] for group in super().generate(*arguments, **named)]

    @staticmethod
    def _biased(done: SampledCompletion) -> SampledCompletion:
        claimed = (logprob + (1.0 if place % 2 else -2.3) for place, logprob in enumerate(done.logprobs))
        return replace(done, logprobs=tuple(claimed))


def biased_sampler(config: RunConfig) -> dict[str, float]:
    """Return the metrics of a step on completions of a sampler that differs from the trainer."""
    context = build_unsaved_run(config).context
    policy = context.policy
    context.sampler.generator = BiasedGenerator(
        policy.model, config.generator, eos_id=int(policy.tokenizer.eos_token_id), pad_id=policy.pad_id
    )
    return metrics_of_a_step(context, 0)


def rows(config: RunConfig) -> Any:
    try:
        run = build_unsaved_run(config)
    except UserError as error:
        return str(error)
    return run.data.train, run.data.validation, run.data.held_out


def match(config: RunConfig) -> tuple[MatchConfig, type[Player]]:
    """Return the settings of the match between the trained and the starting model, and the kind of its players."""
    run = build_unsaved_run(config)
    return match_config(config), type(player_of(run, run.context.sampler.generator, run.context.policy, 0))


def draws(config: RunConfig) -> list[str]:
    """Return the tasks of the prompts that are drawn once the policy task is mastered."""
    sampler = build_unsaved_run(config).context.sampler.prompts
    for _ in range(100):
        sampler.observe("policy", 1.0)
    return [example.task for example in sampler.draw(12)]


def model(config: RunConfig) -> int:
    parameters: int = build_unsaved_run(config).context.policy.model.num_parameters()
    return parameters


def device(config: RunConfig) -> str:
    try:
        return build_unsaved_run(config).context.policy.device.type
    except UserError as error:
        return str(error)


def threads(config: RunConfig) -> int:
    try:
        build_unsaved_run(config)
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(1)


def first_layer(model: Any) -> torch.nn.Module:
    """Return the first block of a GPT-2 or a Qwen3."""
    body = model.base_model
    layers: torch.nn.ModuleList = body.h if hasattr(body, "h") else body.layers
    return layers[0]


def forward_passes(config: RunConfig) -> list[tuple[int, ...]]:
    """Return the number of rows, and of tokens in a row, of each pass through the model in one step."""
    context, sizes = build_unsaved_run(config).context, []
    first_layer(context.policy.model).register_forward_pre_hook(
        lambda _, inputs: sizes.append(tuple(inputs[0].shape[:2]))
    )
    grpo_step(context, 0)
    return sizes


def block_passes(config: RunConfig) -> int:
    """Return how often one step computes the first block's first part, including recomputation in backward."""
    context, passes = build_unsaved_run(config).context, []
    part = next(first_layer(context.policy.model).children())
    part.register_forward_pre_hook(lambda *_: passes.append(1))
    grpo_step(context, 0)
    return len(passes)


def engines(config: RunConfig) -> list[dict[str, Any]]:
    """Return the arguments that vLLM is started with, on a CPU and on CUDA."""
    start = partial(engine_arguments, "m", config.generator.vllm, batch_size=config.generator.batch_size)
    return [start(accelerated=cuda, dtype=torch.float32, sleeps=cuda) for cuda in (False, True)]


def server(config: RunConfig) -> str:
    """Return why a run without a server does not start."""
    with pytest.raises(UserError) as refusal:
        build_unsaved_run(config)
    return str(refusal.value)


def references(config: RunConfig) -> list[str]:
    """Return the checksum of the reference model after each of four steps with changed weights."""
    context, checksums = build_unsaved_run(config).context, []
    for step in range(1, 5):
        with torch.no_grad():
            for parameter in context.policy.model.parameters():
                parameter.add_(0.01)
        context.references.maybe_refresh(context.policy, step=step)
        checksums.append(checksum(context.references.current.model))
    return checksums


def alarms(config: RunConfig) -> list[str]:
    """Return the faults for scripted KLs and gradient norms: 12 usual steps, then 8 outliers."""
    context, faults = build_unsaved_run(config).context, []
    no_batch = collate([((1,), (2,))], pad_id=0, device=context.policy.device)
    for step, scale in enumerate([1.0, 1.1] * 6 + [12.0, 50.0] * 4):
        totals = TokenTotals(count=1, kl_count=1, kl_exact_sum=0.06 * scale)
        for check in (
            lambda totals=totals: check_kl(totals, kl_limit(config), no_batch),
            lambda scale=scale: check_gradient(context, 2 * scale, no_batch),
        ):
            try:
                check()
            except FaultError as error:
                faults.append(f"{step} {error.fault}")
        context.guards.grad_norm.observe(2 * scale, context.config.optim.max_grad_norm)
    return faults


def escalation(config: RunConfig) -> list[tuple[Action, float, int]]:
    """Return each scripted step's recovery action, learning rate scale and last good step, until the run gives up."""
    state, skipped, damaged = build_unsaved_run(config).context.recovery, FaultKind.loss, FaultKind.parameter
    outcomes = [None] * 25 + [skipped, None, skipped, skipped, *[None] * 50, *[damaged] * 12]
    actions: list[tuple[Action, float, int]] = []
    for step, kind in enumerate(outcomes, 1):
        fault = None if kind is None else Fault(kind, "loss", "as scripted")
        action = escalate(state, config.recovery, step=step, fault=fault)
        actions.append((action, state.lr_scale, state.last_good_step))
        if action is Action.stop:
            break
        if step % 4 == 0:
            state.record_checkpoint(step, None)
    return actions


@pytest.fixture
def observers(of_engines: dict[str, Any]) -> dict[str, Callable[[RunConfig], Any]]:
    """Return functions that observe effects of a configuration in cheap and repeatable ways."""
    available = (
        totals,
        two_steps,
        biased_sampler,
        rows,
        draws,
        match,
        model,
        device,
        threads,
        forward_passes,
        block_passes,
        engines,
        server,
        references,
        alarms,
        escalation,
    )
    return {observer.__name__: observer for observer in available} | of_engines
