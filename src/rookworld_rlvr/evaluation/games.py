"""Games played side by side until a rule, an illegal move or the ply limit ends them, and pairs of such games.

In a pair two players play one opening with both colours. The difference in Elo follows from the scores of pairs.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import chess
import chess.pgn

from ..board.evals import lead_pawns
from ..board.moves import is_legal_uci
from ..board.openings import drawn_opening
from .intervals import mean_interval
from .players import Player
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

ELO_SCALE = 400.0


class Start(StrEnum):
    """Start of games."""

    standard = "standard"
    """The standard starting position, every game."""
    openings = "openings"
    """The lines of `board.openings`, in an order that the seed decides; later games add random plies to a line."""

    def board(self, number: int, seed: int) -> chess.Board:
        """The start of a game, its moves on the stack."""
        if self is Start.standard:
            return chess.Board()
        return drawn_opening(number, seed)


@dataclass(frozen=True, slots=True)
class PlannedGame:
    """A game before it is played; its string is its identity."""

    number: int
    start: Start
    seed: int
    """Decides the order of openings."""

    def __str__(self) -> str:
        return f"game {self.number} from {self.board().fen()}"

    def board(self) -> chess.Board:
        """The first position, the opening's moves on the stack."""
        return self.start.board(self.number, self.seed)


class End(StrEnum):
    """Reason why a game is over."""

    checkmate = "checkmate"
    stalemate = "stalemate"
    insufficient_material = "insufficient_material"
    seventyfive_moves = "seventyfive_moves"
    fivefold_repetition = "fivefold_repetition"
    illegal_move = "illegal_move"
    ply_limit = "cut"
    """Keys and PGN files call it `cut`."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A game with its players."""

    number: int
    start: chess.Board
    """Its moves are those of the opening; it is not changed."""
    white: Player
    black: Player

    def to_move(self, board: chess.Board) -> Player:
        return self.white if board.turn else self.black


@dataclass(frozen=True, slots=True)
class PlayedGame:
    """A finished game."""

    number: int
    board: chess.Board
    """Its last position, all moves on the stack, the opening's included."""
    opening_plies: int
    end: End
    winner: chess.Color | None
    """None: a draw, or a game that reached the ply limit. An illegal move loses."""
    illegal: str | None
    """The text in place of a legal move, if that ended the game."""

    @property
    def plies(self) -> int:
        """Number of legal moves that the players chose."""
        return len(self.board.move_stack) - self.opening_plies

    def answered(self) -> Iterator[chess.Board]:
        """The positions in which the players chose a legal move, in order; each is valid until the next one."""
        board = self.board.root()
        for place, move in enumerate(self.board.move_stack):
            if place >= self.opening_plies:
                yield board
            board.push(move)

    def score(self, color: chess.Color) -> float:
        """1 for a win, 0 for a loss, ½ for a draw or at the ply limit."""
        return 0.5 if self.winner is None else float(self.winner == color)

    def material_score(self, color: chess.Color) -> float:
        """The score, but a game that reached the ply limit is won by the side with more material."""
        lead = lead_pawns(self.board, color) if self.end is End.ply_limit else 0
        return float(lead > 0) if lead else self.score(color)


def play(pairings: Sequence[Pairing], max_plies: int) -> list[PlayedGame]:
    """Play all games side by side. Each round asks one player for all games in which it is to move.

    That is the player with the most such games, so in pairs of games the two players soon alternate and each chooses
    for every game at once. `max_plies`, at least 1, counts the players' own plies. A game whose start is already over
    has none.
    """
    boards = [pairing.start.copy() for pairing in pairings]
    over: dict[int, PlayedGame] = {}
    while len(over) < len(pairings):
        for i in range(len(pairings)):
            if i not in over and (ended := _end_by_rule(pairings[i], boards[i], max_plies)):
                over[i] = ended
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
    """The moves of the player that is to move in the most games, each with its game; empty if no game goes on."""
    by_player = defaultdict[int, list[int]](list)
    for i in going:
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
        return _played(pairing, board, End(outcome.termination.name.lower()), outcome.winner)
    if len(board.move_stack) - len(pairing.start.move_stack) >= max_plies:
        return _played(pairing, board, End.ply_limit, None)
    return None


def _played(
    pairing: Pairing, board: chess.Board, end: End, winner: chess.Color | None, illegal: str | None = None
) -> PlayedGame:
    return PlayedGame(pairing.number, board, len(pairing.start.move_stack), end, winner, illegal)


def pgn_text(game: PlayedGame, headers: Mapping[str, str]) -> str:
    """The game as PGN and a blank line; the headers name the players, `Termination` names the end."""
    record = chess.pgn.Game.from_board(game.board)
    record.headers.update({**headers, "Round": str(game.number + 1), "Termination": game.end.value})
    record.headers["Result"] = "*" if game.end is End.ply_limit else _result(game.winner)
    if game.illegal is not None:
        # A comment may hold anything but a closing brace.
        record.end().comment = f"illegal: {game.illegal!r}".replace("}", ")")
    return f"{record}\n\n"


def _result(winner: chess.Color | None) -> str:
    return "1/2-1/2" if winner is None else "1-0" if winner else "0-1"


PairValues = Callable[[PlayedGame, PlayedGame], Mapping[str, float]]
"""Further values of a pair of games, the first with White, by name without the suite's."""


def paired_suite(
    suite: SuiteName,
    player: Player,
    opponent: Callable[[], AbstractContextManager[Player]],
    *,
    pairs: Sequence[int],
    max_plies: int,
    side_by_side: int,
    extra: PairValues,
    seed: int = 0,
    names: tuple[str, str],
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """A row per pair of games, with both as its record; `pairs` are the numbers of their openings.

    `side_by_side` pairs are played at once. The opponent is opened when the rows are requested. The seed decides the
    openings; `names` are the player's and the opponent's in records.

    Values are means over a pair's two games: `<suite>/score`, 1 for a win, ½ for a draw; `/won`, `/drawn`, `/lost`;
    `/cut`, the ply limit was reached; `/material_score`, where such a game goes to the side with more material; and
    those of `extra`.
    """

    def answer(other: Player, first: int, chunk: Sequence[Any]) -> list[Row]:
        sides = ((player, other), (other, player))
        pairings = [Pairing(2 * pair.number + i, pair.board(), *two) for pair in chunk for i, two in enumerate(sides)]
        games = play(pairings, max_plies)
        rows = []
        for pair, as_white, as_black in zip(chunk, games[::2], games[1::2], strict=True):
            values = _scores(as_white, as_black) | dict(extra(as_white, as_black))
            record = _record(as_white, suite, names) + _record(as_black, suite, names)
            rows.append(Row(pair.number, pair, {f"{suite}/{name}": value for name, value in values.items()}, record))
        return rows

    def rows(done: int) -> Iterator[list[Row]]:
        with opponent() as other:
            yield from by_chunks(planned, side_by_side, partial(answer, other))(done)

    planned = [PlannedGame(pair, Start.openings, seed) for pair in pairs]
    return Suite(suite, planned, rows, side_by_side, facts or {}, measures=partial(elo_measures, suite))


def _record(game: PlayedGame, suite: SuiteName, names: tuple[str, str]) -> str:
    """The game as PGN; the player has White in games of an even number."""
    white, black = names if game.number % 2 == 0 else names[::-1]
    return pgn_text(game, {"Event": suite.value, "White": white, "Black": black})


def _scores(as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    scores = (as_white.score(chess.WHITE), as_black.score(chess.BLACK))
    by_material = (as_white.material_score(chess.WHITE), as_black.material_score(chess.BLACK))
    return {
        "score": sum(scores) / 2,
        "score/white": scores[0],
        "score/black": scores[1],
        "won": scores.count(1.0) / 2,
        "drawn": scores.count(0.5) / 2,
        "lost": scores.count(0.0) / 2,
        "cut": [as_white.end, as_black.end].count(End.ply_limit) / 2,
        "material_score": sum(by_material) / 2,
    }


def lost_by_illegal(as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    """The share of a pair's games that the player lost by an illegal move."""
    games = ((as_white, chess.WHITE), (as_black, chess.BLACK))
    return {"illegal": sum(game.end is End.illegal_move and game.winner is not color for game, color in games) / 2}


def elo_measures(suite: SuiteName, rows: Sequence[Row]) -> dict[str, Measure]:
    """`<suite>/elo`: the player's Elo less the opponent's.

    It is the logistic difference of the mean score, and its interval is the interval of that score, converted in the
    same way. The variance is that of the pairs' scores, so that an opening's advantage for one colour cancels. If every
    game was lost the difference is minus infinity, if every game was won it is infinity; the other end is then that of
    Wilson's interval with a pair as one trial (see `mean_interval`). Without rows there are no keys.
    """
    scores = [row.values[f"{suite}/score"] for row in rows]
    if not scores:
        return {}
    value, low, high = map(elo, mean_interval(scores, 0.0, 1.0))
    return {f"{suite}/elo": Measure(value, low, high, len(scores))}


def elo(score: float) -> float:
    """The difference in Elo that belongs to an expected score; infinite at 0 and 1.

    >>> elo(0.5), round(elo(0.75), 1), elo(0.0)
    (0.0, 190.8, -inf)
    """
    if score in (0.0, 1.0):
        return math.copysign(math.inf, score - 0.5)
    return ELO_SCALE * math.log10(score / (1 - score))
