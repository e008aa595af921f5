"""Games played side by side, each to its end by rule, an illegal move or a limit."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import chess
import chess.pgn

from ..board.material import lead_pawns
from ..board.moves import is_legal_uci
from ..board.openings import drawn_opening
from .players import Player


class Start(StrEnum):
    """Where games begin."""

    standard = "standard"
    """The standard starting position, every game."""
    openings = "openings"
    """Behind the lines of `board.openings`, in an order of the seed's; once all were played, with drawn plies."""

    def board(self, number: int, seed: int) -> chess.Board:
        """The start of a game, its moves on the stack."""
        if self is Start.standard:
            return chess.Board()
        return drawn_opening(number, seed)


@dataclass(frozen=True, slots=True)
class PlannedGame:
    """A game that is asked for; as a string what it is called."""

    number: int
    start: Start
    seed: int
    """Decides which opening is whose."""

    def __str__(self) -> str:
        return f"game {self.number} from {self.board().fen()}"

    def board(self) -> chess.Board:
        """Where it begins, the opening's moves on the stack."""
        return self.start.board(self.number, self.seed)


class End(StrEnum):
    """Why a game is over."""

    checkmate = "checkmate"
    stalemate = "stalemate"
    insufficient_material = "insufficient_material"
    seventyfive_moves = "seventyfive_moves"
    fivefold_repetition = "fivefold_repetition"
    illegal_move = "illegal_move"
    cut = "cut"
    """The limit of plies."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A game to be played."""

    number: int
    start: chess.Board
    """Its moves are those of the opening; left as it is."""
    white: Player
    black: Player

    def to_move(self, board: chess.Board) -> Player:
        return self.white if board.turn else self.black


@dataclass(frozen=True, slots=True)
class PlayedGame:
    """A game that is over."""

    number: int
    board: chess.Board
    """Its last position, all moves on the stack, the opening's included."""
    opening_plies: int
    end: End
    winner: chess.Color | None
    """None: a draw, or a game that was cut. An illegal move loses."""
    illegal: str | None
    """What was written in place of a legal move, where that ended it."""

    @property
    def plies(self) -> int:
        """Legal ones that the players chose."""
        return len(self.board.move_stack) - self.opening_plies

    def answered(self) -> Iterator[chess.Board]:
        """The positions in which the players chose a legal move, in order; each until the next is asked for."""
        board = self.board.root()
        for place, move in enumerate(self.board.move_stack):
            if place >= self.opening_plies:
                yield board
            board.push(move)

    def score(self, color: chess.Color) -> float:
        """1 won, ½ drawn or cut, 0 lost."""
        return 0.5 if self.winner is None else float(self.winner == color)

    def material_score(self, color: chess.Color) -> float:
        """The score, but a game that was cut counts as won by the side with more material."""
        lead = lead_pawns(self.board, color) if self.end is End.cut else 0
        return float(lead > 0) if lead else self.score(color)


def play(pairings: Sequence[Pairing], max_plies: int) -> list[PlayedGame]:
    """All games side by side. Each round asks one player, the one that is to move in the most games, for all of these.

    So in pairs of games the two players soon take turns, and each is asked for its move in every game at once.
    `max_plies` are those the players choose, at least 1. A game whose start is already over has none.
    """
    boards = [pairing.start.copy() for pairing in pairings]
    over: dict[int, PlayedGame] = {}
    while len(over) < len(pairings):
        for i in range(len(pairings)):
            if i not in over and (found := _end_by_rule(pairings[i], boards[i], max_plies)):
                over[i] = found
        going = [i for i in range(len(pairings)) if i not in over]
        for i, text in _choices(pairings, boards, going):
            if is_legal_uci(boards[i], text):
                boards[i].push_uci(text)
            else:
                over[i] = _played(pairings[i], boards[i], End.illegal_move, not boards[i].turn, text)
    return [over[i] for i in range(len(pairings))]


def _choices(
    pairings: Sequence[Pairing], boards: Sequence[chess.Board], going: Sequence[int]
) -> Iterable[tuple[int, str]]:
    """What the player that is to move in the most games writes in each of them; nothing where no game goes on."""
    asked = defaultdict[int, list[int]](list)
    for i in going:
        asked[id(pairings[i].to_move(boards[i]))].append(i)
    games = max(asked.values(), key=len, default=[])
    if not games:
        return []
    player = pairings[games[0]].to_move(boards[games[0]])
    texts = player.choose([boards[i] for i in games], [pairings[i].number for i in games])
    return zip(games, texts, strict=True)


def _end_by_rule(pairing: Pairing, board: chess.Board, max_plies: int) -> PlayedGame | None:
    outcome = board.outcome(claim_draw=False)
    if outcome:
        return _played(pairing, board, End(outcome.termination.name.lower()), outcome.winner)
    if len(board.move_stack) - len(pairing.start.move_stack) >= max_plies:
        return _played(pairing, board, End.cut, None)
    return None


def _played(
    pairing: Pairing, board: chess.Board, end: End, winner: chess.Color | None, illegal: str | None = None
) -> PlayedGame:
    return PlayedGame(pairing.number, board, len(pairing.start.move_stack), end, winner, illegal)


def pgn_text(game: PlayedGame, headers: Mapping[str, str]) -> str:
    """The game as PGN, a blank line behind it; the headers say who played, and the end is told in `Termination`."""
    record = chess.pgn.Game.from_board(game.board)
    record.headers.update({**headers, "Round": str(game.number + 1), "Termination": game.end.value})
    record.headers["Result"] = "*" if game.end is End.cut else _result(game.winner)
    if game.illegal is not None:
        # A comment may hold anything but a closing brace.
        record.end().comment = f"illegal: {game.illegal!r}".replace("}", ")")
    return f"{record}\n\n"


def _result(winner: chess.Color | None) -> str:
    return "1/2-1/2" if winner is None else "1-0" if winner else "0-1"
