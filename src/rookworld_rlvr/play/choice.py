"""One move of a model: its own where it is legal, else another one, and never in silence."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import chess

from ..evaluation.completions import greedy_texts
from ..evaluation.players import DecodingConfig, ModelPlayer, best_move_text, published_decoding
from ..model.policy import Policy
from ..rollout.generator import Generator
from ..tasks.policy import legal_candidates, parse_policy
from ..tasks.types import Example, PolicyCompletion, Task


@dataclass(frozen=True, slots=True)
class Choice:
    """The move that is made, and how it was found."""

    move: str
    """Legal, in UCI; empty where the game is over."""
    text: str
    """The model's first answer."""
    candidates: dict[str, float]
    """Its legal candidates with their evals in pawns, in its order; empty where the answer cannot be parsed."""
    illegal: tuple[str, ...]
    """What it wrote behind `B:` in answers that were refused, in order; empty where the first was legal."""
    replaced: bool
    """Whether no answer was legal, so that the move is a random one."""


class Mover:
    """A model that is asked for moves."""

    def __init__(self, policy: Policy, generator: Generator, *, seed: int = 0) -> None:
        """The generator holds the policy's weights; `seed` decides what is drawn."""
        self.policy, self._generator, self._seed = policy, generator, seed
        generator.sync(policy.model)

    def choose(
        self,
        board: chess.Board,
        decoding: DecodingConfig,
        *,
        attempts: int,
        number: int = 0,
        among: Sequence[str] | None = None,
    ) -> Choice:
        """The move in a position.

        An answer whose `B:` is illegal, or not `among` the moves that are asked for, is asked again `attempts` times,
        as the published self-play was sampled, then replaced by a random one. Where none of `among` is legal, all
        moves are meant. `number` is the number of the question: another one draws other answers. Raises GeneratorError.
        """
        legal = [move.uci() for move in board.legal_moves]
        if not legal:
            return Choice("", "", {}, (), replaced=False)
        legal = [move for move in legal if move in (among or ())] or legal
        first = self._answer(board, decoding, number, 0)
        found = parse_policy(first)
        candidates = legal_candidates(board, found) if isinstance(found, PolicyCompletion) else {}
        illegal: list[str] = []
        for attempt in range(attempts + 1):
            answer = first if attempt == 0 else self._answer(board, published_decoding(), number, attempt)
            move = best_move_text(answer)
            if move in legal:
                return Choice(move, first, candidates, tuple(illegal), replaced=False)
            illegal.append(move)
        move = random.Random(f"{self._seed}:{number}:{board.fen()}").choice(sorted(legal))
        return Choice(move, first, candidates, tuple(illegal), replaced=True)

    def next_state(self, prompt: str) -> str:
        """The greedy answer to an `A:` prompt. Raises GeneratorError."""
        example = Example(Task.environment, prompt, None)
        return greedy_texts(self._generator, self.policy.tokenizer, [example])[0]

    def _answer(self, board: chess.Board, decoding: DecodingConfig, number: int, attempt: int) -> str:
        player = ModelPlayer(self._generator, self.policy.tokenizer, decoding, seed=self._seed + attempt)
        return player.answers([board], [number])[0]
