"""Answers that binary rewards call right, by the rules and by move evaluations."""

from types import SimpleNamespace

import chess
import pytest

from rookworld_rlvr.rewards import Rubric, RubricConfig, Score
from rookworld_rlvr.stockfish.engine import Analysis
from rookworld_rlvr.tasks.types import FailureReason, ParseFailure

START = chess.STARTING_FEN
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
# Fool's mate: White is to move and has no legal move.
MATED = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
POLICY, ENVIRONMENT = f"P: {START}", f"A: {START}+e2e4+e2e4+"


def score(prompt: str, completion: str) -> Score:
    return Rubric(RubricConfig()).score(prompt, completion)


@pytest.mark.parametrize(
    ("prompt", "completion", "right"),
    [
        (POLICY, "M: e2e4 d2d4 E: 0.3 0.2 B: e2e4", True),
        # The evals are bad and one candidate is illegal, but the best move is legal.
        (POLICY, "M: e2e4 e2e5 E: -9.0 9.0 B: e2e4", True),
        (POLICY, "M: e2e4 d2d4 E: 0.3 0.2 B: e2e5", False),
        # An answer that breaks off is wrong, even if it contains a legal move.
        (POLICY, "M: e2e4 d2d4 E: 0.3 0.2 B:", False),
        (POLICY, "", False),
        (f"P: {MATED}", "M: e2e4 d2d4 E: 0.3 0.2 B: e2e4", True),
        (f"P: {MATED}", "M: e2e4", False),
        (ENVIRONMENT, f"{AFTER_E4}+0.001+0+0", True),
        # The state is right, but the reward or a flag is wrong.
        (ENVIRONMENT, f"{AFTER_E4}+0.5+1+0", False),
        (ENVIRONMENT, f"{AFTER_E4}+0.001+0+1", False),
        (ENVIRONMENT, f"{START}+0.001+0+0", False),
        (ENVIRONMENT, f"{AFTER_E4.replace(' 0 1', ' 0 2')}+0.001+0+0", False),
        (ENVIRONMENT, f"{AFTER_E4}+0.001+0", False),
    ],
)
def test_right_depends_only_on_verifiable_components(
    studies: SimpleNamespace, prompt: str, completion: str, right: bool
) -> None:
    assert studies.explosion.is_right(score(prompt, completion)) is right


def test_legal_but_bad_move_is_wrong(studies: SimpleNamespace) -> None:
    """The candidates do not matter: three or one of the five that a perfect answer has are legal."""
    evals = {move.uci(): -1.0 for move in chess.Board().legal_moves} | {"e2e4": 0.0, "d2d4": -0.3, "g1f3": -0.7}
    verdict = Analysis(START, tuple(evals.items()))
    for moves in ("e2e4 d2d4 g1f3", "e2e4 e2e5 e2e4"):
        answers = [f"M: {moves} E: 0.3 0.2 0.1 B: {best}" for best in ("e2e4", "d2d4", "g1f3", "a2a3", "e2e5")]
        scores = [Rubric(RubricConfig()).score(POLICY, answer, analysis=verdict) for answer in answers]
        # The four legal moves lose 0, 0.028, 0.064 and 0.091 in win probability.
        assert [studies.explosion.is_right(judged) for judged in scores] == [True, True, False, False, False]
    blunder = Rubric(RubricConfig()).score(POLICY, "M: e2e5 E: 0.3 B: a2a3", analysis=verdict)
    assert blunder.components["correctness/candidates"] == 0.0 and not studies.explosion.is_right(blunder)


def test_shaping_makes_no_answer_right_or_wrong(studies: SimpleNamespace) -> None:
    better, worse = (score(POLICY, f"M: {moves} E: 0.3 0.2 B: e2e4") for moves in ("e2e4 d2d4", "e2e4 e2e5"))
    assert better.total > worse.total and studies.explosion.is_right(better) and studies.explosion.is_right(worse)


def test_right_answer_needs_full_component_and_no_parse_failure(studies: SimpleNamespace) -> None:
    assert not studies.explosion.is_right(Score(0.9, {"correctness/best_legal": 0.99}, None))
    assert studies.explosion.is_right(Score(-1.0, {"correctness/best_legal": 1.0, "structure/markers": 0.0}, None))
    failure = ParseFailure(FailureReason.bad_move, "e9")
    assert not studies.explosion.is_right(Score(1.0, {"correctness/best_legal": 1.0}, failure))
