"""Who chooses moves: the model, a uniformly random mover, Stockfish.

A choice depends on the player's settings, the position and the number that comes with it, not on what was asked before
or beside it.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import chess
import chess.engine
from transformers import PreTrainedTokenizerBase

from ..rollout.generator import Generator, GeneratorError
from ..rollout.groups import completion_text, prompt_tokens
from ..rollout.sampling import derive_seed
from ..stockfish.engine import find_engine, require_new_enough
from ..tasks.policy import policy_fields, render_policy_prompt

FULL_SKILL = 20
HASH_MIB = 16
# How often an engine is asked for one move, and how long a search that is limited by nodes may take at most.
ATTEMPTS, HUNG_S = 3, 60.0


class Player(Protocol):
    """Writes a move for each position."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """What it writes as its move in each position: raw text, perhaps illegal or empty.

        `numbers` has the game's or the row's number of each board: what a choice at random is drawn with.
        """


@dataclass(slots=True)
class DecodingConfig:
    """How a model is asked for its moves."""

    temperature: float = 0.0
    """0: greedy."""
    top_k: int = 0
    """Draw from so many likeliest tokens alone; 0: from all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf") or self.top_k < 0:
            raise ValueError(f"expected a finite temperature from 0 and top_k from 0, got {self}")


def published_decoding() -> DecodingConfig:
    """What the published self-play figures were sampled with."""
    return DecodingConfig(temperature=0.6, top_k=5)


@dataclass(frozen=True, slots=True)
class ModelPlayer:
    """A model asked with policy prompts; plays what it writes behind `B:`, however the rest of its answer reads."""

    generator: Generator
    tokenizer: PreTrainedTokenizerBase
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [best_move_text(answer) for answer in self.answers(boards, numbers)]

    def answers(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """The whole policy completion for each position."""
        prompts = [render_policy_prompt(board.fen()) for board in boards]
        times: Counter[tuple[int, str]] = Counter()
        seeds = []
        for asked in zip(numbers, prompts, strict=True):
            # Attempts at one move are asked side by side, and each draws anew.
            seeds.append(derive_seed(self.seed, *asked, times[asked]))
            times[asked] += 1
        return ask(self.generator, self.tokenizer, prompts, self.decoding, seeds=seeds)


def best_move_text(completion: str) -> str:
    """The words behind `B:`, one blank between; empty where there is none.

    >>> best_move_text("M: e2e4 E: 0.3 B: e2e4"), best_move_text("M: e2e4")
    ('e2e4', '')
    """
    return " ".join(policy_fields(completion).best)


def ask(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    decoding: DecodingConfig,
    *,
    seeds: Sequence[int] = (),
) -> list[str]:
    """One completion of each prompt as text; `seeds` has one for each unless decoding is greedy.

    Raises GeneratorError where a completion is missing.
    """
    if not prompts:
        return []
    tokens = [prompt_tokens(tokenizer, prompt) for prompt in prompts]
    groups = generator.generate(
        tokens, group_size=1, temperature=decoding.temperature, seeds=seeds, top_k=decoding.top_k
    )
    if [len(group) for group in groups] != [1] * len(prompts):
        raise GeneratorError(f"expected one completion for each of {len(prompts)} prompts, got {len(groups)} groups")
    return [completion_text(tokenizer, done) for [done] in groups]


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    """Any legal move, all alike: the yardstick that knows the rules and nothing else."""

    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [self._move(board, number) for board, number in zip(boards, numbers, strict=True)]

    def _move(self, board: chess.Board, number: int) -> str:
        moves = sorted(move.uci() for move in board.legal_moves)
        return random.Random(f"{self.seed}:{number}:{board.fen()}").choice(moves) if moves else ""


@dataclass(slots=True)
class OpponentConfig:
    """A Stockfish that plays: how far it looks and how much it is held back."""

    path: str = ""
    """The binary; empty: STOCKFISH_PATH, the PATH, then Debian's place."""
    nodes: int = 1000
    """Positions it may look at for a move."""
    elo: int = 0
    """Its own limit of strength (UCI_Elo); 0: none. A limited Stockfish draws its mistakes anew in every run. It was
    calibrated with time to think, so that with so few nodes it is weaker than that."""
    skill: int = 0
    """Its Skill Level, 0 to 20, likewise: 0 is the weakest, at 20 nothing limits it. Unused with elo."""
    random_moves: float = 0.0
    """Share of its moves replaced by a random legal one, seeded: an opponent for models that are weaker than
    Stockfish can be asked to be. At 1 it is the random mover."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.elo < 0 or not 0 <= self.skill <= FULL_SKILL or not 0 <= self.random_moves <= 1:
            raise ValueError(
                "expected an opponent's nodes from 1, elo from 0, skill from 0 to 20 and random_moves from 0 to 1, "
                f"got {self}"
            )


class EnginePlayer:
    """Stockfish, asked as in a new game each time, so that a full-strength choice depends on the game alone.

    A process that dies or hangs is replaced, and asked again.
    """

    def __init__(self, config: OpponentConfig, seed: int = 0) -> None:
        """Start the process. Raises EngineNotFoundError; ValueError where it is no such engine."""
        self._config, self._seed = config, seed
        self._random = RandomPlayer(seed)
        self._binary = find_engine(config.path)
        self.engine = self._open()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`. Raises GeneratorError where it fails again and again."""
        return [self._move(board, number) for board, number in zip(boards, numbers, strict=True)]

    def close(self) -> None:
        self.engine.close()

    def _move(self, board: chess.Board, number: int) -> str:
        if random.Random(f"engine:{self._seed}:{number}:{board.fen()}").random() < self._config.random_moves:
            return self._random.choose([board], [number])[0]
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                limit = chess.engine.Limit(nodes=self._config.nodes, time=HUNG_S)
                move = self.engine.play(board, limit, game=object()).move
                return move.uci() if move else ""
            except (chess.engine.EngineError, TimeoutError) as error:
                failure = error
            self.close()
            try:
                self.engine = self._open()
            except (ValueError, OSError) as error:
                failure = error
        raise GeneratorError(f"expected a move of {self._binary} in {board.fen()}, got {failure!r}") from failure

    def _open(self) -> chess.engine.SimpleEngine:
        """Raises ValueError where it is no such engine or has not the options, OSError where it cannot be run."""
        try:
            engine = chess.engine.SimpleEngine.popen_uci(self._binary)
            try:
                require_new_enough(engine.id.get("name", ""), self._binary)
                engine.configure({"Threads": 1, "Hash": HASH_MIB, **_strength(engine, self._config)})
            except BaseException:
                engine.close()
                raise
        except (chess.engine.EngineError, TimeoutError) as error:
            raise ValueError(f"expected a UCI engine like Stockfish, got {self._binary}: {error!r}") from error
        return engine


@contextmanager
def engine_player(config: OpponentConfig, seed: int = 0) -> Iterator[EnginePlayer]:
    """An EnginePlayer whose process is ended on exit."""
    player = EnginePlayer(config, seed)
    try:
        yield player
    finally:
        player.close()


def _strength(engine: chess.engine.SimpleEngine, config: OpponentConfig) -> dict[str, bool | int]:
    """Raises ValueError for an Elo that it does not offer."""
    options: dict[str, bool | int] = {}
    if config.elo:
        offered = engine.options.get("UCI_Elo")
        lowest, highest = (offered.min or 0, offered.max or 0) if offered else (0, 0)
        if not lowest <= config.elo <= highest:
            raise ValueError(f"elo: expected {lowest} to {highest} of {engine.id.get('name')}, or 0, got {config.elo}")
        options = {"UCI_LimitStrength": True, "UCI_Elo": config.elo}
    elif config.skill < FULL_SKILL:
        options["Skill Level"] = config.skill
    return options
