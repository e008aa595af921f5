"""The model in its own world, against scripts whose mistakes are known."""

from collections.abc import Callable, Sequence
from typing import Any

import chess
import pytest

from rookworld_rlvr.evaluation import Row, summarise
from rookworld_rlvr.evaluation.games import Start
from rookworld_rlvr.evaluation.players import ModelPlayer, RandomPlayer
from rookworld_rlvr.evaluation.world_model import (
    WorldModelConfig,
    world_model_curve,
    world_model_measures,
    world_model_suite,
)
from rookworld_rlvr.tasks.types import EnvironmentPrompt

START = chess.STARTING_FEN
SHUFFLE = "g1f3 g8f6 f3g1 f6g8 " * 5


class Reader:
    """Reads its moves from a list, by the FEN's counters."""

    def __init__(self, moves: str) -> None:
        self._moves = moves.split()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [self._moves[board.ply()] for board in boards]


def run(generator: Any, tokenizer: Any, player: Any, **settings: Any) -> list[Row]:
    config = WorldModelConfig(**({"start": Start.standard} | settings))
    return [row for chunk in world_model_suite(generator, tokenizer, player, config).rows(0) for row in chunk]


def told(row: Row) -> tuple[float, str, list[str]]:
    """Plies, the ending, and what broke."""
    of = {
        part: [
            key.split("/")[2]
            for key, value in row.values.items()
            if key.startswith(f"closed_world/{part}/") and key.count("/") == 2 and value
        ]
        for part in ("ended", "broke")
    }
    [ending] = of["ended"]
    return row.values["closed_world/halfmoves"], ending, of["broke"]


@pytest.mark.slow
def test_a_world_that_is_python_chess_never_breaks_over_ten_thousand_plies(
    make_script: Callable[..., Any], characters: Any
) -> None:
    rows = run(make_script(), characters, RandomPlayer(), games=33, start=Start.openings)
    endings = [told(row)[1] for row in rows]
    assert sum(row.values["closed_world/halfmoves"] for row in rows) > 10_000
    assert set(endings) == {"over", "cut"}
    assert all(point.share == 1.0 and not point.broken for point in world_model_curve(rows))
    assert [measure.value for measure in world_model_measures(rows).values()] == [1.0] * 6
    assert world_model_measures(rows)["closed_world/survival/010"].n == 33


def test_a_fivefold_repetition_that_the_history_cannot_prove_ends_the_game_and_is_no_break(
    make_script: Callable[..., Any], characters: Any
) -> None:
    [row] = run(make_script(), characters, Reader(SHUFFLE), games=1)
    assert told(row) == (16, "over", [])

    def knows(prompt: EnvironmentPrompt, truth: str) -> str:
        return truth.replace("0.001+0+0", "0.5+1+0") if " 8 9" in truth or " 16 9" in truth else truth

    # A model that claims the draw then is as right, and too early it is wrong.
    [claimed] = run(make_script(knows), characters, Reader(SHUFFLE), games=1)
    assert told(claimed) == (16, "over", [])
    early = make_script(lambda prompt, truth: truth.replace("0.001+0+0", "0.5+1+0") if " 15 8" in truth else truth)
    [broke] = run(early, characters, Reader(SHUFFLE), games=1)
    assert told(broke) == (14, "broke", ["reward", "terminated"])


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ("4p3/8/4P3", "8/4p3/4P3", ["placement"]),
        (" w ", " b ", ["turn"]),
        ("KQkq", "KQk", ["castling"]),
        (" - 0 2", " - 1 3", ["halfmove_clock", "fullmove_number"]),
        ("- 0 2", "e6 0 2", ["en_passant"]),
        ("0.001", "1.0", ["reward"]),
        ("+0+0", "+1+1", ["terminated", "truncated"]),
        ("+0+0", "+0", ["unparsable"]),
    ],
)
def test_the_ply_and_the_fields_that_broke_are_named(
    make_script: Callable[..., Any], characters: Any, old: str, new: str, fields: list[str]
) -> None:
    def spoil(prompt: EnvironmentPrompt, truth: str) -> str:
        if prompt.uci != "e7e6":
            return truth
        assert old in truth
        return truth.replace(old, new)

    [row] = run(make_script(spoil), characters, Reader("e2e4 e7e6 d2d4"), games=1)
    assert told(row) == (1, "broke", fields)
    assert [(point.step, point.share) for point in world_model_curve([row])] == [(1, 1.0), (2, 0.0)]
    # It was Black's move, in an opening.
    parts = {key.split("/")[3]: value for key, value in row.values.items() if key.count("/") == 3}
    assert parts == {"white": 0.0, "black": 1.0, "opening": 1.0, "middlegame": 0.0, "endgame": 0.0}


def test_an_illegal_move_that_the_model_refuses_ends_a_true_world_and_one_it_plays_breaks_it(
    make_script: Callable[..., Any], characters: Any
) -> None:
    [refused] = run(make_script(), characters, Reader("e2e4 e7e4"), games=1)
    assert told(refused) == (2, "illegal_move", [])
    assert not any(value for key, value in refused.values.items() if key.startswith("closed_world/ended/broke"))
    after = "rnbqkbnr/pppp1ppp/8/8/4p3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2+0.001+0+0"
    plays = make_script(lambda prompt, truth: after if prompt.uci == "e7e4" else truth)
    [played] = run(plays, characters, Reader("e2e4 e7e4"), games=1)
    assert told(played) == (
        1,
        "broke",
        ["placement", "turn", "fullmove_number", "reward", "truncated"],
    )


@pytest.mark.parametrize("text", ["Nf3", "0000", "e2e4+"])
def test_what_has_no_move_s_form_is_not_asked_about_and_no_break(
    make_script: Callable[..., Any], characters: Any, text: str
) -> None:
    [row] = run(make_script(), characters, Reader(f"e2e4 {text}"), games=1)
    assert told(row) == (1, "no_move", [])


def test_the_model_plays_on_from_its_own_state_and_is_shown_the_game_s_last_ten_moves(
    make_script: Callable[..., Any], characters: Any
) -> None:
    asked: list[EnvironmentPrompt] = []

    def note(prompt: EnvironmentPrompt, truth: str) -> str:
        asked.append(prompt)
        return truth

    run(make_script(note), characters, Reader(SHUFFLE), games=1, max_plies=12)
    assert [len(prompt.history) for prompt in asked] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert asked[-1].history == tuple(SHUFFLE.split()[2:12])
    board = chess.Board()
    for prompt in asked:
        assert prompt.fen == board.fen()
        board.push_uci(prompt.uci)


def test_games_repeat_by_seed_and_those_already_there_are_left_out(
    make_script: Callable[..., Any], characters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.world_model.SIDE_BY_SIDE", 2)
    script, config = make_script(), WorldModelConfig(games=4, max_plies=8)

    def rows(seed: int, done: int = 0) -> list[Row]:
        player = ModelPlayer(script, characters, seed=seed)
        suite = world_model_suite(script, characters, player, config, seed=seed)
        return [row for chunk in suite.rows(done) for row in chunk]

    whole = rows(1)
    assert rows(1) == whole and rows(1, done=2) == whole[2:]
    assert [row.item for row in rows(2)] != [row.item for row in whole]


def test_the_worlds_of_a_weak_model_break_and_its_table_says_so(small_player: Callable[..., Any]) -> None:
    player = small_player()
    rows = run(player.generator, player.tokenizer, RandomPlayer(), games=4, start=Start.openings)
    table = summarise(rows)
    assert table["closed_world/ended/broke"].value == 1.0 and table["closed_world/halfmoves"].value < 5


@pytest.mark.parametrize("changes", [{"games": -1}, {"max_plies": 0}])
def test_a_world_without_games_or_plies_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="world_model: expected games from 0 and max_plies from 1"):
        WorldModelConfig(**changes)
