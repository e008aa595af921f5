"""Analyses on disk: equal to computed ones, shared by processes, and intact after a kill."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.errors import ScorerError, UserError
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.cache import FILE, EngineCache, default_folder
from rookworld_rlvr.stockfish.engine import EngineConfig, engine_position
from rookworld_rlvr.stockfish.pool import EnginePool

FENS = [opening_board(opening).fen() for opening in OPENINGS[:4]]
E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
VERDICT = Analysis(E4, (("e7e5", -0.31), ("f7f5", -999.98)))
WRITER = (
    "import sys, pathlib\n"
    "from rookworld_rlvr.stockfish.analysis import Analysis\n"
    "from rookworld_rlvr.stockfish.cache import EngineCache\n"
    "cache = EngineCache(pathlib.Path(sys.argv[1]))\n"
    "print('open', flush=True)\n"
    "for i in range(int(sys.argv[3])):\n"
    "    cache.put(sys.argv[2], Analysis(f'{i}', (('e7e5', i / 100),) * 30))\n"
)


def pool_in(folder: Path, path: object, **options: object) -> EnginePool:
    config = {"nodes": 1500, "path": str(path)} | options
    return EnginePool(EngineConfig(**config), cache_folder=folder)  # type: ignore[arg-type]


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows(folder: Path) -> list[tuple[str, str]]:
    file = sqlite3.connect(folder / FILE)
    try:
        return file.execute("SELECT engine, position FROM analyses ORDER BY engine, position").fetchall()
    finally:
        file.close()


def test_cached_analysis_equals_computed_one_without_a_search(stockfish: str, tmp_path: Path) -> None:
    with pool_in(tmp_path, stockfish, cache=False) as pool:
        cold = pool.analyse(FENS)
    assert list(tmp_path.iterdir()) == []
    with pool_in(tmp_path, stockfish) as pool:
        assert pool.analyse(FENS) == cold and pool.counts().searched == len(FENS)
    with pool_in(tmp_path, stockfish, processes=2) as pool:
        assert pool.analyse(FENS) == cold
        assert (pool.counts().positions, pool.counts().searched) == (len(FENS), 0)
    assert len(rows(tmp_path)) == len(FENS)


def test_cache_key_has_clock_nodes_and_version_but_no_move_number(
    fake_stockfish: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(fen: str, **options: object) -> int:
        with pool_in(tmp_path, fake_stockfish, **options) as pool:
            pool.analyse([fen])
            return pool.counts().searched

    assert [searched(E4), searched(E4)] == [1, 0]
    assert searched(E4.replace("0 1", "0 30")) == 0
    assert searched(E4.replace("0 1", "9 30")) == 1
    assert [searched(E4, nodes=1501), searched(E4, processes=2)] == [1, 0]
    monkeypatch.setenv("FAKE_NAME", "Stockfish 16")
    assert searched(E4) == 1
    judges = {engine for engine, _ in rows(tmp_path)}
    assert "Stockfish 16 fake.nnue, hash 1, nodes 1500, all moves" in judges and len(judges) == 3


def test_cached_analysis_is_visible_to_another_connection_at_once(tmp_path: Path) -> None:
    ours, theirs = EngineCache(tmp_path), EngineCache(tmp_path)
    assert theirs.get("engine", E4) is None
    ours.put("engine", VERDICT)
    ours.put("engine", VERDICT)
    assert theirs.get("engine", E4) == VERDICT and theirs.get("other", E4) is None
    for cache in (ours, theirs, theirs):
        cache.close()


def test_concurrent_writer_processes_lose_no_analysis(tmp_path: Path) -> None:
    writers = [writer(tmp_path, f"engine {i}", 60) for i in range(3)]
    assert [process.wait(60) for process in writers] == [0, 0, 0]
    for process in writers:
        process.communicate()
    assert len(rows(tmp_path)) == 180


def test_killed_writer_leaves_only_complete_analyses(tmp_path: Path) -> None:
    process = writer(tmp_path, "engine", 10**7)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    time.sleep(0.2)
    process.kill()
    process.communicate()
    cache = EngineCache(tmp_path)
    written = [int(position) for _, position in rows(tmp_path)]
    assert sorted(written) == list(range(len(written))) and len(written) > 10
    for i in written[:: max(1, len(written) // 50)]:
        assert cache.get("engine", f"{i}") == Analysis(f"{i}", (("e7e5", i / 100),) * 30)
    cache.put("engine", VERDICT)
    cache.close()


def test_default_cache_folder_follows_xdg_cache_home_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "rookworld"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert default_folder() == tmp_path / "me" / ".cache" / "rookworld"


def test_invalid_or_uncreatable_cache_file_is_refused(fake_stockfish: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("no database at all, but long enough to be looked at" * 50)
    with pytest.raises(UserError, match=f"expected a cache of analyses at .*{FILE}, got file is not a database"):
        pool_in(tmp_path, fake_stockfish)
    with pytest.raises(UserError, match="Not a directory"):
        pool_in(tmp_path / FILE / "deeper", fake_stockfish)


def test_cache_folder_of_unknown_user_is_refused(fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"expected a cache of analyses at ~nobody-here/x/{FILE}, got "):
        pool_in(Path("~nobody-here/x"), fake_stockfish)
    # A user without a home folder gets the same error.
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(UserError, match=f"at ~/.cache/rookworld/{FILE}, got "):
        EnginePool(EngineConfig(path=str(fake_stockfish)))


def test_closed_pool_with_a_cache_refuses_a_new_position(fake_stockfish: Path, tmp_path: Path) -> None:
    pool = pool_in(tmp_path, fake_stockfish)
    pool.close()
    pool.close()
    with pytest.raises(ScorerError, match="the engine is closed"):
        pool.analyse(FENS[:1])


def test_cache_failure_during_use_raises_scorer_error(fake_stockfish: Path, tmp_path: Path) -> None:
    with pool_in(tmp_path, fake_stockfish) as pool:
        pool.analyse(FENS[:1])
        file = sqlite3.connect(tmp_path / FILE)
        file.execute("DROP TABLE analyses")
        file.close()
        with pytest.raises(ScorerError, match="the cache of analyses failed: no such table"):
            pool.analyse(FENS[1:2])
        assert [analysis.position for analysis in pool.analyse(FENS[:1])] == [engine_position(FENS[0])]
