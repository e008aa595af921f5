"""Prompts from games that the policy plays while it trains: a bounded buffer of positions that it reached itself.

A game has a position that waits to become a prompt. The game plays the first legal move among the completions that
training samples for this position anyway, so the games cost no extra sampling. The moves written and played become
transitions to ask the environment task about.
"""

import random
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chess

from ..board.fen import position_key
from ..board.moves import is_legal_uci
from ..board.openings import OPENINGS, opening_board
from .corpus import split_line
from .played import transitions
from .policy import policy_fields, render_policy_prompt
from .types import Example, Task

# Reasons of ends beside the rules' (`chess.Termination`); the first two as in the games of an evaluation.
ILLEGAL_MOVE, CUT, EXCLUDED = "illegal_move", "cut", "excluded"
# So many starts in a row that are held out: there is no other.
HOPELESS = 1000
# Share of the games that begin behind an opening; the others begin at the standard starting position.
OPENING_FRACTION = 0.5
# A game is stopped there, its opening not counted, and another begun.
MAX_PLIES = 200


@dataclass(slots=True)
class SelfPlayPromptsConfig:
    """On-policy self-play prompts: positions of games that the policy plays while it trains."""

    fraction: float = 0.0
    """Share of each task's prompts; 0: none."""
    games: int = 16
    """Games in progress, and most transitions that wait to become prompts. A step takes one of
    each at most, and one of those that stand in one position."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1 or self.games < 1:
            raise ValueError(f"data.self_play: expected fraction from 0 to 1 and games from 1, got {self}")


@dataclass(slots=True)
class _Game:
    number: int
    """The game's number among all that were begun."""
    board: chess.Board
    """All moves on the stack."""
    opening_plies: int
    start: str
    """FEN behind the opening."""
    prompt: str
    """The prompt of the position on the board."""
    prompted: bool = False
    """Its completions are awaited."""

    @property
    def plies(self) -> int:
        """Plies that the policy played."""
        return len(self.board.move_stack) - self.opening_plies


@dataclass(frozen=True, slots=True)
class SelfPlayRecords:
    """Records of the games, in plain JSON values."""

    prompted: tuple[dict[str, Any], ...]
    """Each position that became a prompt: `fen`, `game`, the game's number, `ply`, plies from the standard start on."""
    ended: tuple[dict[str, Any], ...]
    """Each game that ended: `game`, `opening`, the FEN it began from, `result` as in PGN, `reason`, `halfmoves`."""


class SelfPlayPrompts:
    """The games in progress, and the transitions that came of them; seeded and resumable.

    No position of `excluded` becomes a prompt: a game that reaches one is stopped. Prompts and the ends of games are
    recorded, to be taken and written.
    """

    def __init__(
        self,
        config: SelfPlayPromptsConfig,
        *,
        seed: int,
        excluded: Collection[str] = (),
        opening_fraction: float = OPENING_FRACTION,
        max_plies: int = MAX_PLIES,
    ) -> None:
        self._config, self._seed, self._excluded = config, seed, excluded
        self._opening_fraction, self._max_plies = opening_fraction, max_plies
        self._begun = self._turn = 0
        self._credits = dict.fromkeys(Task, 0.0)
        self._transitions: deque[str] = deque(maxlen=config.games)
        self._prompted: list[dict[str, Any]] = []
        self._ended: list[dict[str, Any]] = []
        self.ends: Counter[str] = Counter()
        """Counts of the games so far by their end: `won`, `drawn`, `illegal`, `stopped`."""
        self._games = [self._new_game() for _ in range(config.games)] if config.fraction else []

    def start_draw(self) -> None:
        """Begin a new step: a position whose completions were lost, because a step failed, may be prompted again."""
        for game in self._games:
            game.prompted = False

    def take_records(self) -> SelfPlayRecords:
        """Prompts and ended games since the last call."""
        records = SelfPlayRecords(tuple(self._prompted), tuple(self._ended))
        self._prompted, self._ended = [], []
        return records

    def next(self, task: Task) -> Example | None:
        """An example in place of one of the corpus, where it is these games' turn and they have one."""
        # Turns that pass while there is no transition are not made up for.
        self._credits[task] = min(self._credits[task] + self._config.fraction, 1.0 + self._config.fraction)
        if self._credits[task] < 1:
            return None
        example = self._transition() if task is Task.environment else self._ask()
        if example:
            self._credits[task] -= 1
        return example

    def _transition(self) -> Example | None:
        """The oldest transition that waits."""
        if not self._transitions:
            return None
        example = split_line(self._transitions.popleft())
        assert isinstance(example, Example)
        return example

    def _ask(self) -> Example | None:
        """A prompt of the next game in turn. Of games in one position a step takes one: a prompt has one group."""
        prompted = {game.prompt for game in self._games if game.prompted}
        in_turn = self._games[self._turn :] + self._games[: self._turn]
        game = next((game for game in in_turn if game.prompt not in prompted), None)
        if game is None:
            return None
        self._turn = (self._games.index(game) + 1) % len(self._games)
        game.prompted = True
        self._prompted.append({"fen": game.board.fen(), "game": game.number, "ply": game.board.ply()})
        return Example(Task.policy, game.prompt, None)

    def play(self, prompt: str, completions: Sequence[str]) -> None:
        """Go on in the game of `prompt`, if there is one: the first legal move of the completions is played.

        Where there is none the game ends. The first completion's move becomes a transition, legal or not.
        """
        i = next((i for i, game in enumerate(self._games) if game.prompted and game.prompt == prompt), None)
        if i is None:
            return
        written = [" ".join(policy_fields(completion).best) for completion in completions]
        board = self._games[i].board
        played = next((uci for uci in written if is_legal_uci(board, uci)), "")
        self._transitions.extend(transitions(board, written[0], played))
        if played:
            board.push_uci(played)
            self._settle(i)
        else:
            self._end(i, "illegal", ILLEGAL_MOVE, winner=not board.turn)

    def _settle(self, i: int) -> None:
        """End a game that is over; else its new position may become a prompt."""
        game = self._games[i]
        outcome = game.board.outcome(claim_draw=False)
        if outcome:
            how = "drawn" if outcome.winner is None else "won"
            self._end(i, how, outcome.termination.name.lower(), winner=outcome.winner)
        elif game.plies >= self._max_plies:
            self._end(i, "stopped", CUT, winner=None)
        elif position_key(game.board) in self._excluded:
            self._end(i, "stopped", EXCLUDED, winner=None)
        else:
            game.prompt, game.prompted = render_policy_prompt(game.board.fen()), False

    def _end(self, i: int, how: str, reason: str, *, winner: chess.Color | None) -> None:
        game = self._games[i]
        undecided = "*" if how == "stopped" else "1/2-1/2"
        result = {None: undecided, chess.WHITE: "1-0", chess.BLACK: "0-1"}[winner]
        record = {"game": game.number, "opening": game.start, "result": result, "reason": reason}
        self._ended.append({**record, "halfmoves": game.plies})
        self.ends[how] += 1
        self._games[i] = self._new_game()

    def _new_game(self) -> _Game:
        """Raises ValueError where every start is held out."""
        for _ in range(HOPELESS):
            number, self._begun = self._begun, self._begun + 1
            rng = random.Random(f"live:{self._seed}:{number}")
            behind_opening = rng.random() < self._opening_fraction
            board = opening_board(rng.choice(OPENINGS)) if behind_opening else chess.Board()
            if position_key(board) not in self._excluded:
                return _begin(number, board)
        raise ValueError("data.self_play: expected starts that are not held out, got none")

    def state_dict(self) -> dict[str, Any]:
        """All games, in plain JSON values."""
        return {
            "games": [
                {
                    "number": game.number,
                    "moves": [move.uci() for move in game.board.move_stack],
                    "opening": game.opening_plies,
                }
                for game in self._games
            ],
            "transitions": list(self._transitions),
            "begun": self._begun,
            "turn": self._turn,
            "credits": {task.value: credit for task, credit in self._credits.items()},
            "ends": dict(self.ends),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the games of `state`, or without games if the configuration now has none.

        Games that ended after `state` are not recorded, because they go on. Prompts after it are.
        """
        if not self._config.fraction or not state["games"]:
            return
        self._games = [_game_of(saved) for saved in state["games"]]
        self._transitions = deque(state["transitions"], maxlen=self._config.games)
        self._begun, self._turn = state["begun"], state["turn"]
        self._credits = {Task(task): credit for task, credit in state["credits"].items()}
        self.ends, self._ended = Counter(state["ends"]), []


def _begin(number: int, board: chess.Board) -> _Game:
    return _Game(number, board, len(board.move_stack), board.fen(), render_policy_prompt(board.fen()))


def _game_of(saved: Mapping[str, Any]) -> _Game:
    board = chess.Board()
    for uci in saved["moves"][: saved["opening"]]:
        board.push_uci(uci)
    game = _begin(saved["number"], board)
    for uci in saved["moves"][saved["opening"] :]:
        board.push_uci(uci)
    game.prompt = render_policy_prompt(board.fen())
    return game
