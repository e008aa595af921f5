"""A rubric in processes of its own, for judges that are slow or may die: same scores, same order."""

import os
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from typing import Protocol

from ..errors import JudgeError
from ..stockfish.engine import Analysis
from ..stockfish.pool import EngineCounts
from .rubric import Rubric, RubricConfig, Score
from .worker import begin_worker

# A judge that dies or hangs twice over the same completions would do so again.
ATTEMPTS = 2
# Far beyond what the rules take for a step's completions.
TIMEOUT_S = 120.0
CHUNK = 16


@dataclass(frozen=True, slots=True)
class Question:
    """A completion to judge; the arguments of `Rubric.score`."""

    prompt: str
    completion: str
    label: str | None
    step: int | None
    analysis: Analysis | None = None


class Judge(Protocol):
    """Judges many completions at once."""

    @property
    def restarts(self) -> int:
        """How often a judge's processes had to be replaced; its engines are counted apart."""

    def prepare(self, prompts: Iterable[str]) -> None:
        """Completions of these prompts are to be judged soon. Returns at once; what fails is raised in score_all."""

    def score_all(self, questions: Sequence[Question]) -> list[Score]:
        """A score for each, in order. Raises JudgeError where the judge itself fails."""

    def engine_counts(self) -> EngineCounts | None:
        """What its engines have done so far, None where it has none."""

    def close(self) -> None:
        """Let go of what it owns."""


class RulesJudge:
    """What judges have in common that ask no engine."""

    restarts = 0

    def prepare(self, prompts: Iterable[str]) -> None:
        return

    def engine_counts(self) -> EngineCounts | None:
        return None


class InlineJudge(RulesJudge):
    """The rubric in this process."""

    def __init__(self, rubric: Rubric) -> None:
        self._rubric = rubric

    def score_all(self, questions: Sequence[Question]) -> list[Score]:
        return [_ask(self._rubric, question) for question in questions]

    def close(self) -> None:
        return


class JudgePool(RulesJudge):
    """The rubric in `processes` processes. All are replaced if one dies, or if they hang, and asked again.

    They hang if `timeout_s` seconds pass before every completion of a call is judged. Raises JudgeError when they fail
    twice in a row: the completions, not chance, are to blame.
    """

    def __init__(self, config: RubricConfig, processes: int, timeout_s: float = TIMEOUT_S) -> None:
        if processes < 1:
            raise ValueError(f"expected processes from 1, got {processes}")
        if not 0 < timeout_s < inf:
            raise ValueError(f"judge_timeout_s: expected more than 0 seconds, got {timeout_s}")
        Rubric(config)  # A knob out of range is told of here, not in a worker.
        self._config, self._processes, self._timeout_s = config, processes, timeout_s
        self._pool: ProcessPoolExecutor | None = None
        self.restarts = 0

    def score_all(self, questions: Sequence[Question]) -> list[Score]:
        failures = []
        for _ in range(ATTEMPTS):
            try:
                scores = self._ask_all(questions)
                if scores is not None:
                    return scores
                failures.append(f"gave no answer in {self._timeout_s:g} s")
            except BrokenProcessPool:
                failures.append("died")
            self.close()
            self.restarts += 1
        told = " and ".join(dict.fromkeys(failures))
        raise JudgeError(f"the judge's processes {told} {ATTEMPTS} times over {len(questions)} completions")

    def pids(self) -> list[int]:
        """The process ids of the judges that are alive."""
        # While a broken pool is torn down it has none, for a moment.
        return [] if self._pool is None else list(self._pool._processes or ())

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _ask_all(self, questions: Sequence[Question]) -> list[Score] | None:
        """None if the processes hang; they are ended. Raises BrokenProcessPool if one has died."""
        pool = self._running()
        chunks = [pool.submit(_judge, questions[i : i + CHUNK]) for i in range(0, len(questions), CHUNK)]
        if wait(chunks, self._timeout_s).not_done:
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # The pool then gives each chunk up by itself; to cancel one meanwhile would upset it.
            wait(chunks)
            return None
        return [score for chunk in chunks for score in chunk.result()]

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not forked: a copy of a process with torch's threads may hang.
            self._pool = ProcessPoolExecutor(
                self._processes, get_context("spawn"), initializer=_start, initargs=(self._config,)
            )
        return self._pool


_rubrics: list[Rubric] = []


def _start(config: RubricConfig) -> None:
    begin_worker()
    _rubrics[:] = [Rubric(config)]


def _judge(questions: Sequence[Question]) -> list[Score]:
    return [_ask(_rubrics[0], question) for question in questions]


def _ask(rubric: Rubric, question: Question) -> Score:
    return rubric.score(
        question.prompt, question.completion, question.label, step=question.step, analysis=question.analysis
    )
