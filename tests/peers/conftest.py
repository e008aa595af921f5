"""TRL's GRPOTrainer and our training step on the same weights and the same completions.

TRL's code runs unchanged: its own hook `rollout_func` passes in the completions, and TRL pads, scores and
differentiates them. The fixtures import trl themselves, so that tests are skipped if it is not installed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from transformers import AutoModelForCausalLM

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.model.batch import Batch, micro_batches
from rookworld_rlvr.model.policy import spread
from rookworld_rlvr.objective import KLConfig, LossSizes, ObjectiveConfig
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.loss import TokenTotals, grpo_loss
from rookworld_rlvr.training.step import loss_plan

PROMPTS, GROUP = 3, 4
# Not 1, so that tests detect a log-prob at another temperature.
TEMPERATURE = 0.8
MAX_TOKENS = 12
KL_COEF = 0.05


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions: G for each of P prompts, with rows in the order of the prompts."""

    prompts: list[list[int]]
    completions: list[list[int]]
    sampler_logprobs: list[list[float]]
    rewards: list[float]

    def rows(self) -> list[tuple[list[int], list[int]]]:
        return [(self.prompts[i // GROUP], tokens) for i, tokens in enumerate(self.completions)]


@dataclass(frozen=True)
class Outcome:
    """A loss, its gradient for each weight by name, and its clipped fractions."""

    loss: float
    gradient: dict[str, Tensor]
    clipped: tuple[float, ...]
    """Clipped fractions of tokens or sequences. TRL reports one for each bound, and we report one for both."""

    def distance(self, other: "Outcome") -> float:
        """Return the largest absolute difference in value or gradient."""
        assert self.gradient.keys() == other.gradient.keys()
        pairs = [(self.gradient[name], other.gradient[name]) for name in self.gradient]
        return max(abs(self.loss - other.loss), *(float((a - b).abs().max()) for a, b in pairs))

    def times(self, factor: float) -> "Outcome":
        gradient = {name: factor * value for name, value in self.gradient.items()}
        return Outcome(factor * self.loss, gradient, self.clipped)

    def plus(self, other: "Outcome") -> "Outcome":
        gradient = {name: value + other.gradient[name] for name, value in self.gradient.items()}
        return Outcome(self.loss + other.loss, gradient, self.clipped)

    @property
    def gradient_max(self) -> float:
        return max(float(value.abs().max()) for value in self.gradient.values())


def gradient_of(model: Any) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


class Theirs:
    """A TRL trainer and its one batch."""

    def __init__(self, trainer: Any, rollouts: Rollouts) -> None:
        self.trainer, self.rollouts = trainer, rollouts

    def inputs(self, old_logprobs_N: Tensor | None = None, *, sampler: bool = False) -> dict[str, Any]:
        """Return the inputs of TRL's loss, with the given old log-probs of the trained tokens, row by row.

        With `sampler`, TRL is told that vLLM sampled the completions, because only then it corrects for the mismatch.
        """
        self.trainer.use_vllm, self.trainer._last_loaded_step = sampler, self.trainer.state.global_step
        rows = [{"prompt": ""} for _ in self.rollouts.completions]
        made: dict[str, Any] = self.trainer._generate_and_score_completions(rows)
        if old_logprobs_N is not None:
            made["old_per_token_logps"] = spread(old_logprobs_N, made["completion_mask"].bool())
        return made

    def loss(self, inputs: Mapping[str, Any], *, accumulation: int = 1) -> Outcome:
        """Return TRL's loss of these rows, as one of `accumulation` micro-batches."""
        trainer, model = self.trainer, self.trainer.model
        trainer.current_gradient_accumulation_steps = accumulation
        trainer._metrics["train"].clear()
        model.zero_grad()
        loss = trainer.compute_loss(model, inputs)
        loss.backward()
        counted = ("clip_ratio/low_mean", "clip_ratio/high_mean", "cispo_clip_ratio")
        seen = [values[-1] for name, values in trainer._metrics["train"].items() if name in counted]
        return Outcome(loss.item(), gradient_of(model), tuple(seen))

    def logprobs(self, inputs: Mapping[str, Any]) -> list[Tensor]:
        """Return TRL's log-probs of each completion's tokens under the policy."""
        with torch.no_grad():
            logprobs, _, _ = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
                inputs["completion_ids"].shape[1],
            )
        return [row[: len(tokens)] for row, tokens in zip(logprobs, self.rollouts.completions, strict=True)]


class Ours:
    """The loss of our training step."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def batch(self, rollouts: Rollouts, advantages_B: Tensor, old_logprobs_N: Tensor | None = None) -> Batch:
        samples = [
            Sample(SampledCompletion(tuple(tokens), tuple(logprobs), True), "", Score(0.0, {}, None))
            for tokens, logprobs in zip(rollouts.completions, rollouts.sampler_logprobs, strict=True)
        ]
        groups = [
            Group(Example("policy", "", None), tuple(prompt), tuple(samples[i * GROUP : (i + 1) * GROUP]))
            for i, prompt in enumerate(rollouts.prompts)
        ]
        batch = make_batch(groups, pad_id=self.context.policy.pad_id, device=torch.device("cpu"))
        old_BT = None if old_logprobs_N is None else spread(old_logprobs_N, batch.loss_mask_BT)
        return replace(batch, advantages_B=advantages_B, old_logprobs_BT=old_BT)

    def logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probs of the trained tokens, row by row."""
        with torch.no_grad():
            return self.context.policy.statistics(batch, temperature=TEMPERATURE).logprobs

    def loss(
        self, batch: Batch, objective: ObjectiveConfig, kl: KLConfig, *, tokens_per_update: float | None = None
    ) -> Outcome:
        """Return our loss of these rows as one update, summed over micro-batches of at most five rows."""
        context = replace(self.context, config=replace(self.context.config, objective=objective, kl=kl))
        sizes = LossSizes(len(batch.tokens_BT), tokens_per_update or batch.trained_tokens(), MAX_TOKENS)
        plan = loss_plan(context, sizes, kl_coef=kl.coef)
        context.policy.model.zero_grad()
        micros = micro_batches(batch, 5, by_prompt=context.policy.packs)
        results = [grpo_loss(context.policy, micro, plan) for micro in micros]
        loss = torch.stack([result.loss for result in results]).sum()
        loss.backward()
        totals = TokenTotals.total(result.totals for result in results)
        return Outcome(loss.item(), gradient_of(context.policy.model), (totals.clipped_sum / totals.count,))


def random_rows(lengths: Sequence[int], generator: torch.Generator) -> list[list[int]]:
    return [torch.randint(2, 1000, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(scope="session")
def reference_folder(new_model: Callable[[Path, int], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random one-layer GPT-2 (dropout 0) and our tokenizer. Its weights are large, so positions matter."""
    folder = tmp_path_factory.mktemp("peer_model")
    new_model(folder, 0)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def ours(reference_folder: Path, small_overrides: list[str]) -> Ours:
    """Our training step, built by the command line's code, with a policy that differs from its reference."""
    overrides = [
        *small_overrides,
        f"model.path={reference_folder}",
        f"generator.temperature={TEMPERATURE}",
        f"generator.max_new_tokens={MAX_TOKENS}",
    ]
    merged = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.from_dotlist(overrides))
    config: Any = OmegaConf.to_object(merged)
    context = build_unsaved_run(config).context
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in context.policy.model.parameters():
            weight += 0.03 * torch.randn_like(weight)
    return Ours(context)


@pytest.fixture
def sample(ours: Ours) -> Callable[..., Rollouts]:
    """Random completions of 1 to 11 tokens after prompts of the given lengths, with noisy sampler log-probs."""

    def make(prompt_lengths: Sequence[int] = (7,) * PROMPTS, rewards: Sequence[float] = ()) -> Rollouts:
        generator = torch.Generator().manual_seed(2)
        prompts = random_rows(prompt_lengths, generator)
        completions = random_rows([1, 5, 9, 11, 3, 3, 8, 6, 10, 2, 7, 4], generator)
        rewards = list(rewards) or torch.rand(len(completions), generator=generator).tolist()
        blank = [[0.0] * len(tokens) for tokens in completions]
        rollouts = Rollouts(prompts, completions, blank, rewards)
        logprobs_N = ours.logprobs(ours.batch(rollouts, torch.zeros(len(completions))))
        noise_N = 0.3 * torch.randn(logprobs_N.shape, generator=generator)
        sampled = torch.split(logprobs_N + noise_N, [len(tokens) for tokens in completions])
        return replace(rollouts, sampler_logprobs=[row.tolist() for row in sampled])

    return make


@pytest.fixture
def make_theirs(
    ours: Ours, reference_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Theirs]:
    """A TRL trainer with our reference model and with the weights of our policy."""
    # Silences the warning that `rollout_func` may change, because the version is pinned.
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def make(rollouts: Rollouts, **settings: Any) -> Theirs:
        rows = len(rollouts.completions)
        given = {"per_device_train_batch_size": rows, "beta": KL_COEF, "epsilon_high": 0.28} | settings
        config = GRPOConfig(
            output_dir=str(tmp_path / "trl"),
            num_generations=GROUP,
            max_completion_length=MAX_TOKENS,
            temperature=TEMPERATURE,
            activation_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            model_init_kwargs={"dtype": "float32", "attn_implementation": "eager"},
            **given,
        )

        def hand_over(prompts: list[str], trainer: Any) -> dict[str, Any]:
            return {
                "prompt_ids": [prompt for prompt, _ in rollouts.rows()],
                "completion_ids": rollouts.completions,
                "logprobs": rollouts.sampler_logprobs,
            }

        trainer = GRPOTrainer(
            model=str(reference_folder),
            reward_funcs=lambda prompts, **_: rollouts.rewards,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [""] * rows}),
            rollout_func=hand_over,
        )
        trainer.model.load_state_dict(ours.context.policy.model.state_dict())
        # `trainer.train()` does this too. In evaluation mode TRL normalises differently.
        trainer.model.train()
        return Theirs(trainer, rollouts)

    return make
