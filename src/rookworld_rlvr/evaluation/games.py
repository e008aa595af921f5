"""Games played side by side until a rule, an illegal move or the ply limit ends them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import chess
import chess.pgn

from ..board.moves import is_legal_uci
from ..board.openings import drawn_opening
from .players import Player


class Start(StrEnum):
    """Starting positions of games."""

    standard = "standard"
    """The standard starting position in every game."""
    openings = "openings"
    """The opening lines of `board.openings` in an order that the seed decides, each followed by two random plies."""


@dataclass(frozen=True, slots=True)
class PlannedGame:
    """A game before it is played. Its `str` is its identity."""

    number: int
    start: Start
    seed: int
    """Seed of the order of openings and of their random plies."""

    def __str__(self) -> str:
        return f"game {self.number} from {self.board().fen()}"

    def board(self) -> chess.Board:
        """Return the starting position, with the opening's moves on the stack."""
        return chess.Board() if self.start is Start.standard else drawn_opening(self.number, self.seed)


class Adjudicator(StrEnum):
    """Source of the result of a game that reached the ply limit."""

    engine = "adjudicated_engine"
    """Stockfish's evaluation of the last position."""
    material = "adjudicated_material"
    """The material of the last position."""


class End(StrEnum):
    """Reason why a game is over."""

    checkmate = "checkmate"
    stalemate = "stalemate"
    insufficient_material = "insufficient_material"
    seventyfive_moves = "seventyfive_moves"
    fivefold_repetition = "fivefold_repetition"
    illegal_move = "illegal_move"
    ply_limit = "ply_limit"


@dataclass(frozen=True, slots=True)
class Pairing:
    """A game to be played, with its players."""

    number: int
    start: chess.Board
    """Starting position. Its move stack has the opening's moves. Playing the game does not change it."""
    white: Player
    black: Player

    def to_move(self, board: chess.Board) -> Player:
        return self.white if board.turn else self.black


@dataclass(frozen=True, slots=True)
class PlayedGame:
    """A finished game."""

    number: int
    board: chess.Board
    """Last position, with all moves on the stack, including the opening's."""
    opening_plies: int
    end: End
    winner: chess.Color | None
    """None for a draw or for a game at the ply limit without an adjudicated winner. An illegal move loses."""
    illegal: str | None
    """The player's text if it was not a legal move and ended the game; otherwise None."""
    adjudicator: Adjudicator | None = None
    """Source of the result if the game reached the ply limit and was adjudicated; otherwise None."""

    @property
    def plies(self) -> int:
        """Number of legal moves that the players chose."""
        return len(self.board.move_stack) - self.opening_plies

    def positions(self) -> Iterator[chess.Board]:
        """Yield the positions in which the players chose a legal move, in order. Each is valid until the next one."""
        board = self.board.root()
        for place, move in enumerate(self.board.move_stack):
            if place >= self.opening_plies:
                yield board
            board.push(move)

    @property
    def ending(self) -> str:
        """Name for keys and PGN: the adjudicator if the game was adjudicated, otherwise the reason of its end."""
        return (self.adjudicator or self.end).value

    def score(self, color: chess.Color) -> float:
        """Return 1 for a win, 0 for a loss, and ½ for a draw or a game at the ply limit without a winner."""
        return 0.5 if self.winner is None else float(self.winner == color)

    def rules_score(self, color: chess.Color) -> float:
        """Return the score by the rules of chess alone: ½ for every game that reached the ply limit."""
        return 0.5 if self.end is End.ply_limit else self.score(color)


def play(pairings: Sequence[Pairing], max_plies: int) -> list[PlayedGame]:
    """Play all games side by side and return them in the order of `pairings`.

    Each round asks the player that is to move in the most games, and plays its moves in all of these games. So in pairs
    of games the two players soon alternate, and each chooses a move in every game at once. `max_plies`, at least 1,
    counts the plies after the opening. A game that is already over at its start has no such plies.
    """
    boards = [pairing.start.copy() for pairing in pairings]
    over: dict[int, PlayedGame] = {}
    while len(over) < len(pairings):
        for i in range(len(pairings)):
            if i not in over and (ended := _end_by_rule(pairings[i], boards[i], max_plies)):
                over[i] = ended
        unfinished = [i for i in range(len(pairings)) if i not in over]
        for i, text in _choices(pairings, boards, unfinished):
            if is_legal_uci(boards[i], text):
                boards[i].push_uci(text)
            else:
                over[i] = _finished_game(pairings[i], boards[i], End.illegal_move, not boards[i].turn, text)
    return [over[i] for i in range(len(pairings))]


def _choices(
    pairings: Sequence[Pairing], boards: Sequence[chess.Board], unfinished: Sequence[int]
) -> Iterable[tuple[int, str]]:
    """Return (game, move) for all games of the player that is to move in the most games; empty if all are over."""
    by_player = defaultdict[int, list[int]](list)
    for i in unfinished:
        by_player[id(pairings[i].to_move(boards[i]))].append(i)
    games = max(by_player.values(), key=len, default=[])
    if not games:
        return []
    player = pairings[games[0]].to_move(boards[games[0]])
    texts = player.choose([boards[i] for i in games], [pairings[i].number for i in games])
    return zip(games, texts, strict=True)


def _end_by_rule(pairing: Pairing, board: chess.Board, max_plies: int) -> PlayedGame | None:
    outcome = board.outcome(claim_draw=False)
    if outcome:
        return _finished_game(pairing, board, End(outcome.termination.name.lower()), outcome.winner)
    if len(board.move_stack) - len(pairing.start.move_stack) >= max_plies:
        return _finished_game(pairing, board, End.ply_limit, None)
    return None


def _finished_game(
    pairing: Pairing, board: chess.Board, end: End, winner: chess.Color | None, illegal: str | None = None
) -> PlayedGame:
    return PlayedGame(pairing.number, board, len(pairing.start.move_stack), end, winner, illegal)


def pgn_text(game: PlayedGame, headers: Mapping[str, str]) -> str:
    """Return the game as PGN and a blank line. `Termination` names its end or the adjudicator."""
    record = chess.pgn.Game.from_board(game.board)
    record.headers.update({**headers, "Round": str(game.number + 1), "Termination": game.ending})
    open_result = game.end is End.ply_limit and game.adjudicator is None
    decided = "1/2-1/2" if game.winner is None else "1-0" if game.winner else "0-1"
    record.headers["Result"] = "*" if open_result else decided
    if game.illegal is not None:
        # A PGN comment must not contain a closing brace.
        record.end().comment = f"illegal: {game.illegal!r}".replace("}", ")")
    return f"{record}\n\n"
