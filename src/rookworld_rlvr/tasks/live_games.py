"""Prompts from games that the policy plays while it trains: a bounded buffer of positions that it reached itself.

A game is a position that waits to be asked about. Of the completions that training samples for it anyway, the first
legal move is played, so the games cost no sampling of their own. What was written and played are transitions to ask
the environment task about.
"""

import random
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chess

from ..board.fen import position_key
from ..board.moves import is_legal_uci, is_uci
from ..board.openings import OPENINGS, opening_board
from .corpus import split_line
from .generate import environment_line
from .policy import policy_fields, render_policy_prompt
from .types import Example, Task

# So many starts in a row that are held out: there is no other.
HOPELESS = 1000


@dataclass(slots=True)
class LiveGamesConfig:
    """How many of the prompts come from games that the policy plays while it trains, and how these begin."""

    fraction: float = 0.0
    """Share of each task's prompts; 0: none."""
    games: int = 64
    """Games in progress, and most transitions that wait to be asked about."""
    opening_fraction: float = 0.5
    """Share of the games that begin behind an opening; the others at the standard starting position."""
    max_halfmoves: int = 200
    """A game is stopped there, its opening not counted, and another begun."""

    def __post_init__(self) -> None:
        shares = (self.fraction, self.opening_fraction)
        if not all(0 <= share <= 1 for share in shares) or self.games < 1 or self.max_halfmoves < 1:
            raise ValueError(
                "data.live: expected fraction and opening_fraction from 0 to 1, games and max_halfmoves from 1, "
                f"got {self}"
            )


@dataclass(slots=True)
class _Game:
    board: chess.Board
    """All moves on the stack."""
    opening_halfmoves: int
    prompt: str
    """Of its position."""


class LiveGames:
    """The games in progress, and the transitions that came of them; seeded and resumable.

    No position of `excluded` is asked about: a game that reaches one is stopped.
    """

    def __init__(self, config: LiveGamesConfig, *, seed: int, excluded: Collection[str] = ()) -> None:
        self._config, self._seed, self._excluded = config, seed, excluded
        self._begun = self._turn = 0
        self._credits = dict.fromkeys(Task, 0.0)
        self._transitions: deque[str] = deque(maxlen=config.games)
        self.ends: Counter[str] = Counter()
        """How games ended so far: `won`, `drawn`, `illegal`, `stopped`."""
        self._games = [self._new_game() for _ in range(config.games)] if config.fraction else []

    def next(self, task: Task) -> Example | None:
        """An example in place of one of the corpus, where it is these games' turn and they have one."""
        # Turns that pass while there is no transition are not made up for.
        self._credits[task] = min(self._credits[task] + self._config.fraction, 1.0 + self._config.fraction)
        if self._credits[task] < 1 or (task is Task.environment and not self._transitions):
            return None
        self._credits[task] -= 1
        if task is Task.environment:
            example = split_line(self._transitions.popleft())
            assert isinstance(example, Example)
            return example
        game = self._games[self._turn]
        self._turn = (self._turn + 1) % len(self._games)
        return Example(Task.policy, game.prompt, None)

    def play(self, prompt: str, completions: Sequence[str]) -> None:
        """Go on in the game that asked `prompt`, if one did: the first legal move of the completions is played.

        Where there is none the game ends. The first completion's move becomes a transition, legal or not.
        """
        i = next((i for i, game in enumerate(self._games) if game.prompt == prompt), None)
        if i is None:
            return
        written = [" ".join(policy_fields(completion).best) for completion in completions]
        board = self._games[i].board
        played = next((uci for uci in written if is_legal_uci(board, uci)), None)
        for uci in dict.fromkeys((written[0], played or "")):
            self._note(board, uci)
        if played is None:
            self._end(i, "illegal")
        else:
            board.push_uci(played)
            self._settle(i)

    def _note(self, board: chess.Board, uci: str) -> None:
        if is_uci(uci):
            history = [*(move.uci() for move in board.move_stack), uci]
            self._transitions.append(environment_line(board.fen(), uci, history))

    def _settle(self, i: int) -> None:
        """End a game that is over; else ask about its new position."""
        game = self._games[i]
        outcome = game.board.outcome(claim_draw=False)
        if outcome:
            self._end(i, "drawn" if outcome.winner is None else "won")
        elif self._is_stopped(game):
            self._end(i, "stopped")
        else:
            game.prompt = render_policy_prompt(game.board.fen())

    def _is_stopped(self, game: _Game) -> bool:
        played = len(game.board.move_stack) - game.opening_halfmoves
        return played >= self._config.max_halfmoves or position_key(game.board) in self._excluded

    def _end(self, i: int, how: str) -> None:
        self.ends[how] += 1
        self._games[i] = self._new_game()

    def _new_game(self) -> _Game:
        """Raises ValueError where every start is held out."""
        for _ in range(HOPELESS):
            rng = random.Random(f"live:{self._seed}:{self._begun}")
            self._begun += 1
            behind_opening = rng.random() < self._config.opening_fraction
            board = opening_board(rng.choice(OPENINGS)) if behind_opening else chess.Board()
            if position_key(board) not in self._excluded:
                return _Game(board, len(board.move_stack), render_policy_prompt(board.fen()))
        raise ValueError("data.live: expected starts that are not held out, got none")

    def state_dict(self) -> dict[str, Any]:
        """All games, in plain JSON values."""
        return {
            "games": [
                {"moves": [move.uci() for move in game.board.move_stack], "opening": game.opening_halfmoves}
                for game in self._games
            ],
            "transitions": list(self._transitions),
            "begun": self._begun,
            "turn": self._turn,
            "credits": {task.value: credit for task, credit in self._credits.items()},
            "ends": dict(self.ends),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, with its games; where now none are asked for, with none."""
        if not self._config.fraction or not state["games"]:
            return
        self._games = [_game_of(saved) for saved in state["games"]]
        self._transitions = deque(state["transitions"], maxlen=self._config.games)
        self._begun, self._turn = state["begun"], state["turn"]
        self._credits = {Task(task): credit for task, credit in state["credits"].items()}
        self.ends = Counter(state["ends"])


def _game_of(saved: Mapping[str, Any]) -> _Game:
    board = chess.Board()
    for uci in saved["moves"]:
        board.push_uci(uci)
    return _Game(board, saved["opening"], render_policy_prompt(board.fen()))
