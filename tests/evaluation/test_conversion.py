"""Conversion of won positions: their material, their seeds, and the players that win them."""

import pytest

from rookworld_rlvr.board.evals import material_balance
from rookworld_rlvr.evaluation.conversion import Advantage, ConversionConfig, Defender, conversion_suite, won_board
from rookworld_rlvr.evaluation.engine_player import FULL_SKILL, OpponentConfig, engine_player
from rookworld_rlvr.evaluation.players import Player, RandomPlayer
from rookworld_rlvr.evaluation.suite import suite_table
from rookworld_rlvr.evaluation.table import Measure

LEADS = {Advantage.kqk: 9, Advantage.krk: 5, Advantage.piece_up: 3, Advantage.five_pawns_up: 5}


def table(player: Player, **settings: object) -> dict[str, Measure]:
    suite = conversion_suite(lambda seed: player, ConversionConfig(**settings))  # type: ignore[arg-type]
    return suite_table(suite, [row for chunk in suite.rows(0) for row in chunk])


@pytest.mark.parametrize("advantage", Advantage)
def test_won_positions_are_legal_and_have_their_material_lead(advantage: Advantage) -> None:
    boards = [won_board(advantage, number, 0) for number in range(12)]
    for number, board in enumerate(boards):
        color = number % 2 == 0
        assert board.is_valid() and not board.is_game_over() and material_balance(board, color) == LEADS[advantage]
    assert len({board.fen() for board in boards}) == 12


def test_won_positions_repeat_for_a_seed_and_differ_between_seeds() -> None:
    def starts(seed: int) -> list[str]:
        suite = conversion_suite(RandomPlayer, ConversionConfig(positions=3), seed=seed)
        return list(map(str, suite.items))

    assert starts(0) == starts(0) and not set(starts(0)) & set(starts(1))
    assert len(starts(0)) == len(set(starts(0))) == 4 * 2 * 3


def test_stockfish_converts_won_positions_and_random_player_rarely_does(stockfish: str) -> None:
    with engine_player(OpponentConfig(nodes=2000, skill=FULL_SKILL)) as strong:
        won = table(strong, positions=1)
    assert won["conversion/won"].value >= 7 / 8
    assert won["conversion/won/kqk_engine"].value == won["conversion/won/krk_random"].value == 1.0
    lost = table(RandomPlayer(), positions=2, defenders=[Defender.random])
    assert lost["conversion/won"].value <= 1 / 8
    ends = {key: entry.value for key, entry in lost.items() if key.startswith("conversion/ended/")}
    assert sum(ends.values()) == 1.0 and ends["conversion/ended/illegal_move"] == 0.0


def test_a_game_is_not_won_beyond_fifty_moves() -> None:
    suite = conversion_suite(RandomPlayer, ConversionConfig(positions=2, defenders=[Defender.random]))
    rows = [row for chunk in suite.rows(0) for row in chunk]
    assert any(row.values["conversion/ended/ply_limit"] for row in rows)
    assert all(row.values["conversion/won"] == row.values["conversion/ended/checkmate"] for row in rows)
    assert all("[FEN " in row.record for row in rows)


@pytest.mark.parametrize("settings", [{"positions": -1}, {"defenders": [Defender.random, Defender.random]}])
def test_negative_positions_and_repeated_defenders_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="conversion: expected positions from 0 and defenders"):
        ConversionConfig(**settings)  # type: ignore[arg-type]
