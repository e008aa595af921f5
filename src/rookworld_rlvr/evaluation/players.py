"""Players that choose moves: the model, a uniformly random player and rules of thumb.

A choice depends only on the player's settings, the position and the number of its game or row. Earlier choices and
other positions of the batch do not influence it.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

import chess
from transformers import PreTrainedTokenizerBase

from ..board.evals import PIECE_PAWNS, captured_pawns
from ..board.moves import is_legal_uci
from ..rollout.generator import Generator
from ..rollout.groups import completion_text, prompt_tokens, require_complete
from ..rollout.sampling import derive_seed
from ..stockfish.analysis import Analysis
from ..stockfish.move_values import move_values
from ..tasks import Task, task_named

MATE_PAWNS = 1000


class Player(Protocol):
    """A player that writes a move for each position."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """Return the move in each position as raw text, which may be illegal or empty.

        `numbers` are the numbers of the boards' games or rows. They seed random choices.
        """


@dataclass(slots=True)
class DecodingConfig:
    """Decoding settings for a model's moves."""

    temperature: float = 0.0
    """Sampling temperature. 0 decodes greedily."""
    top_k: int = 0
    """Number of most likely tokens, or legal moves, to sample from. 0 samples from all of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf") or self.top_k < 0:
            raise ValueError(f"expected a finite temperature from 0 and top_k from 0, got {self}")


def published_decoding() -> DecodingConfig:
    """Return the decoding settings of the published self-play figures."""
    return DecodingConfig(temperature=0.6, top_k=5)


@dataclass(frozen=True, slots=True)
class ModelPlayer:
    """A model that completes prompts of a task that names a move. It plays that move, even if the rest is malformed."""

    generator: Generator
    tokenizer: PreTrainedTokenizerBase
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    seed: int = 0
    task: Task = field(default_factory=lambda: task_named("policy"))

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        queries = (self.task.query(self.task.prompt(board.fen())) for board in boards)
        answers = self.answers(boards, numbers)
        return [self.task.move(answer, query) for answer, query in zip(answers, queries, strict=True)]

    def answers(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """Return the whole completion for each position. Raises GeneratorError if one is missing."""
        if not boards:
            return []
        prompts = [self.task.prompt(board.fen()) for board in boards]
        times: Counter[tuple[int, str]] = Counter()
        seeds = []
        for prompted in zip(numbers, prompts, strict=True):
            # One batch may have several attempts at the same move. Each attempt has its own seed.
            seeds.append(derive_seed(self.seed, *prompted, times[prompted]))
            times[prompted] += 1
        sampled = self.generator.generate(
            [prompt_tokens(self.tokenizer, prompt) for prompt in prompts],
            group_size=1,
            temperature=self.decoding.temperature,
            seeds=seeds,
            top_k=self.decoding.top_k,
        )
        require_complete(sampled, prompts=len(prompts), group_size=1)
        return [completion_text(self.tokenizer, done) for [done] in sampled]


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    """Baseline that plays any legal move with equal probability.

    Subclasses implement a rule of thumb by rating moves. One of the highest-rated moves is drawn at random, seeded by
    seed, game and position.
    """

    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        return [self._move(board, number) for board, number in zip(boards, numbers, strict=True)]

    def rate(self, board: chess.Board, move: chess.Move) -> int:
        """Return the value of a move in pawns."""
        return 0

    def best(self, board: chess.Board) -> list[str]:
        """Return the moves of the highest value, sorted; empty if there is no legal move."""
        ratings = {move.uci(): self.rate(board, move) for move in board.legal_moves}
        highest = max(ratings.values(), default=0)
        return sorted(move for move, rating in ratings.items() if rating == highest)

    def _move(self, board: chess.Board, number: int) -> str:
        best = self.best(board)
        return random.Random(f"{self.seed}:{number}:{board.fen()}").choice(best) if best else ""


class RetryingPlayer:
    """A player that retries after an illegal move. If all retries are illegal, it plays a random legal move.

    With `rescue=False` it then answers with its last illegal move. It counts by game: all its `moves`, those whose
    first attempt was `illegal`, those `replaced` by a random move, and all its `mistakes`, which are illegal attempts.
    """

    def __init__(self, player: Player, again: Player, attempts: int, seed: int = 0, *, rescue: bool = True) -> None:
        """`again`: the player with another seed. It makes all `attempts` at once, and the first legal one counts."""
        self._player, self._again, self._attempts, self._random = player, again, attempts, RandomPlayer(seed)
        self._rescue = rescue
        self.moves, self.illegal, self.replaced = Counter[int](), Counter[int](), Counter[int]()
        self.mistakes = Counter[int]()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        self.moves.update(numbers)
        moves = list(self._player.choose(boards, numbers))
        illegal = [i for i, move in enumerate(moves) if not is_legal_uci(boards[i], move)]
        self.illegal.update(numbers[i] for i in illegal)
        repeated = [i for i in illegal for _ in range(self._attempts)]
        attempts = self._again.choose([boards[i] for i in repeated], [numbers[i] for i in repeated])
        for place, i in enumerate(illegal):
            tried = [moves[i], *attempts[place * self._attempts : (place + 1) * self._attempts]]
            legal = [k for k, move in enumerate(tried) if is_legal_uci(boards[i], move)]
            self.mistakes[numbers[i]] += min(legal, default=len(tried))
            moves[i] = tried[min(legal, default=-1)]
            if not legal and self._rescue:
                self.replaced[numbers[i]] += 1
                [moves[i]] = self._random.choose([boards[i]], [numbers[i]])
        return moves

    def shares(self, games: Sequence[int]) -> dict[str, float]:
        """Return the shares of `illegal` and of `replaced` moves among the player's moves in these games."""
        moves = sum(self.moves[game] for game in games)
        counts = {"illegal": self.illegal, "replaced": self.replaced}
        return {name: sum(count[game] for game in games) / max(1, moves) for name, count in counts.items()}


@dataclass(frozen=True, slots=True)
class CapturePlayer(RandomPlayer):
    """Player that captures the most valuable piece, or plays any legal move if there is no capture."""

    def rate(self, board: chess.Board, move: chess.Move) -> int:
        """Return the value of a move in pawns."""
        return captured_pawns(board, move)


@dataclass(frozen=True, slots=True)
class ExchangePlayer(RandomPlayer):
    """Player that mates if it can, and otherwise maximises its capture less the gain of the opponent's best capture.

    The opponent's capture gains the captured piece, less the capturing piece if that can be recaptured. The player's
    own promotion counts as the value that it adds.
    """

    def rate(self, board: chess.Board, move: chess.Move) -> int:
        """Return the value of a move in pawns; MATE_PAWNS for a mate."""
        gain = captured_pawns(board, move) + promotion_pawns(move)
        after = board.copy(stack=False)
        after.push(move)
        if after.is_checkmate():
            return MATE_PAWNS
        replies = [_reply_pawns(after, reply) for reply in after.generate_legal_captures()]
        return gain - max([0, *replies])


def promotion_pawns(move: chess.Move) -> int:
    """Return the value in pawns that a promotion adds; 0 for other moves."""
    return PIECE_PAWNS[move.promotion] - PIECE_PAWNS[chess.PAWN] if move.promotion else 0


def _reply_pawns(board: chess.Board, capture: chess.Move) -> int:
    captured = captured_pawns(board, capture)
    capturing = board.piece_type_at(capture.from_square)
    assert capturing is not None
    after = board.copy(stack=False)
    after.push(capture)
    recaptured = any(after.generate_legal_moves(to_mask=chess.BB_SQUARES[capture.to_square]))
    return captured - PIECE_PAWNS[capturing] if recaptured else captured


def rule_losses(analyses: Mapping[str, Analysis]) -> dict[str, float]:
    """Return the mean win-probability loss of each simple rule over the positions; empty if there are none.

    `analyses` are given by FEN. If a rule allows several moves, the position's loss is the mean over these moves.
    """
    rules = {"random": RandomPlayer(), "capture": CapturePlayer(), "exchange": ExchangePlayer()}
    positions = [(chess.Board(fen), move_values(analysis)) for fen, analysis in analyses.items() if analysis.lines]
    return {
        name: fmean(fmean(map(values.loss, player.best(board))) for board, values in positions)
        for name, player in rules.items()
        if positions
    }
