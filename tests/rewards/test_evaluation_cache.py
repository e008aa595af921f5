"""Cached move evaluations: lookup by position, preference over labels, and the fallback if they are missing."""

import gzip
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.rewards.evaluation_cache import EvaluationCache, load_cache
from rookworld_rlvr.rewards.move_evaluations import MoveEvaluations
from rookworld_rlvr.rewards.rubric import MoveSource
from rookworld_rlvr.rewards.score import Scorer, ScoreRequest
from rookworld_rlvr.rewards.scorer import RubricScorer, make_scorer
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.engine import EngineConfig, EngineUnusableError
from rookworld_rlvr.stockfish.move_evals import MoveEvals, move_evals_lines, parse_move_evals, render_move_evals
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.policy.text import parse_policy_prompt
from rookworld_rlvr.training.data import default_file

# White has king and rook against a king. The moves of EVALS are good, and all others are worth 1 pawn.
FEN = "8/8/8/8/8/k7/8/K6R w - - 3 40"
EVALS = {"h1h8": 9.0, "h1h2": 8.5, "a1b1": 8.0}
# White has one move, a1a2, or none.
ONE_MOVE, STALEMATE = "8/8/8/8/8/2k5/8/K6r w - - 0 1", "8/8/8/8/8/1q6/2k5/K7 w - - 0 1"
OTHER = "8/8/8/8/8/k7/8/K5R1 w - - 3 40"
GOOD, WEAK = "M: h1h8 E: 9.0 B: h1h8", "M: h1b1 E: 9.0 B: h1b1"


def legal(fen: str) -> dict[str, float]:
    """Return evaluations of all legal moves: those of EVALS, and 1 pawn for every other move."""
    return {move.uci(): EVALS.get(move.uci(), 1.0) for move in chess.Board(fen).legal_moves}


def write(path: Path, *fens: str) -> Path:
    text = "".join(render_move_evals(MoveEvals(fen, "test", legal(fen))) + "\n" for fen in fens)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def no_engine() -> EnginePool:
    raise EngineUnusableError("none here")


def scorer_with(book: EvaluationCache) -> Scorer:
    return RubricScorer(Rubric(RubricConfig()), MoveEvaluations(book, open_pool=no_engine))


def ask(fen: str, completion: str, label: str | None = None) -> ScoreRequest:
    return ScoreRequest(f"P: {fen}", completion, label)


@pytest.mark.parametrize("name", ["book.tsv", "book.tsv.gz"])
def test_cache_lookup_ignores_move_number_but_not_halfmove_clock(tmp_path: Path, name: str) -> None:
    book = load_cache(str(write(tmp_path / name, FEN)))
    entry = book.get(FEN.replace(" 40", " 77"))
    assert entry is not None and dict(entry.lines) == legal(FEN) and entry.origin == "file"
    assert book.get(FEN.replace(" 3 40", " 4 40")) is None and book.get(OTHER) is None and len(book) == 1


def test_cached_evaluations_score_moves_and_name_their_source(tmp_path: Path) -> None:
    scorer = scorer_with(load_cache(str(write(tmp_path / "book.tsv", FEN))))
    good, weak = scorer.score_all([ask(FEN, GOOD), ask(FEN, WEAK)])
    assert good.source == weak.source == "file"
    # The answer names one of five candidates.
    assert good.components["correctness/best_value"] == 0.2 > weak.components["correctness/best_value"] > 0.0
    assert good.total > weak.total and "correctness/best_match" not in good.components


def test_missing_evaluation_falls_back_to_label_then_rules(tmp_path: Path) -> None:
    scorer = scorer_with(load_cache(str(write(tmp_path / "book.tsv", FEN))))
    by_label, by_rules = scorer.score_all([ask(OTHER, WEAK, "M: g1b1 E: 1.0 B: g1b1"), ask(OTHER, WEAK)])
    assert (by_label.source, by_rules.source) == ("label", "rules")
    assert "correctness/best_match" in by_label.components
    assert not [component for component in by_rules.components if component.endswith(("_value", "_match"))]
    scorer.close()


def test_engine_is_opened_once_and_only_for_uncached_positions(tmp_path: Path) -> None:
    opened: list[str] = []

    class Pool:
        def prepare(self, fens: object, *, nodes: int) -> None: ...

        def analyse(self, fens: list[str], *, nodes: int) -> list[Analysis]:
            opened.extend(fens)
            return [Analysis(fen, tuple(legal(fen).items())) for fen in fens]

        def close(self) -> None: ...

    opens: list[int] = []

    def open_pool() -> EnginePool:
        opens.append(1)
        return Pool()  # type: ignore[return-value]

    book = load_cache(str(write(tmp_path / "book.tsv", FEN)))
    scorer = RubricScorer(Rubric(RubricConfig()), MoveEvaluations(book, open_pool=open_pool))
    scorer.prepare([f"P: {FEN}"])
    assert scorer.score_all([ask(FEN, GOOD)])[0].source == "file" and not opens
    scores = scorer.score_all([ask(OTHER, "M: g1g8 E: 1.0 B: g1g8"), ask(FEN, GOOD)])
    scorer.score_all([ask(OTHER, WEAK)])
    assert [score.source for score in scores] == ["engine", "file"] and len(opens) == 1
    assert set(opened) == {OTHER}


def test_unusable_analysis_cache_is_refused_with_its_option(
    fake_stockfish: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    scorer = make_scorer(RubricConfig(move_evals="", stockfish=EngineConfig(path=str(fake_stockfish))))
    with pytest.raises(UserError, match=r"^rubric\.stockfish: expected a cache .*; XDG_CACHE_HOME names another"):
        scorer.score_all([ask(FEN, GOOD)])


def test_environment_score_has_empty_source() -> None:
    prompt = f"A: {chess.STARTING_FEN}+e2e4+e2e4+"
    [score] = scorer_with(load_cache("")).score_all([ScoreRequest(prompt, "nonsense", None)])
    assert score.source == ""


def test_labels_source_ignores_analysis() -> None:
    analysis = Analysis(FEN, tuple(legal(FEN).items()))
    score = Rubric(RubricConfig(source=MoveSource.labels)).score(f"P: {FEN}", GOOD, analysis=analysis)
    assert score.source == "rules" and "correctness/best_value" not in score.components


@pytest.mark.parametrize(
    "text",
    [
        "no tabs at all",
        "test\t8/8/8/8/8/8/8/8 w - - 0\te2e4:1",
        f"test\t{ONE_MOVE}\tgarbage",
        f"test\t{ONE_MOVE}\ta1a2:100000",
        f"test\t{ONE_MOVE}\ta1b2:10",
        f"test\t{STALEMATE}\ta1a2:0",
    ],
)
def test_malformed_cache_line_is_refused_with_its_line_number(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book.tsv"
    twice = f"{render_move_evals(MoveEvals(FEN, 'test', legal(FEN)))}\n" * 2
    path.write_text(f"{twice}{text}\n")
    with pytest.raises(UserError, match=r"book\.tsv, line 3: expected") as raised:
        load_cache(str(path))
    assert "\n" not in str(raised.value)


def test_missing_or_damaged_evaluation_file_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "book.tsv.gz"
    damaged.write_bytes(b"\x1f\x8b no gzip")
    for source in (str(tmp_path / "nope.tsv"), str(damaged)):
        with pytest.raises(UserError, match="expected a file of move evaluations"):
            load_cache(source)


def test_shipped_cache_covers_all_legal_moves_of_every_policy_row() -> None:
    book = load_cache("default")
    rows = [row for name in ("train.txt", "held_out.jsonl") for row in read_corpus(default_file(name)).examples]
    fens = [parse_policy_prompt(row.prompt).fen for row in rows if row.task == "policy"]
    for fen in fens:
        moves = {move.uci() for move in chess.Board(fen).legal_moves}
        entry = book.get(fen)
        assert not moves if entry is None else {move for move, _ in entry.lines} == moves
    assert len(book) >= len({fen for fen in fens if any(chess.Board(fen).legal_moves)}) - 50


def test_move_evaluations_round_trip_through_text(tmp_path: Path) -> None:
    verdict = MoveEvals(FEN, "test", {"h1h8": 999.98, "a1b1": -0.07, "h1h2": -999.9})
    path = tmp_path / "move_evals.tsv"
    path.write_text(render_move_evals(verdict) + "\n")
    assert [parse_move_evals(line) for line in move_evals_lines(path)] == [verdict]
