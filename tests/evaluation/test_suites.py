"""Suites of held-out rows: their items, the values of each row, and chunks after finished rows."""

from collections.abc import Sequence

import chess

from rookworld_rlvr.evaluation.completions import held_out_suite
from rookworld_rlvr.evaluation.games import PlannedGame, Start
from rookworld_rlvr.evaluation.label_loss import LabelLoss, label_loss_suite
from rookworld_rlvr.evaluation.mate_in_one import MateInOne
from rookworld_rlvr.evaluation.suite import Suite, by_chunks
from rookworld_rlvr.evaluation.table import score_examples, summarise
from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.corpus import example_key
from rookworld_rlvr.tasks.environment.text import environment_truth, render_environment
from rookworld_rlvr.tasks.types import EnvironmentPrompt, Example

AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
ENDGAME = "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1"
P_WHITE = Example("policy", f"P: {chess.STARTING_FEN}", "M: e2e4 d2d4 E: 0.3 0.2 B: e2e4")
P_BLACK = Example("policy", f"P: {AFTER_E4}", "M: e7e5 c7c5 E: 0.1 0.0 B: e7e5")
P_ENDGAME = Example("policy", f"P: {ENDGAME}", "M: f7g7 E: 999.99 B: f7g7")
A_WHITE = Example("environment", f"A: {chess.STARTING_FEN}+e2e4+e2e4+", f"{AFTER_E4}+0.001+0+0")
EXAMPLES = (P_WHITE, A_WHITE, P_BLACK, P_ENDGAME)


def labels(examples: Sequence[Example]) -> list[str]:
    return [example.completion or "" for example in examples]


def truths(examples: Sequence[Example]) -> list[str]:
    """Return the true completions of environment examples, by python-chess."""
    prompts = [parse_prompt(example.prompt) for example in examples]
    return [render_environment(environment_truth(one)) for one in prompts if isinstance(one, EnvironmentPrompt)]


def all_rows(suite: Suite) -> list:
    return [row for rows in suite.rows(0) for row in rows]


def test_held_out_suite_takes_first_rows_of_its_task_up_to_limit() -> None:
    assert held_out_suite("policy", EXAMPLES, labels, trained=(), most=2).items == [P_WHITE, P_BLACK]
    assert held_out_suite("environment", EXAMPLES, labels, trained=(), most=9).items == [A_WHITE]


def test_rows_with_trained_positions_are_excluded_and_counted() -> None:
    trained = {example_key(A_WHITE)}
    suite = held_out_suite("policy", EXAMPLES, labels, trained=trained, most=9)
    assert suite.items == [P_BLACK, P_ENDGAME] and suite.facts == {"rows_in_training": 1}
    assert held_out_suite("environment", EXAMPLES, labels, trained=trained, most=9).items == []


def test_policy_values_are_sliced_by_colour_and_phase_and_counts_add_up() -> None:
    texts = ["M: e2e4 E: 0.1 B: e2e4", "junk", "M: f7g7 E: 1.0 B: f7g7"]
    suite = held_out_suite("policy", EXAMPLES, lambda chunk: texts, trained=(), most=9)
    table = summarise(all_rows(suite))
    assert {key: table[f"policy/valid{key}"].value for key in ("", "/white", "/black", "/opening", "/endgame")} == {
        "": 2 / 3,
        "/white": 1.0,
        "/black": 0.0,
        "/opening": 0.5,
        "/endgame": 1.0,
    }
    own = [key for key in table if key.count("/") == 1]
    for key in own:
        for parts in (("white", "black"), ("opening", "middlegame", "endgame")):
            measures = [table[f"{key}/{part}"] for part in parts if f"{key}/{part}" in table]
            assert sum(measure.n for measure in measures) == table[key].n


def test_environment_row_has_published_values_and_fen_errors() -> None:
    suite = held_out_suite("environment", EXAMPLES, labels, trained=(), most=9)
    (row,) = all_rows(suite)
    published = score_examples([A_WHITE], labels([A_WHITE]))[0].values
    assert {key: row.values[key] for key in published} == published
    assert row.values["environment/fen_strict/white"] == 1.0
    assert row.values["environment/fen_error_turn/opening"] == 0.0


def test_rows_are_made_in_chunks_from_the_given_start() -> None:
    items = [f"item {i}" for i in range(7)]
    calls: list[tuple[int, list[str]]] = []
    rows = by_chunks(items, 3, lambda first, chunk: calls.append((first, list(chunk))) or [])  # type: ignore[func-returns-value]
    assert len(list(rows(0))) == 3
    assert calls == [(0, items[:3]), (3, items[3:6]), (6, items[6:])]
    calls.clear()
    assert len(list(rows(6))) == 1 and calls == [(6, items[6:])] and list(rows(7)) == []


def test_suite_items_have_unique_names() -> None:
    games = [PlannedGame(3, Start.standard, 0), PlannedGame(4, Start.standard, 0), PlannedGame(3, Start.openings, 0)]
    assert str(games[0]) == f"game 3 from {chess.STARTING_FEN}"
    items = [*EXAMPLES, *games, MateInOne(ENDGAME, "f7g7"), MateInOne(ENDGAME, "f7f8")]
    assert len(set(map(str, items))) == len(items)


def test_label_loss_is_reported_by_task_and_by_slice() -> None:
    # The environment row's label is missing or too long.
    losses = [LabelLoss(3.0, 4), None, LabelLoss(6.0, 4), LabelLoss(3.0, 4)]
    table = summarise(all_rows(label_loss_suite(lambda chunk: losses, EXAMPLES, facts={})))
    assert "label_loss/environment" not in table
    assert table["label_loss/policy"].value == 4.0 and table["label_loss/policy_per_token"].value == 1.0
    parts = {part: table[f"label_loss/policy/{part}"].value for part in ("white", "black", "opening", "endgame")}
    assert parts == {"white": 3.0, "black": 6.0, "opening": 4.5, "endgame": 3.0}
