"""Win-probability loss of the best move: by hand, in the table, and in `rookworld evaluate`."""

import json
from collections.abc import Callable
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.evaluation import completions
from rookworld_rlvr.evaluation.table import Measure, paired_gain, score_examples, summarise
from rookworld_rlvr.rewards.evaluation_cache import load_cache
from rookworld_rlvr.rewards.move_evaluations import MoveEvaluations
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.engine import EngineConfig
from rookworld_rlvr.stockfish.move_evals import MoveEvals, render_move_evals
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.tasks.types import Example

KEY = "policy/win_probability_loss"
WHITE_FEN, BLACK_FEN = "7k/8/8/8/8/8/8/K7 w - - 0 1", "k7/8/8/8/8/8/8/7K b - - 0 1"
STALEMATE = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
NO_CACHE = load_cache("")
EXAMPLES = [
    Example("policy", f"P: {WHITE_FEN}", "M: a1b1 E: 0.0 B: a1b1"),
    Example("policy", f"P: {BLACK_FEN}", None),
    Example("policy", f"P: {STALEMATE}", None),
    Example("environment", f"A: {chess.STARTING_FEN}+e2e4+e2e4+", None),
]
FENS = completions.fens_of(EXAMPLES)
# Win probabilities 0.500, 0.409, 0.001 for the mover.
ANALYSES = {
    WHITE_FEN: Analysis(WHITE_FEN, (("a1b2", 0.0), ("a1a2", -1.0), ("a1b1", -999.99))),
    BLACK_FEN: Analysis(BLACK_FEN, (("a8b7", 0.0), ("a8a7", -1.0), ("a8b8", -999.99))),
    STALEMATE: Analysis(STALEMATE, ()),
}


def losses(first: str, second: str) -> tuple[float, float]:
    """Return the losses of White's and of Black's best move."""
    texts = [f"M: {first} E: 0.0 B: {first}", f"M: {second} E: 0.0 B: {second}", "", ""]
    rows = score_examples(EXAMPLES, texts, ANALYSES)
    assert rows[0].values[f"{KEY}/white"] == rows[0].values[KEY]
    assert rows[1].values[f"{KEY}/black"] == rows[1].values[KEY]
    assert not [key for row in rows[2:] for key in row.values if key.startswith(KEY)]
    return rows[0].values[KEY], rows[1].values[KEY]


def test_loss_is_zero_for_best_move_and_whole_value_for_illegal_move() -> None:
    assert losses("a1b2", "a8b7") == (0.0, 0.0)
    assert losses("a1a2", "a8b8") == pytest.approx((0.091, 0.499))
    # An illegal move, and a text that is not a move, which the strict parser refuses.
    assert losses("a1c3", "nonsense") == (0.5, 0.5)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("M: a1b2 a1a2 a1b1 E: 0.0 -1.0 -999.99 B: a1b2", 0.0),
        # 0.409 given as 0.5; an illegal candidate; two missing ones; two repeated ones; an unreadable answer.
        ("M: a1b2 a1a2 a1b1 E: 0.0 0.0 -999.99 B: a1b2", 0.091 / 3),
        ("M: a1b2 a1c3 a1b1 E: 0.0 -1.0 -999.99 B: a1b2", 1 / 3),
        ("M: a1b2 E: 0.0 B: a1b2", 2 / 3),
        ("M: a1b2 a1b2 a1b2 E: 0.0 5.0 5.0 B: a1b2", 2 / 3),
        ("M: a1b2", 1.0),
        # An eval beyond any mate counts as a mate.
        ("M: a1b2 a1a2 a1b1 E: 0.0 -1.0 -99999.0 B: a1b2", 0.0),
    ],
)
def test_eval_error_is_in_win_probability_and_one_if_candidate_is_unusable(answer: str, error: float) -> None:
    (row,) = score_examples(EXAMPLES[:1], [answer], ANALYSES)
    assert row.values["policy/eval_error"] == pytest.approx(error, abs=5e-4)


def test_table_has_mean_loss_by_colour_and_its_paired_gain() -> None:
    texts = ["M: a1a2 E: 0.0 B: a1a2", "M: a8b8 E: 0.0 B: a8b8", "", ""]
    before = score_examples(EXAMPLES, texts, ANALYSES)
    after = score_examples(EXAMPLES, ["M: a1b2 E: 0.0 B: a1b2", texts[1], "", ""], ANALYSES)
    table = summarise(before)
    assert table[KEY].value == pytest.approx((0.091 + 0.499) / 2) and table[KEY].n == 2
    assert table[f"{KEY}/white"] == Measure(pytest.approx(0.091), 0.0, 1.0, 1)  # type: ignore[arg-type]
    assert paired_gain(before, after)[KEY].value == pytest.approx(-0.091 / 2)
    assert KEY not in summarise(score_examples(EXAMPLES, texts))


def test_each_policy_position_is_analysed_once_at_its_node_limit(fake_stockfish: Path) -> None:
    with EnginePool(EngineConfig(path=str(fake_stockfish), cache=False, nodes=50)) as pool:
        measure = MoveEvaluations(NO_CACHE, pool, nodes=90)
        measure.prepare(FENS)
        analyses = measure.analyses([*FENS, FENS[0]])
        assert analyses.keys() == ANALYSES.keys() and analyses[STALEMATE].lines == ()
        # The fake engine gives 90 centipawns for the nodes and 7 for the hash, and 11 less for each further move.
        assert analyses[WHITE_FEN].lines == (("a1b2", 0.97), ("a1a2", 0.86), ("a1b1", 0.75))
        assert pool.counts().positions == 3


def test_evaluation_with_engine_can_be_interrupted_at_each_chunk(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "CHUNK_ROWS", 1)
    monkeypatch.setattr(completions, "greedy_completions", lambda generator, tokenizer, chunk: ["" for _ in chunk])
    analysed = []

    def stop(done: int) -> None:
        analysed.append(pool.counts().positions)
        if done == 2:
            raise KeyboardInterrupt

    with EnginePool(EngineConfig(path=str(fake_stockfish), cache=False, nodes=50)) as pool:
        measure = MoveEvaluations(NO_CACHE, pool, nodes=90)
        with pytest.raises(KeyboardInterrupt):
            completions.evaluate(None, None, EXAMPLES, evaluations=measure, progress=stop)  # type: ignore[arg-type]
        assert analysed == [1, 2]
        rows = completions.evaluate(None, None, EXAMPLES, evaluations=measure)  # type: ignore[arg-type]
        assert rows == score_examples(EXAMPLES, ["", "", "", ""], measure.analyses(FENS)) and KEY in rows[0].values


@pytest.fixture
def evaluate(small_overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = ("model", "data", "generator", "evaluation.rows", "precision", "device", "threads")
    given = [override for override in small_overrides if override.startswith(kept)]
    given += ["evaluation.rows=3", f"output={tmp_path / 'table.json'}"]
    return lambda *overrides: main(["evaluate", *given, *overrides])


def test_evaluate_reports_engine_loss_only_if_evaluation_nodes_is_set(
    evaluate: Callable[..., int],
    tmp_path: Path,
    stockfish: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert evaluate() == 0 and KEY not in capfd.readouterr().out and not (tmp_path / "cache").exists()
    given = ["evaluation.nodes=500", f"stockfish.path={stockfish}"]
    assert evaluate(*given, f"output={tmp_path / 'one.json'}") == 0
    shown, one = capfd.readouterr().out, json.loads((tmp_path / "one.json").read_text())["suites"]["policy"]
    assert KEY in shown and (tmp_path / "cache").exists()
    assert one["table"][KEY]["n"] == 3 and one["engine"].startswith("Stockfish") and one["engine_nodes"] == 500
    # An option that changes only the speed neither starts another evaluation nor changes a value.
    assert evaluate(*given, f"output={tmp_path / 'one.json'}", "stockfish.processes=2") == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert evaluate(*given, f"output={tmp_path / 'two.json'}", "stockfish.processes=2") == 0
    assert json.loads((tmp_path / "two.json").read_text())["suites"]["policy"]["table"] == one["table"]


def test_evaluate_with_missing_engine_prints_one_line_error(
    evaluate: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("evaluation.nodes=500", "stockfish.path=/nope/stockfish") == 2
    error = capfd.readouterr().err
    assert error == "rookworld: stockfish: expected an engine's binary, got '/nope/stockfish': no such file\n"
    assert evaluate("evaluation.nodes=-1") == 2
    assert "evaluation.nodes: expected 0 or more, got -1" in capfd.readouterr().err


def test_facts_of_a_cache_change_with_its_evaluations(tmp_path: Path) -> None:
    def facts(pawns: float) -> object:
        moves = {move.uci(): pawns for move in chess.Board(WHITE_FEN).legal_moves}
        path = tmp_path / f"{pawns}.tsv"
        path.write_text(render_move_evals(MoveEvals(WHITE_FEN, "test", moves)) + "\n")
        return MoveEvaluations(load_cache(str(path))).facts(FENS)

    assert facts(0.5) == facts(0.50) != facts(0.25)
