"""Many positions on several engines: analyses do not depend on the number of engines or on their deaths."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.errors import ScorerError
from rookworld_rlvr.stockfish.analysis import Analysis, EngineCounts
from rookworld_rlvr.stockfish.engine import EngineConfig, EngineUnusableError, engine_position
from rookworld_rlvr.stockfish.pool import EnginePool

PATIENCE_S = 20
FENS = [opening_board(opening).fen() for opening in OPENINGS[:10]]
MATE = "R5k1/5ppp/8/8/8/8/8/7K b - - 0 1"
Gone = Callable[[int], bool]
Pids = Callable[[EnginePool], list[int]]
Until = Callable[[Callable[[], bool]], None]
# Nodes of a search of about a tenth of a second, long enough to kill the engine during it.
LONG = 40_000


def pool_of(path: object, **options: object) -> EnginePool:
    return EnginePool(
        EngineConfig(path=str(path), **({"cache": False, "nodes": 1500} | options))  # type: ignore[arg-type]
    )


def nothing_under_way(pool: EnginePool) -> bool:
    return all(request.future.done() for request in pool._requests.values())


@contextmanager
def meanwhile(pool: EnginePool, do: Callable[[EnginePool], None], engine_pids: Pids) -> Iterator[None]:
    """Call `do` in a thread as soon as the first engine searches."""

    def act() -> None:
        while not engine_pids(pool):
            time.sleep(0.002)
        time.sleep(0.03)
        do(pool)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)


def test_analyses_are_equal_with_one_two_and_four_engines(stockfish: str, engine_pids: Pids) -> None:
    results = []
    for processes in (1, 2, 4, 1, 2, 4, 1, 2, 4):
        with pool_of(stockfish, processes=processes) as pool:
            results.append(pool.analyse(FENS))
            assert 1 <= len(engine_pids(pool)) <= processes
            assert pool.counts().restarts == 0 and pool.counts().searched == len(FENS)
    assert all(other == results[0] for other in results[1:])
    assert [analysis.position for analysis in results[0]] == [engine_position(fen) for fen in FENS]
    for analysis in results[0]:
        legal = {move.uci() for move in chess.Board(analysis.position).legal_moves}
        assert {move for move, _ in analysis.lines} == legal and len(analysis.lines) == len(legal)
    assert len({analysis.lines[0][1] for analysis in results[0]}) > 5


def test_analysis_is_independent_of_earlier_ones(stockfish: str) -> None:
    with pool_of(stockfish) as pool:
        forward = pool.analyse(FENS)
    with pool_of(stockfish) as pool:
        assert pool.analyse(FENS[::-1])[::-1] == forward
        assert pool.analyse(FENS[5:6]) == forward[5:6] != forward[4:5]


def test_engines_killed_during_search_do_not_change_the_analyses(
    stockfish: str, monkeypatch: pytest.MonkeyPatch, engine_pids: Pids
) -> None:
    with pool_of(stockfish, nodes=LONG, processes=2) as pool:
        expected = pool.analyse(FENS[:5])
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 9)
    killed: list[int] = []

    def kill(pool: EnginePool) -> None:
        """Kill three engines, each as soon as it searches."""
        deadline = time.monotonic() + PATIENCE_S
        while len(killed) < 3 and time.monotonic() < deadline:
            for pid in set(engine_pids(pool)) - set(killed):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    with pool_of(stockfish, nodes=LONG, processes=2) as pool:
        with meanwhile(pool, kill, engine_pids):
            assert pool.analyse(FENS[:5]) == expected
        assert len(killed) >= 3 and pool.counts().restarts >= 2
        assert not set(killed) & set(engine_pids(pool))


def test_a_stopped_engine_is_replaced_and_its_position_searched_again(
    stockfish: str, gone: Gone, engine_pids: Pids
) -> None:
    with pool_of(stockfish, timeout_s=2.0) as pool:
        expected = pool.analyse(FENS[:2])
    with pool_of(stockfish, timeout_s=2.0) as pool:
        [first] = engine_pids(pool)
        os.kill(first, signal.SIGSTOP)
        assert pool.analyse(FENS[:2]) == expected
        [second] = engine_pids(pool)
        assert second != first and gone(first) and pool.counts().restarts == 1


def test_failing_position_is_named_and_others_stay_analysed(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 2)
    bad = engine_position(FENS[1])
    monkeypatch.setenv("FAKE_DIES", bad)
    with pool_of(fake_stockfish) as pool:
        with pytest.raises(ScorerError, match="the engine failed 2 times on") as error:
            pool.analyse(FENS[:3])
        assert bad in str(error.value)
        assert len(pool.analyse([FENS[0], FENS[2]])) == 2 and pool.counts().restarts == 2


def test_a_search_that_failed_in_prepare_is_repeated_by_analyse(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 2)
    monkeypatch.setenv("FAKE_DIES", engine_position(FENS[0]))
    with pool_of(fake_stockfish) as pool:
        pool.prepare(FENS[:1])
        until(lambda: nothing_under_way(pool))
        with pytest.raises(ScorerError, match="failed 2 times"):
            pool.analyse(FENS[:2])
        assert pool.counts().restarts == 4
        monkeypatch.setenv("FAKE_DIES", "never")
        assert [analysis.position for analysis in pool.analyse(FENS[:2])] == [engine_position(fen) for fen in FENS[:2]]


def test_transient_engine_failure_costs_only_one_call(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 2)
    monkeypatch.setenv("FAKE_DIES", " ")
    with pool_of(fake_stockfish) as pool:
        with pytest.raises(ScorerError, match="failed 2 times"):
            pool.analyse(FENS[:4])
        until(lambda: nothing_under_way(pool))
        monkeypatch.setenv("FAKE_DIES", "never")
        for fens in (FENS[1:4], FENS[:4]):
            assert [analysis.position for analysis in pool.analyse(fens)] == [engine_position(fen) for fen in fens]
        assert pool.counts().restarts == 8 and pool.counts().searched == 4


def test_prepared_positions_are_searched_once(stockfish: str) -> None:
    with pool_of(stockfish, nodes=LONG) as pool:
        began = time.monotonic()
        pool.prepare(FENS[:3])
        assert time.monotonic() - began < 0.1 and pool.counts() == EngineCounts()
        analyses = pool.analyse([FENS[2], FENS[0], FENS[2]])
        counts = pool.counts()
        assert (counts.positions, counts.searched) == (2, 2) and counts.wait_s > 0.05
        assert analyses[0] is analyses[2] and analyses[0].position == engine_position(FENS[2])
        assert pool.analyse(FENS[:3])[::2] == [analyses[1], analyses[0]]
        # Two of the three positions were known by now.
        assert (pool.counts() - counts).positions == 3 and (pool.counts() - counts).searched == 1


def test_counts_add_and_subtract_field_by_field() -> None:
    some, more = EngineCounts(7, 5, 2, 1.5), EngineCounts(1, 2, 3, 0.25)
    assert some + more == EngineCounts(8, 7, 5, 1.75) and some - more == EngineCounts(6, 3, -1, 1.25)


def test_nodes_argument_of_a_call_changes_the_analysis(fake_stockfish: Path) -> None:
    with pool_of(fake_stockfish, nodes=50) as pool:
        (few,), (many,) = pool.analyse(FENS[:1]), pool.analyse(FENS[:1], nodes=90)
    # The fake engine adds 1 centipawn per node and 7 per MiB of hash.
    assert (few.lines[0][1], many.lines[0][1]) == (0.57, 0.97)


def test_checkmated_position_has_an_empty_analysis(stockfish: str) -> None:
    with pool_of(stockfish) as pool:
        assert pool.analyse([MATE]) == [Analysis(MATE, ())]


def test_no_engine_outlives_its_pool(stockfish: str, gone: Gone, engine_pids: Pids) -> None:
    with pytest.raises(ZeroDivisionError), pool_of(stockfish, processes=2) as pool:
        pool.analyse(FENS[:4])
        pids = engine_pids(pool)
        raise ZeroDivisionError
    assert pids and all(map(gone, pids))
    pool.close()
    with pytest.raises(ScorerError, match="the engine is closed"):
        pool.analyse(FENS[4:5])


def test_closing_the_pool_ends_running_searches(stockfish: str, gone: Gone, engine_pids: Pids) -> None:
    pool = pool_of(stockfish, nodes=10**9)
    pids = engine_pids(pool)
    with meanwhile(pool, EnginePool.close, engine_pids), pytest.raises(ScorerError, match="the engine is closed"):
        pool.analyse(FENS[:3])
    assert all(map(gone, pids)) and pool.counts().restarts == 0


def test_engines_end_when_their_owner_process_is_killed(stockfish: str, until: Until, gone: Gone) -> None:
    code = (
        "import sys, time\n"
        "from rookworld_rlvr.stockfish.engine import EngineConfig\n"
        "from rookworld_rlvr.stockfish.pool import EnginePool\n"
        "pool = EnginePool(EngineConfig(path=sys.argv[1], cache=False))\n"
        "print(pool._engines[0]._process._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, stockfish], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    engine = int(owner.stdout.readline())
    assert not gone(engine)
    owner.kill()
    owner.communicate()
    until(lambda: gone(engine))


def test_pool_without_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusableError, match="no such file"):
        pool_of(tmp_path / "absent")
