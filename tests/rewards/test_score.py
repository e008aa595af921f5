"""`rewards.score`, the entry point for Python users: the reward of training, without a run."""

import subprocess
import sys

import pytest

from rookworld_rlvr.app.build import make_scorers
from rookworld_rlvr.app.config import RunConfig
from rookworld_rlvr.rewards import Rubric, RubricConfig, score
from rookworld_rlvr.rewards.score import ScoreRequest
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example, PromptError
from rookworld_rlvr.training.data import default_file

ROWS = read_corpus(default_file("train.txt")).examples
POLICY = [row for row in ROWS if row.task == "policy"][:40]


def completions(row: Example) -> list[str]:
    """Return the label, the label with its last candidate as best move, a cut label, another row's, and no text."""
    label = row.completion or ""
    worst = label.split("E:")[0].split()[-1]
    return [label, label.rpartition("B:")[0] + f"B: {worst}", label[:40], POLICY[0].completion or "", ""]


def test_score_equals_training_reward_on_shipped_rows() -> None:
    rows = [*POLICY, *(row for row in ROWS[:80] if row.task == "environment")]
    requests = [ScoreRequest(row.prompt, text, row.completion) for row in rows for text in completions(row)]
    scorer, measure = make_scorers(RunConfig())
    trained = scorer.score_all(requests)
    scorer.close()
    measure.close()
    assert [score(request.prompt, request.completion, request.label) for request in requests] == trained
    assert len({result.total for result in trained}) > 50


def test_shipped_position_is_scored_by_evaluations_not_by_its_label() -> None:
    for row in POLICY:
        for text in completions(row):
            result = score(row.prompt, text)
            assert result.source == "shipped" and result == score(row.prompt, text, row.completion)
    row = POLICY[0]
    worst = completions(row)[1]
    assert Rubric(RubricConfig()).score(row.prompt, worst, row.completion) != score(row.prompt, worst)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("P: 4k2k/8/8/8/8/8/8/4K3 w - - 0 1", "impossible position"),
        ("P:rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "that begins with 'P: ' or 'A: ', got 'P:rnb"),
    ],
)
def test_prompt_without_valid_position_is_refused_in_one_line(prompt: str, expected: str) -> None:
    with pytest.raises(PromptError) as raised:
        score(prompt, "M: e2e4 E: 0.3 B: e2e4")
    assert expected in str(raised.value) and "\n" not in str(raised.value)


def test_unknown_position_is_scored_by_rules_without_an_engine() -> None:
    """Run in a separate process, because `score` looks for an engine only once."""
    code = (
        "from rookworld_rlvr.rewards import score\n"
        "print(score('P: 8/8/8/8/8/8/7k/K7 w - - 33 1', 'M: a1a2 E: 0.0 B: a1a2').source)"
    )
    environment = {"STOCKFISH_PATH": "/nope/stockfish", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "rules\n"
