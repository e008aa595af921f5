"""Pool of engines that share the positions to analyse; each is analysed once, however often it is requested."""

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import ScorerError
from .analysis import Analysis, EngineCounts
from .cache import EngineCache, default_folder
from .engine import HASH_MIB, Engine, EngineConfig, engine_position
from .uci import Limit

# Analyses kept in memory: more than the prompts of a step, so that the results of `prepare` are still there.
MAX_CACHED = 8192


@dataclass(slots=True)
class _Request:
    future: Future[Analysis]
    searched: bool
    """True for a search by an engine that is not in the counts yet."""


class EnginePool:
    """A pool of `config.processes` engines. Use it in a `with` block, or close it.

    The first engine is started and checked at once, the others when they are needed. The analyses do not depend on the
    number of engines, the order of positions or the contents of the cache. Raises EngineUnusableError, or another
    UserError if the cache cannot be opened.
    """

    def __init__(self, config: EngineConfig, *, cache_folder: Path | None = None) -> None:
        """`cache_folder`: folder of the cache; None means `default_folder()`."""
        self._config = config
        self._engines = [Engine(config) for _ in range(config.processes)]
        self.name = self._engines[0].identity()
        self._cache: EngineCache | None = None
        if config.cache:
            try:
                self._cache = EngineCache(cache_folder or default_folder())
            except BaseException:
                self._engines[0].close()
                raise
        self._idle: queue.SimpleQueue[Engine] = queue.SimpleQueue()
        for engine in self._engines:
            self._idle.put(engine)
        self._threads = ThreadPoolExecutor(config.processes, thread_name_prefix="engine")
        self._requests: OrderedDict[tuple[str, Limit], _Request] = OrderedDict()
        self._lock = threading.Lock()
        self._positions = self._searched = 0
        self._wait_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def prepare(self, fens: Iterable[str], *, nodes: int = 0) -> None:
        """Start the analysis of these positions and return at once. A search that fails is repeated by `analyse`."""
        limit = self._limit(nodes)
        with self._lock:
            for position in dict.fromkeys(map(engine_position, fens)):
                self._request(position, limit)

    def analyse(self, fens: Sequence[str], *, nodes: int = 0) -> list[Analysis]:
        """Return an analysis of each position, in order; `nodes` above 0 replaces the configured number.

        Raises ScorerError if every attempt to search a position fails, ValueError for a malformed FEN.
        """
        began, limit = time.perf_counter(), self._limit(nodes)
        positions = [engine_position(fen) for fen in fens]
        with self._lock:
            requests = {position: self._request(position, limit) for position in dict.fromkeys(positions)}
        try:
            analyses = {position: self._result(request) for position, request in requests.items()}
        finally:
            with self._lock:
                self._wait_s += time.perf_counter() - began
        return [analyses[position] for position in positions]

    def counts(self) -> EngineCounts:
        """Return the work so far."""
        restarts = sum(engine.restarts for engine in self._engines)
        return EngineCounts(self._positions, self._searched, restarts, self._wait_s)

    def close(self) -> None:
        """End the engines, also in the middle of a search. Safe to call again."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for engine in self._engines:
            engine.close()
        self._threads.shutdown(wait=True)
        # A new position is then refused by the closed threads instead of being looked up in a closed file.
        with self._lock:
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    def _limit(self, nodes: int) -> Limit:
        return Limit(nodes=nodes or self._config.nodes)

    def _request(self, position: str, limit: Limit) -> _Request:
        """Return the request of a position, and start it if there is none. The caller holds the lock."""
        request = self._requests.pop((position, limit), None)
        # The cause of a failure may be gone by now, so a failed request is started again.
        if request is None or _failed(request.future):
            request = self._begin(position, limit)
        self._requests[position, limit] = request
        while len(self._requests) > MAX_CACHED and next(iter(self._requests.values())).future.done():
            self._requests.popitem(last=False)
        return request

    def _begin(self, position: str, limit: Limit) -> _Request:
        known = self._cache.get(self._cache_key(limit), position) if self._cache else None
        if known is not None:
            request = _Request(Future(), searched=False)
            request.future.set_result(known)
            return request
        try:
            return _Request(self._threads.submit(self._search, position, limit), searched=True)
        except RuntimeError as error:
            raise ScorerError("the engine is closed") from error

    def _result(self, request: _Request) -> Analysis:
        try:
            analysis = request.future.result()
        except CancelledError as error:
            raise ScorerError("the engine is closed") from error
        with self._lock:
            self._positions += 1
            self._searched += request.searched
            request.searched = False
        return analysis

    def _search(self, position: str, limit: Limit) -> Analysis:
        """Search a position in a thread of the pool. There are as many threads as engines, so one engine is idle."""
        engine = self._idle.get()
        try:
            analysis = engine.analyse(position, limit)
        finally:
            self._idle.put(engine)
        if self._cache is not None:
            self._cache.put(self._cache_key(limit), analysis)
        return analysis

    def _cache_key(self, limit: Limit) -> str:
        """Return everything except the position that an analysis depends on."""
        return f"{self.name}, hash {HASH_MIB}, {limit}, all moves"


def _failed(future: Future[Analysis]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
