"""Supervised fine-tuning (SFT) of a language model on labelled examples of both tasks; resumable."""

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ..errors import UserError
from ..model.batch import collate
from ..model.policy import Policy
from ..model.weights import checksum
from ..provenance import digest
from ..tasks.types import Example
from .optim import OptimConfig, learning_rate, make_optimizer
from .saved_state import Header, NotFiniteError, gave_up, read_state, require_finite, save_state

# Number of batches per pool. A pool is sorted by length and cut into batches, so that a batch has similar lengths.
POOL_BATCHES = 40
# Maximum number of tokens of an example if the model's configuration does not state its number of positions.
POSITIONS = 1024
# Decays of AdamW's moments, the same as in the training of the shipped model (recipes/tiny_model).
BETAS = (0.9, 0.98)


@dataclass(slots=True)
class SFTConfig:
    """Length and speed of supervised fine-tuning."""

    steps: int = 500
    batch_size: int = 64
    """Number of examples per step."""
    lr: float = 2e-4
    """Peak learning rate of AdamW, reached after warmup_steps; a cosine then lowers it to a tenth. The default suits
    the shipped model; a model of 124M parameters needs about 2e-5."""
    warmup_steps: int = 20
    weight_decay: float = 0.01
    save_every: int = 200
    """Number of steps between saves. An interrupted training resumes from the last one."""
    log_every: int = 50

    def __post_init__(self) -> None:
        counts = (self.steps, self.batch_size, self.warmup_steps, self.save_every, self.log_every)
        if min(counts) < 1:
            raise ValueError(f"expected steps, batch_size, warmup_steps, save_every and log_every from 1, got {counts}")
        if not 0 < self.lr < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"expected lr above 0 and weight_decay from 0, got {self.lr} and {self.weight_decay}")


@dataclass(frozen=True, slots=True)
class TokenizedExample:
    """Labelled example as tokens."""

    tokens: tuple[int, ...]
    """Tokens of the prompt and the completion, and the end-of-text token."""
    prompt_length: int


def tokenize(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, positions: int = POSITIONS
) -> list[TokenizedExample]:
    """Tokenise labelled examples. Those with more tokens than the model has positions are left out."""
    prompts = tokenizer([example.prompt for example in examples], add_special_tokens=False).input_ids
    completions = tokenizer([example.completion or "" for example in examples], add_special_tokens=False).input_ids
    return [
        TokenizedExample((*prompt, *completion, tokenizer.eos_token_id), len(prompt))
        for prompt, completion in zip(prompts, completions, strict=True)
        if len(prompt) + len(completion) < positions
    ]


def batches(examples: Sequence[TokenizedExample], batch_size: int, seed: int) -> Iterator[list[TokenizedExample]]:
    """Yield endless batches of examples of similar length, in an order that depends only on the seed."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for start in range(0, len(order), batch_size * POOL_BATCHES):
            pool = [examples[i] for i in order[start : start + batch_size * POOL_BATCHES]]
            pool.sort(key=lambda example: len(example.tokens))
            cuts = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            yield from rng.sample(cuts, len(cuts))


def sft_loss(policy: Policy, examples: Sequence[TokenizedExample]) -> Tensor:
    """Return the mean cross-entropy of the tokens of all completions, end of text included, in nats per token."""
    parts = [(example.tokens[: example.prompt_length], example.tokens[example.prompt_length :]) for example in examples]
    batch = collate(parts, pad_id=policy.pad_id, device=policy.device)
    return -policy.statistics(batch, temperature=1.0).logprobs.mean()


class SFT:
    """Supervised training with its state: model, optimiser and step. All of it is saved, so that it can resume."""

    def __init__(self, policy: Policy, config: SFTConfig, *, seed: int) -> None:
        """Raises UserError for a model whose tokenizer is not a fast one."""
        if not policy.tokenizer.is_fast:
            raise UserError("model.path: expected a model with a fast tokenizer, got one without")
        torch.manual_seed(seed)
        self.policy, self.config, self.seed, self.step = policy, config, seed, 0
        self.positions = getattr(policy.model.config, "max_position_embeddings", POSITIONS)
        self._start = checksum(policy.model)
        self._optim = OptimConfig(lr=config.lr, warmup_steps=config.warmup_steps, weight_decay=config.weight_decay)
        self._optimizer = make_optimizer(policy.model.parameters(), self._optim, BETAS)

    def run(self, examples: Sequence[TokenizedExample], folder: Path) -> Iterator[dict[str, float]]:
        """Train to the last step, saving in `folder`; yield step, loss and lr every log_every steps.

        Raises TrainingGaveUpError at a loss, gradient or weight that is not finite. The last saved state stays.
        """
        stream, losses, header = batches(examples, self.config.batch_size, self.seed), [], self._header(examples)
        for _ in range(self.step):
            next(stream)
        try:
            while self.step < self.config.steps:
                losses.append(self._train_step(next(stream)))
                last = self.step == self.config.steps
                if self.step % self.config.log_every == 0 or last:
                    yield {"step": self.step, "loss": sum(losses) / len(losses), "lr": self._lr()}
                    losses.clear()
                if self.step % self.config.save_every == 0 or last:
                    self._save(folder, header)
        except NotFiniteError as error:
            raise gave_up(error, folder, self.step, f"try lr={self.config.lr / 10:.0e}") from error

    def resume(self, folder: Path, examples: Sequence[TokenizedExample]) -> bool:
        """Load the state in `folder`; return False if there is none. Raises UserError for another training's state."""
        state = read_state(folder, self._header(examples), self.policy.device)
        if state is None:
            return False
        self.policy.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return True

    def _lr(self) -> float:
        return learning_rate(self._optim, self.step, self.config.steps)

    def _train_step(self, examples: Sequence[TokenizedExample]) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr()
        model = self.policy.model
        loss = sft_loss(self.policy, examples)
        self._require_finite(loss, "loss")
        loss.backward()
        # Before the clipping, which would spread a NaN to all gradients.
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        self._require_finite(norm, "gradient's norm")
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), self._optim.max_grad_norm, norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def _require_finite(self, value: Tensor, what: str) -> None:
        if not value.detach().isfinite():
            raise NotFiniteError(f"expected a finite {what}, got {value.item()}")

    def _header(self, examples: Sequence[TokenizedExample]) -> Header:
        """Return all values that decide the trained weights, except for the kind of machine."""
        return {
            "seed": self.seed,
            "precision": self.policy.precision.value,
            "model.path": self._start,
            "steps": self.config.steps,
            "batch_size": self.config.batch_size,
            "lr": self.config.lr,
            "warmup_steps": self.config.warmup_steps,
            "weight_decay": self.config.weight_decay,
            "corpus, exclude": digest((example.prompt_length, *example.tokens) for example in examples),
        }

    def _save(self, folder: Path, header: Header) -> None:
        """Write the model as a Hugging Face folder (bf16, half the size) and then the state to resume from."""
        # The progress bar of saving would appear between the lines of the steps.
        transformers_logging.disable_progress_bar()
        export = copy.deepcopy(self.policy.model).bfloat16()
        state = {"model": self.policy.model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": self.step}
        # Before anything is replaced.
        require_finite({**state, "rounded": export.state_dict()}, "state")
        export.generation_config.pad_token_id = self.policy.tokenizer.pad_token_id
        export.save_pretrained(folder)
        self.policy.tokenizer.save_pretrained(folder)
        # The state is written last: if it has the last step, the saved model is complete.
        save_state(folder, header, state)
