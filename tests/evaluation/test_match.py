"""Matches of models and rules of thumb: choices of the rules, illegal answers, adjudication and openings."""

import io
from collections.abc import Sequence
from functools import partial

import chess
import chess.pgn
import pytest

from rookworld_rlvr.board.openings import OPENINGS, drawn_opening, opening_board
from rookworld_rlvr.evaluation.engine_player import OpponentConfig
from rookworld_rlvr.evaluation.intervals import Z_95
from rookworld_rlvr.evaluation.match import (
    RULES,
    IllegalRule,
    MatchConfig,
    MatchSetting,
    elo,
    elo_measures,
    kept_open,
    match_suite,
    stockfish_opponent,
)
from rookworld_rlvr.evaluation.players import CapturePlayer, ExchangePlayer, Player, RandomPlayer, RetryingPlayer
from rookworld_rlvr.evaluation.suite import suite_table
from rookworld_rlvr.evaluation.table import Measure, Row, summarise


class Silent:
    """A player whose answers are empty."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [""] * len(boards)


class Deterministic(CapturePlayer):
    """A player whose moves depend only on the position."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [self.best(board)[0] for board in boards]


def max_gain(board: chess.Board) -> int:
    """Return the pawns that the side to move wins by the exchange rule."""
    return max(ExchangePlayer().rate(board, move) for move in board.legal_moves)


def table(one: type[Player] | object, other: object, **settings: object) -> dict[str, Measure]:
    config = MatchConfig(**settings)  # type: ignore[arg-type]
    suite = match_suite(one, kept_open(other), config, MatchSetting())  # type: ignore[arg-type]
    return suite_table(suite, [row for chunk in suite.rows(0) for row in chunk])


def losing(pairs: int, max_plies: int = 200) -> MatchConfig:
    """Return a match against Stockfish's place in which an illegal move loses."""
    return MatchConfig("stockfish", illegal=IllegalRule.loses, pairs=pairs, max_plies=max_plies)


def rows(one: Player, other: Player, config: MatchConfig, setting: MatchSetting, *, done: int = 0) -> list[Row]:
    """Return the rows of a match of two players that do not depend on a seed."""
    suite = match_suite(lambda _seed: one, kept_open(lambda _seed: other), config, setting)
    return [row for chunk in suite.rows(done) for row in chunk]


@pytest.mark.parametrize(
    ("fen", "capture", "exchange"),
    [
        # The queen can take a defended pawn or a free knight.
        ("3rk3/3p4/8/n2Q4/8/8/8/4K3 w - - 0 1", "d5a5", "d5a5"),
        # The rook's pawn is defended: taking it loses the queen.
        ("r3k3/p7/8/8/8/8/8/Q3K3 w - - 0 1", "a1a7", None),
        # A knight to take, and a mate on the last rank.
        ("6k1/5ppp/8/8/8/8/8/R2n2K1 w - - 0 1", "a1d1", "a1a8"),
    ],
)
def test_capture_and_exchange_rules_choose_expected_moves(fen: str, capture: str, exchange: str | None) -> None:
    board = chess.Board(fen)
    assert CapturePlayer().choose([board], [0]) == [capture]
    chosen = ExchangePlayer().choose([board], [0])[0]
    assert chosen == exchange if exchange else chosen != capture


def test_exchange_rule_prefers_mate_and_counts_recaptures() -> None:
    mate = chess.Board("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1")
    assert ExchangePlayer().choose([mate], [0]) == ["a1a8"]
    player = ExchangePlayer()
    # A rook for a defended knight: three won, five lost.
    traded = chess.Board("4k3/3p4/2n5/8/8/8/2R5/4K3 w - - 0 1")
    assert player.rate(traded, chess.Move.from_uci("c2c6")) == 3 - 5
    promoted = chess.Board("8/P6k/8/8/8/8/8/K7 w - - 0 1")
    assert player.rate(promoted, chess.Move.from_uci("a7a8q")) == 8


def test_rule_choice_depends_only_on_position_game_number_and_seed() -> None:
    board = chess.Board()
    for player in (CapturePlayer, ExchangePlayer):
        choices = [player(seed).choose([board], [number])[0] for seed in range(4) for number in range(4)]
        assert choices == [player(seed).choose([board], [number])[0] for seed in range(4) for number in range(4)]
        assert len(set(choices)) > 3


def test_illegal_answer_is_retried_then_replaced_and_counted() -> None:
    heard: list[list[int]] = []

    class Stubborn:
        """Its answers are legal only in games of an even number, from the second answer in a call."""

        def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
            heard.append(list(numbers))
            moves = [RandomPlayer(place).choose([board], [0])[0] for place, board in enumerate(boards)]
            legal = [number % 2 == 0 and number in numbers[:place] for place, number in enumerate(numbers)]
            return [move if fine else "e1e1" for move, fine in zip(moves, legal, strict=True)]

    player = RetryingPlayer(Stubborn(), Stubborn(), attempts=3)
    boards = [chess.Board(), chess.Board()]
    moves = player.choose(boards, [0, 1])
    # Both games are retried three times in one call. The first of two legal answers counts.
    assert heard == [[0, 1], [0, 0, 0, 1, 1, 1]]
    assert moves[0] == RandomPlayer(1).choose([boards[0]], [0])[0] != RandomPlayer(2).choose([boards[0]], [0])[0]
    assert chess.Move.from_uci(moves[1]) in boards[1].legal_moves
    assert player.shares([0]) == {"illegal": 1.0, "replaced": 0.0}
    assert player.shares([1]) == {"illegal": 1.0, "replaced": 1.0}
    assert player.shares([0, 1]) == {"illegal": 1.0, "replaced": 0.5}


def test_silent_player_is_replaced_by_random_moves_or_loses() -> None:
    rescued = table(lambda seed: Silent(), RULES["random"], pairs=4, max_plies=20)
    assert (rescued["match/illegal"].value, rescued["match/replaced"].value) == (1.0, 1.0)
    assert rescued["match/opponent_illegal"].value == 0.0 and rescued["match/rules_score"].value == 0.5
    lost = table(lambda seed: Silent(), RULES["random"], pairs=4, illegal=IllegalRule.loses)
    assert (lost["match/score"].value, lost["match/illegal"].value) == (0.0, 1.0)
    assert "match/replaced" not in lost


def test_games_at_ply_limit_have_adjudicated_and_rules_only_scores() -> None:
    short = table(RULES["exchange"], RULES["random"], pairs=4, max_plies=24)
    assert short["match/ended/adjudicated_material"].value > 0.5
    # Captures win material long before they mate.
    assert short["match/score"].value > short["match/rules_score"].value
    whole = table(RULES["random"], RULES["random"], pairs=2, max_plies=1000)
    assert whole["match/ended/adjudicated_material"].value == 0.0
    assert whole["match/rules_score"] == whole["match/score"]


def test_shares_of_game_endings_sum_to_one() -> None:
    found = table(RULES["capture"], RULES["random"], pairs=3, max_plies=40)
    endings = {key: found[key].value for key in found if key.startswith("match/ended/")}
    assert len(endings) == 8 and sum(endings.values()) == pytest.approx(1.0)
    # Rule players make no illegal moves.
    assert endings["match/ended/illegal_move"] == 0.0


def test_adjudicated_matches_rank_exchange_above_capture_above_random() -> None:
    for stronger, weaker in (("capture", "random"), ("exchange", "capture"), ("exchange", "random")):
        found = table(RULES[stronger], RULES[weaker], pairs=8, max_plies=50)
        assert found["match/score"].value > 0.5 and found["match/elo"].low > 0


def test_200_pairs_have_mostly_distinct_openings() -> None:
    boards = [drawn_opening(number, 0) for number in range(200)]
    assert len({board.fen() for board in boards}) > 190 and len(OPENINGS) < 200
    assert all(board.outcome() is None for board in boards)


def test_matches_of_two_seeds_share_few_openings() -> None:
    one, two = ({drawn_opening(number, seed).fen() for number in range(66)} for seed in (0, 1))
    assert len(one & two) < 3


def test_random_opening_plies_rarely_leave_a_piece_hanging() -> None:
    leads = [abs(max_gain(drawn_opening(number, 0))) for number in range(66)]
    lines = [abs(max_gain(opening_board(opening))) for opening in OPENINGS]
    assert sum(gain >= 3 for gain in leads) <= sum(gain >= 3 for gain in lines) + 4


def test_match_row_records_two_games() -> None:
    config = MatchConfig(pairs=2, max_plies=8)
    suite = match_suite(RULES["random"], kept_open(RULES["random"]), config, MatchSetting())
    played = [row for chunk in suite.rows(0) for row in chunk]
    assert summarise(played)["match/score"].n == 2
    assert [row.record.count('[Event "match"]') for row in played] == [2, 2]


def test_player_scores_half_against_itself_in_each_opening() -> None:
    config = MatchConfig(pairs=12, max_plies=30)
    values = [row.values for row in rows(Deterministic(), Deterministic(), config, MatchSetting())]
    assert [row["match/score"] for row in values] == [0.5] * 12
    assert {(row["match/score/white"], row["match/score/black"]) for row in values} >= {(0.0, 1.0), (1.0, 0.0)}


def test_match_of_equal_results_has_intervals_of_nonzero_width() -> None:
    played = rows(RandomPlayer(), RandomPlayer(1), losing(4, 4), MatchSetting())
    result = summarise(played) | elo_measures(played)
    unseen = Z_95**2 / (4 + Z_95**2)
    for name, low, high in (("score", 0.5 - unseen / 2, 0.5 + unseen / 2), ("lost", 0, unseen), ("illegal", 0, unseen)):
        assert (result[f"match/{name}"].low, result[f"match/{name}"].high) == pytest.approx((low, high))
    assert result["match/elo"].low == pytest.approx(elo(0.5 - unseen / 2))


def test_each_opening_is_played_with_both_colours_and_no_opening_twice() -> None:
    played = rows(RandomPlayer(), RandomPlayer(1), losing(5, 4), MatchSetting(names=("us", "them")))
    assert [row.index for row in played] == list(range(5))
    starts = []
    for row in played:
        record = io.StringIO(row.record)
        as_white, as_black = chess.pgn.read_game(record), chess.pgn.read_game(record)
        assert as_white and as_black and chess.pgn.read_game(record) is None
        assert (as_white.headers["White"], as_black.headers["White"]) == ("us", "them")
        assert [int(game.headers["Round"]) for game in (as_white, as_black)] == [2 * row.index + 1, 2 * row.index + 2]
        opened = [[move.uci() for move in game.mainline_moves()][:-4] for game in (as_white, as_black)]
        assert opened[0] == opened[1] and opened[0]
        starts.append(tuple(opened[0]))
    assert len(set(starts)) == 5
    assert all(row.values["match/score"] == row.values["match/drawn"] / 2 == 0.5 for row in played)


def test_illegal_move_loses_and_is_counted_only_for_the_player() -> None:
    config = losing(3)
    lost = summarise(rows(Silent(), RandomPlayer(), config, MatchSetting()))
    won = summarise(rows(RandomPlayer(), Silent(), config, MatchSetting()))
    names = ("score", "score/white", "score/black", "won", "drawn", "lost", "illegal")
    assert [lost[f"match/{name}"].value for name in names] == [0, 0, 0, 0, 0, 1, 1]
    assert [won[f"match/{name}"].value for name in names] == [1, 1, 1, 1, 0, 0, 0]


def test_openings_depend_on_seed_and_finished_pairs_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.match.ENGINE_PAIRS_SIDE_BY_SIDE", 2)
    config = losing(5, 6)
    whole = rows(RandomPlayer(), RandomPlayer(1), config, MatchSetting(seed=3))
    assert rows(RandomPlayer(), RandomPlayer(1), config, MatchSetting(seed=3), done=2) == whole[2:]
    others = rows(RandomPlayer(), RandomPlayer(1), config, MatchSetting(seed=4))
    assert [row.item for row in others] != [row.item for row in whole]


def test_stockfish_beats_random_player_and_randomised_stockfish(stockfish: str) -> None:
    config = losing(3, 200)
    strong, weak = OpponentConfig(nodes=200, skill=20), OpponentConfig(nodes=1, random_moves=1.0)
    suite = match_suite(RandomPlayer, partial(stockfish_opponent, strong, 0), config, MatchSetting())
    lost = summarise(row for chunk in suite.rows(0) for row in chunk)
    with stockfish_opponent(strong, 0) as player:
        suite = match_suite(player, partial(stockfish_opponent, weak, 0), config, MatchSetting())
        won = summarise(row for chunk in suite.rows(0) for row in chunk)
    assert lost["match/score"].value == 0.0 and won["match/score"].value == 1.0


def test_match_refuses_attempts_below_0() -> None:
    with pytest.raises(ValueError, match=r"match.attempts: expected 0 or more, got -1"):
        MatchConfig(attempts=-1)
