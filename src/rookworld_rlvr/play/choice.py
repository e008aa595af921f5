"""Choice of a move by a model: the likeliest legal move, or the move that the model writes.

A written move that is illegal is tried again, and in the end replaced by a random one, which is marked.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import chess

from ..board.fen import lenient_fen
from ..evaluation.completions import greedy_completions
from ..evaluation.config import Decoding
from ..evaluation.legal_choice import LegalPlayer, legal_logprobs, separates_moves
from ..evaluation.players import DecodingConfig, ModelPlayer, published_decoding
from ..model.policy import Policy
from ..rollout.generator import Generator
from ..tasks import Task, task_named, task_of
from ..tasks.types import Example


@dataclass(frozen=True, slots=True)
class Choice:
    """The move that is made, and the completions that it comes from."""

    move: str
    """Legal, in UCI; empty if the game is over."""
    text: str
    """The model's first completion."""
    written: str
    """The move that `text` names, in UCI if it can be read as a move; `move` need not be the same."""
    candidates: dict[str, float]
    """The legal candidates in `text` with their evals in pawns, in their order; empty if `text` cannot be parsed. A
    search of chosen moves leaves out the others."""
    illegal: tuple[str, ...]
    """The moves of the completions that were refused, in order; empty if the first was accepted, and if the model
    chooses among the legal moves."""
    replaced: bool
    """True if no completion had a legal move, so that `move` is a random one."""


class MoveChooser:
    """A model that chooses moves."""

    def __init__(
        self,
        policy: Policy,
        generator: Generator,
        *,
        seed: int = 0,
        task: Task | None = None,
        decoding: Decoding = Decoding.legal,
    ) -> None:
        """Give the generator the policy's weights. `seed` decides what is sampled.

        `task` makes the prompts; by default the policy task. A task whose completions do not begin with a move has only
        the moves that are written, and so has a tokenizer that joins what comes before a move and the move.
        """
        self.policy, self._generator, self._seed = policy, generator, seed
        self._task = task or task_named("policy")
        self._decoding = decoding if separates_moves(policy, self._task) else Decoding.text
        generator.sync(policy.model)

    def play(self, fen: str, *, temperature: float = 0.0, attempts: int = 3) -> Choice:
        """Return the move in a position that can arise in a game; greedy by default. See `choose`.

        The FEN may be written as other programs do: see `lenient_fen`. Raises ValueError for any other position, and
        GeneratorError.
        """
        return self.choose(lenient_fen(fen), DecodingConfig(temperature), attempts=attempts)

    def choose(
        self,
        board: chess.Board,
        decoding: DecodingConfig,
        *,
        attempts: int,
        number: int = 0,
        among: Sequence[str] | None = None,
    ) -> Choice:
        """Return the move in a position.

        By default it is the likeliest legal move, or is drawn among the legal moves at a temperature above 0. With
        `Decoding.text` it is the move that the model writes: if that is illegal, or not one of `among` (the moves to
        search), the model is prompted again up to `attempts` times, with the decoding of the published self-play. After
        that a random legal move replaces it. If none of `among` is legal, all legal moves are allowed. `number` is the
        number of the prompt within the game: another number gives other samples. Raises GeneratorError.
        """
        legal = [move.uci() for move in board.legal_moves]
        if not legal:
            return Choice("", "", "", {}, (), replaced=False)
        legal = [move for move in legal if move in (among or ())] or legal
        prompt = self._task.prompt(board.fen())
        first, query = self._complete(board, decoding, number, 0), self._task.query(prompt)
        written = self._task.move(first, query)
        candidates = {move: pawns for move, pawns in self._task.candidates(first, query).items() if move in legal}
        if self._decoding is Decoding.legal and self._task.opening(query) is not None:
            [logprobs] = legal_logprobs(self.policy, self._task, [prompt])
            player = LegalPlayer(self.policy, self._task, decoding, self._seed)
            move = player.drawn({move: logprobs[move] for move in legal}, number, board)
            return Choice(move, first, written, candidates, (), replaced=False)
        illegal: list[str] = []
        for attempt in range(attempts + 1):
            text = first if attempt == 0 else self._complete(board, published_decoding(), number, attempt)
            move = self._task.move(text, query)
            if move in legal:
                return Choice(move, first, written, candidates, tuple(illegal), replaced=False)
            illegal.append(move)
        move = random.Random(f"{self._seed}:{number}:{board.fen()}").choice(sorted(legal))
        return Choice(move, first, written, candidates, tuple(illegal), replaced=True)

    def next_state(self, prompt: str) -> str:
        """Return the greedy completion of an `A:` prompt. Raises GeneratorError."""
        example = Example(task_of(prompt).name, prompt, None)
        return greedy_completions(self._generator, self.policy.tokenizer, [example])[0].text

    def _complete(self, board: chess.Board, decoding: DecodingConfig, number: int, attempt: int) -> str:
        player = ModelPlayer(self._generator, self.policy.tokenizer, decoding, self._seed + attempt, self._task)
        return player.answers([board], [number])[0]
