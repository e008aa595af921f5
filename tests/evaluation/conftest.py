"""Fixtures of the evaluation: a scripted generator of legal moves and true transitions, and a small real player."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookworld_rlvr.board.fen import parse_fen
from rookworld_rlvr.rollout.generator import GeneratorConfig, SampledCompletion
from rookworld_rlvr.rollout.native_generator import NativeGenerator
from rookworld_rlvr.stockfish.engine import EngineUnusableError, find_engine
from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.environment.text import environment_truth, render_environment
from rookworld_rlvr.tasks.policy.text import render_policy
from rookworld_rlvr.tasks.types import EnvironmentPrompt, PolicyCompletion

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def shared_file() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.is_file():
            pytest.skip(f"the shared data file {name} is not beside the project")
        return path

    return find


@pytest.fixture
def stockfish() -> Iterator[str]:
    try:
        yield find_engine()
    except EngineUnusableError:
        pytest.skip("no Stockfish on this machine")


class Characters:
    """A tokenizer with one token per character."""

    def __call__(self, text: str, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        return SimpleNamespace(input_ids=[ord(letter) for letter in text])

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, tokens))


class Script:
    """A `Generator` that writes a legal move drawn by the seed of its prompt, or the transition by python-chess."""

    def __init__(self, answer: Callable[[EnvironmentPrompt, str], str] | None = None) -> None:
        self._spoil = answer or (lambda prompt, truth: truth)

    def sync(self, model: Any) -> None:
        """Do nothing, because the script has no weights."""

    def weights_checksum(self) -> str:
        return ""

    def generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        group_size: int,
        temperature: float,
        seeds: Sequence[int] = (),
        top_k: int = 0,
    ) -> list[list[SampledCompletion]]:
        own = seeds or [0] * len(prompts)
        texts = ["".join(map(chr, tokens)) for tokens in prompts]
        return [[self._completion(*pair)] * group_size for pair in zip(texts, own, strict=True)]

    def _completion(self, prompt: str, seed: int) -> SampledCompletion:
        prompted = parse_prompt(prompt)
        if isinstance(prompted, EnvironmentPrompt):
            text = self._spoil(prompted, render_environment(environment_truth(prompted)))
        else:
            moves = sorted(move.uci() for move in parse_fen(prompted.fen).legal_moves)
            move = random.Random(seed).choice(moves)
            text = render_policy(PolicyCompletion((move,), (0.0,), move), prompted.fen)
        return SampledCompletion(tuple(map(ord, text)), (0.0,) * len(text), True)


@pytest.fixture
def characters() -> Characters:
    return Characters()


@pytest.fixture
def make_script() -> type[Script]:
    return Script


@pytest.fixture
def small_player(small_model: Path) -> Callable[..., Any]:
    """Return a function that makes a player of the small model."""
    from rookworld_rlvr.evaluation.players import ModelPlayer
    from rookworld_rlvr.model.device import Precision
    from rookworld_rlvr.model.loading import ModelConfig, load_policy

    policy = load_policy(ModelConfig(path=str(small_model)), torch.device("cpu"), Precision.fp32)
    ids = {"eos_id": policy.tokenizer.eos_token_id, "pad_id": policy.pad_id}
    generator = NativeGenerator(policy.model, GeneratorConfig(max_new_tokens=100), **ids)
    return lambda *settings: ModelPlayer(generator, policy.tokenizer, *settings)
