"""Ranks that share servers: no rank sends new weights while another still samples with the old ones."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rookworld_rlvr.model.world import Result, World
from rookworld_rlvr.rollout.vllm_server import RankGenerator

RANKS, PATIENCE_S, SAMPLING_S = 2, 60, 0.3


class ThreadWorld(World):
    """A rank in a thread of this process."""

    size = RANKS

    def __init__(self, rank: int, meeting: threading.Barrier, results: dict[int, Any]) -> None:
        self.rank, self._meeting, self._results = rank, meeting, results

    def all_gather(self, work: Callable[[], Result], what: str) -> list[Result]:
        self._results[self.rank] = work()
        self._meeting.wait(PATIENCE_S)
        gathered = [self._results[rank] for rank in range(RANKS)]
        self._meeting.wait(PATIENCE_S)
        return gathered


class Servers:
    """Servers that record the arrival of new weights and take a while to sample."""

    def __init__(self) -> None:
        self.have_new_weights = threading.Event()

    def sync(self, _model: object) -> None:
        self.have_new_weights.set()

    def generate(self, *_: object, **__: object) -> Any:
        """Return True if new weights arrived during sampling."""
        return self.have_new_weights.wait(SAMPLING_S)


def test_weight_sync_waits_for_ranks_that_still_sample() -> None:
    servers, meeting, results = Servers(), threading.Barrier(RANKS), dict[int, Any]()

    def rank(number: int) -> bool:
        generator = RankGenerator(servers, ThreadWorld(number, meeting, results))  # type: ignore[arg-type]
        mixed = bool(generator.generate([], group_size=1, temperature=1.0)) if number else False
        generator.sync(None)  # type: ignore[arg-type]
        return mixed

    with ThreadPoolExecutor(RANKS) as pool:
        assert list(pool.map(rank, range(RANKS))) == [False, False]
    assert servers.have_new_weights.is_set()
