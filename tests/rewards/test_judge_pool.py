"""Judges in processes of their own: the same scores, and what becomes of a process that dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import chess
import pytest

from rookworld_rlvr.errors import JudgeError
from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.rewards.judge_pool import CHUNK, InlineJudge, JudgePool, Question
from rookworld_rlvr.tasks.types import PromptError

MOVES = [move.uci() for move in chess.Board().legal_moves]
PATIENCE_S = 60


def questions() -> list[Question]:
    """More than two chunks, of many different scores; the step matters under a warm-up."""
    prompt = f"P: {chess.STARTING_FEN}"
    texts = [f"M: {first} {second} E: 0.1 0.2 B: {first}" for first in MOVES for second in ("e2e4", "e9e4")]
    asked = [Question(prompt, text, None, step) for step, text in enumerate(texts)]
    assert len(asked) == 40 > 2 * CHUNK
    return asked


OWNER = """
import time
from rookworld_rlvr.rewards import RubricConfig
from rookworld_rlvr.rewards.judge_pool import JudgePool, Question
if __name__ == "__main__":
    pool = JudgePool(RubricConfig(), 1)
    pool.score_all([Question("P: 8/8/8/4k3/8/4P3/8/4K3 b - - 7 60", "M: e5e4", None, None)])
    print(*pool.pids(), flush=True)
    time.sleep(600)
"""
CONFIG = RubricConfig(warmup_steps=100, malformed_reward=-0.7)


@pytest.fixture
def pool() -> Iterator[JudgePool]:
    judge = JudgePool(CONFIG, 1)
    yield judge
    judge.close()


def test_a_pool_gives_the_scores_of_its_rubric_in_their_order() -> None:
    rubric = Rubric(CONFIG)
    expected = [rubric.score(q.prompt, q.completion, q.label, step=q.step) for q in questions()]
    assert len({score.total for score in expected}) > 10
    inline, pool = InlineJudge(rubric), JudgePool(CONFIG, 2)
    assert inline.score_all(questions()) == expected and inline.restarts == 0
    try:
        assert pool.pids() == []
        assert pool.score_all(questions()) == expected
        pids = pool.pids()
        assert len(pids) == 2 and os.getpid() not in pids
        assert pool.score_all(questions()[:3]) == expected[:3] and pool.pids() == pids
        assert pool.score_all([]) == [] and pool.restarts == 0
    finally:
        pool.close()
    assert pool.pids() == []


def test_a_process_that_dies_is_replaced_and_nothing_is_lost(pool: JudgePool) -> None:
    expected = pool.score_all(questions())
    [first] = pool.pids()
    os.kill(first, signal.SIGKILL)
    assert pool.score_all(questions()) == expected
    [second] = pool.pids()
    assert second != first and pool.restarts == 1
    assert pool.score_all(questions()) == expected and pool.pids() == [second] and pool.restarts == 1


def test_a_process_that_hangs_is_replaced_and_nothing_is_lost() -> None:
    pool = JudgePool(CONFIG, 1, timeout_s=8)
    try:
        expected = pool.score_all(questions())
        [first], before = pool.pids(), pool.restarts
        os.kill(first, signal.SIGSTOP)
        assert pool.score_all(questions()) == expected
        assert pool.pids() != [first] and pool.restarts == before + 1
    finally:
        pool.close()


@contextmanager
def killing(pool: JudgePool) -> Iterator[None]:
    """Kill each of the pool's processes as soon as it is there."""
    over = threading.Event()

    def kill() -> None:
        killed: set[int] = set()
        while not over.is_set():
            for pid in set(pool.pids()) - killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.001)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def test_a_judge_that_dies_again_over_the_same_completions_says_so_and_may_be_asked_once_more(pool: JudgePool) -> None:
    with killing(pool), pytest.raises(JudgeError, match="the judge's processes died 2 times over 40 completions"):
        pool.score_all(questions())
    assert pool.restarts == 2 and pool.pids() == []
    assert len(pool.score_all(questions())) == 40 and pool.restarts == 2


def test_ctrl_c_which_a_terminal_sends_to_judges_too_leaves_them_as_they_are(pool: JudgePool) -> None:
    expected = pool.score_all(questions())
    [pid] = pool.pids()
    os.kill(pid, signal.SIGINT)
    assert pool.score_all(questions()) == expected and pool.pids() == [pid] and pool.restarts == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_judges_end_with_a_process_that_is_killed(
    how: signal.Signals, until: Callable[[Callable[[], bool]], None], gone: Callable[[int], bool]
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 1 and not gone(pids[0])
    owner.send_signal(how)
    owner.communicate()
    until(lambda: gone(pids[0]))


def test_an_error_of_the_rubric_is_no_death_and_comes_through_as_it_is(pool: JudgePool) -> None:
    good = questions()[0]
    with pytest.raises(PromptError) as error:
        pool.score_all([good, Question("P: no position", "M:", None, None)])
    with pytest.raises(PromptError) as inline_error:
        InlineJudge(Rubric(CONFIG)).score_all([Question("P: no position", "M:", None, None)])
    assert str(error.value) == str(inline_error.value)
    assert pool.score_all([good]) and pool.restarts == 0


def test_judges_that_always_hang_say_so() -> None:
    hasty = JudgePool(CONFIG, 1, timeout_s=1e-3)
    with pytest.raises(JudgeError, match=r"processes gave no answer in 0\.001 s 2 times over 40 completions"):
        hasty.score_all(questions())
    assert hasty.restarts == 2 and hasty.pids() == []


def test_a_pool_without_processes_or_with_a_rubric_out_of_range_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="expected processes from 1, got 0"):
        JudgePool(RubricConfig(), 0)
    with pytest.raises(ValueError, match="malformed_reward"):
        JudgePool(RubricConfig(malformed_reward=1.0), 1)
