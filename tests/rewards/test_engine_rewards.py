"""Rewards from an engine's evaluations: hand-computed values, replaced components and the engine's scorer."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.errors import ScorerError
from rookworld_rlvr.rewards import Rubric, RubricConfig, Score
from rookworld_rlvr.rewards.rubric import MoveSource
from rookworld_rlvr.rewards.score import ScoreRequest
from rookworld_rlvr.rewards.scorer import make_scorer
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.engine import EngineConfig
from rookworld_rlvr.stockfish.move_values import move_values
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.tasks.policy.reward import PolicyRewardConfig, eval_agreement
from rookworld_rlvr.tasks.types import PromptError

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

# The king has exactly three moves.
FEN = "7k/8/8/8/8/8/8/K7 w - - 0 1"
PROMPT = f"P: {FEN}"
# Win probabilities by lichess's model, rounded to thousandths: 0.500, 0.409, 0.001.
VERDICT = Analysis(FEN, (("a1b2", 0.0), ("a1a2", -1.0), ("a1b1", -999.99)))
LABEL = "M: a1b1 E: 0.5 B: a1b1"
BY_ENGINE = RubricConfig(source=MoveSource.engine)
STALEMATE = "P: 7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
ENVIRONMENT = f"A: {chess.STARTING_FEN}+e2e4+e2e4+"
NEXT = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0"


def by_engine(text: str, verdict: Analysis | None = VERDICT, label: str | None = None) -> Score:
    return Rubric(BY_ENGINE).score(PROMPT, text, label, analysis=verdict)


@pytest.fixture
def pool(fake_stockfish: Path, tmp_path: Path) -> Iterator[EnginePool]:
    config = EngineConfig(path=str(fake_stockfish), nodes=100)
    with EnginePool(config, cache_folder=tmp_path) as opened:
        yield opened


def test_move_value_decays_with_lost_win_probability() -> None:
    worth = move_values(VERDICT)
    assert dict(worth.wins) == pytest.approx({"a1b2": 0.5, "a1a2": 0.409, "a1b1": 0.001})
    losses = [worth.loss(move) for move in ("a1b2", "a1a2", "a1b1", "a1c3", "")]
    assert losses == pytest.approx([0, 0.091, 0.499, 0.5, 0.5])
    # 2 ^ -0.91 and 2 ^ -4.99.
    values = [worth.value(move, 0.1) for move in ("a1b2", "a1a2", "a1b1", "a1c3")]
    assert values == pytest.approx([1, 0.53219, 0.03147, 0], abs=1e-5)
    # The position has three moves, so a share is relative to the sum of all three values.
    assert worth.share(["a1a2", "a1a2", "a1c3"], 0.1) == pytest.approx(0.53219 / 1.56366, abs=1e-5)
    assert worth.share(["a1b1", "a1a2", "a1b2"], 0.1) == 1.0 and worth.share([], 0.1) == 0.0
    assert worth.value("a1a2", 0.091) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"expected the analysis of a position with a legal move"):
        move_values(Analysis(FEN, ()))


def test_win_probability_equals_lichess_model() -> None:
    verdict = Analysis(chess.STARTING_FEN, tuple((f"a2a{i}", i / 1.0) for i in range(-5, 6)))
    for move, pawns in verdict.lines:
        # lichess.org/page/accuracy: 50 + 50 (2 / (1 + exp(-0.00368208 cp)) - 1), per cent.
        expected = 1 / (1 + 2.718281828459045 ** (-0.00368208 * 100 * pawns))
        assert move_values(verdict).wins[move] == pytest.approx(expected, abs=6e-4)


def test_candidate_share_is_relative_to_the_best_five_moves() -> None:
    moves = [move.uci() for move in chess.Board().legal_moves]
    verdict = Analysis(chess.STARTING_FEN, tuple((move, 0.0 if i < 5 else -999.99) for i, move in enumerate(moves)))
    worth = move_values(verdict)
    assert worth.share(moves[:5], 0.499) == 1.0
    assert worth.share(moves[5:10], 0.499) == pytest.approx(0.5)
    assert worth.share(moves[2:7], 0.499) == pytest.approx((3 + 2 * 0.5) / 5)


def test_missed_mate_factor_applies_only_if_a_move_mates_at_once() -> None:
    text = "M: a1a2 a1b1 a1b2 E: 999.99 999.97 9.0 B: {}"
    mates = Analysis(FEN, (("a1a2", 999.99), ("a1b1", 999.97), ("a1b2", 9.0)))
    none = Analysis(FEN, (("a1a2", 999.98), ("a1b1", 999.97), ("a1b2", 9.0)))

    def best_value(verdict: Analysis, best: str, missed_mate: float) -> float:
        rubric = Rubric(RubricConfig(policy=PolicyRewardConfig(missed_mate=missed_mate)))
        return rubric.score(PROMPT, text.format(best), LABEL, analysis=verdict).components["correctness/best_value"]

    for best, kept in (("a1a2", 1.0), ("a1b1", 0.3), ("a1b2", 0.3)):
        assert best_value(mates, best, 0.3) == pytest.approx(kept * best_value(mates, best, 1.0))
        assert best_value(none, best, 0.3) == best_value(none, best, 1.0)


def test_engine_components_replace_label_components() -> None:
    text = "M: a1a2 a1b1 a1a1 E: -1.0 0.0 3.0 B: a1a2"
    engine, labelled = by_engine(text).components, score(PROMPT, text, LABEL).components
    assert {component for component in engine if component not in labelled} == {
        "correctness/best_value",
        "correctness/candidates_value",
        "correctness/evals_value",
    }
    assert {component for component in labelled if component not in engine} == {
        "correctness/candidates_match",
        "correctness/best_match",
        "correctness/evals_match",
    }
    # The answer names two of the three legal moves.
    assert engine["correctness/best_value"] == pytest.approx(0.53219 * 2 / 3, abs=1e-5)
    assert engine["correctness/candidates_value"] == pytest.approx((0.53219 + 0.03147) / 1.56366, abs=1e-5)
    agreement = eval_agreement(0.0, -999.99)
    assert engine["correctness/evals_value"] == pytest.approx((1 + agreement) / 3) and agreement < 0.01
    same = {component: value for component, value in engine.items() if not component.endswith("_value")}
    by_rules = Rubric(RubricConfig(source=MoveSource.rules)).score(PROMPT, text, LABEL)
    assert same == score(PROMPT, text).components == by_rules.components


def test_engine_reward_falls_with_move_value_and_ignores_the_label() -> None:
    perfect = "M: a1b2 a1a2 a1b1 E: 0.0 -1.0 -999.99 B: a1b2"
    totals = [by_engine(perfect.replace("B: a1b2", f"B: {move}")).total for move in ("a1b2", "a1a2", "a1b1", "a1c3")]
    assert totals[0] == 1.0 and totals == sorted(totals, reverse=True) and len(set(totals)) == 4
    # A loss of 0.091 in win probability, times the weights of component and tier, times the span 1.3 of totals.
    argmax = 0.02
    assert totals[0] - totals[1] == pytest.approx(1.3 * 0.75 * (0.42 * (1 - 0.53219) + argmax), abs=1e-5)
    assert by_engine(perfect, label=LABEL) == by_engine(perfect, label="no label at all") == by_engine(perfect)
    turned = Analysis(FEN, (("a1b2", -1.0), ("a1a2", 0.0), ("a1b1", -999.99)))
    assert by_engine(perfect, turned).total < 1.0


def test_missing_or_foreign_analysis_raises_value_error() -> None:
    with pytest.raises(ValueError, match=r"rubric.source=engine: expected an engine's analysis, got none for 'P: 7k"):
        by_engine("M: a1b2 E: 0.0 B: a1b2", None)
    other = Analysis(chess.STARTING_FEN, (("e2e4", 0.3),))
    with pytest.raises(ValueError, match=r"expected the analysis of 'P: 7k.*got that of 'rnbq"):
        by_engine("M: a1b2 E: 0.0 B: a1b2", other)


def test_stalemate_and_environment_task_need_no_analysis() -> None:
    rubric = Rubric(BY_ENGINE)
    assert rubric.score(STALEMATE, "M: a1b2 E: 0.0 B: a1b2") == score(STALEMATE, "M: a1b2 E: 0.0 B: a1b2")
    assert rubric.score(ENVIRONMENT, NEXT).total == 1.0


def questions() -> list[ScoreRequest]:
    texts = [f"M: {first} a1b2 E: 1.07 0.5 B: {first}" for first in ("a1b2", "a1a2", "a1b1", "a1c3")]
    return [
        *(ScoreRequest(PROMPT, text, LABEL) for text in texts),
        ScoreRequest(STALEMATE, texts[0], None),
        ScoreRequest(ENVIRONMENT, NEXT, None),
    ]


def test_an_engine_searches_each_position_once_for_all_completions(
    pool: EnginePool, engine_pids: Callable[[EnginePool], list[int]]
) -> None:
    scorer = make_scorer(BY_ENGINE, pool)
    scorer.prepare(question.prompt for question in questions())
    scores = scorer.score_all(questions())
    [analysis] = pool.analyse([FEN])
    rubric = Rubric(BY_ENGINE)
    expected = [
        rubric.score(q.prompt, q.completion, analysis=analysis if q.prompt == PROMPT else None) for q in questions()
    ]
    assert scores == expected and len({one.total for one in scores[:4]}) == 4
    counts = scorer.engine_counts()
    # The stalemate counts as a position, although it has no moves to evaluate.
    assert counts is not None and (counts.positions, counts.searched, counts.restarts) == (3, 2, 0)
    assert scorer.score_all([]) == []
    scorer.close()
    assert engine_pids(pool) == []


def test_engine_failure_during_prepare_raises_when_scoring(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DIES", FEN)
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 2)
    pool = EnginePool(EngineConfig(path=str(fake_stockfish), cache=False))
    scorer = make_scorer(BY_ENGINE, pool)
    scorer.prepare([PROMPT, ENVIRONMENT])
    assert scorer.score_all(questions()[5:])[0].total == 1.0
    with pytest.raises(ScorerError, match=f"the engine failed 2 times on {FEN}"):
        scorer.score_all(questions())
    with pytest.raises(PromptError):
        scorer.prepare(["P: no position"])
    scorer.close()


def test_scorer_without_engine_prepares_and_counts_nothing() -> None:
    scorer = make_scorer(RubricConfig(source=MoveSource.rules))
    scorer.prepare([PROMPT])
    assert scorer.engine_counts() is None
    scorer.close()


def test_unknown_reward_source_is_refused() -> None:
    wanted = r"expected rubric.source to be one of cached, labels, rules, engine, got 'stockfish'"
    with pytest.raises(ValueError, match=wanted):
        Rubric(dataclasses.replace(BY_ENGINE, source="stockfish"))  # type: ignore[arg-type]
