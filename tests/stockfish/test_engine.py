"""One engine: its binary, its checks, its lines, and the repeated search if it hangs or dies."""

import time
from pathlib import Path

import chess
import chess.engine
import pytest

from rookworld_rlvr.board.evals import to_pawns
from rookworld_rlvr.errors import ScorerError
from rookworld_rlvr.stockfish import engine as engine_file
from rookworld_rlvr.stockfish import uci
from rookworld_rlvr.stockfish.engine import (
    Analysis,
    Engine,
    EngineConfig,
    EngineUnusableError,
    engine_position,
    find_engine,
)
from rookworld_rlvr.stockfish.uci import Limit

QUIET = "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 1"
# Black mates with d8d1. Without it Black is behind, with a rook against a queen.
BLACK_MATES = "3r2k1/5ppp/8/8/8/7Q/5PPP/6K1 b - - 0 1"
MATE, STALEMATE = "R5k1/5ppp/8/8/8/8/8/7K b - - 0 1", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"


def opened(path: object, **options: float) -> Engine:
    return Engine(EngineConfig(path=str(path), cache=False, **options))  # type: ignore[arg-type]


def test_missing_engine_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("STOCKFISH_PATH", raising=False)
    monkeypatch.setattr(engine_file, "DEBIAN_PATH", tmp_path / "absent")
    with pytest.raises(EngineUnusableError, match="found none: apt-get install stockfish, or set STOCKFISH_PATH"):
        Engine(EngineConfig())
    monkeypatch.setenv("STOCKFISH_PATH", str(tmp_path / "gone"))
    with pytest.raises(EngineUnusableError, match="gone': no such file"):
        find_engine()


def test_resolved_engine_path_is_the_one_that_runs(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(fake_stockfish.parent)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(fake_stockfish.parent))
    for name in ("stockfish", "./stockfish", "~/stockfish"):
        assert find_engine(name) == str(fake_stockfish)
        engine = opened(name)
        assert engine.identity() == "Stockfish 15.1 fake.nnue"
        engine.close()
    with pytest.raises(EngineUnusableError, match="'~nobody-here/stockfish': no such file"):
        find_engine("~nobody-here/stockfish")


@pytest.mark.parametrize(
    "name", ["Stockfish 14.1", "Stockfish 9", "Stockfish 200720", "Stockfish 020119", "Crafty 25.2", "stockfish"]
)
def test_old_or_foreign_engine_is_refused_by_name(
    name: str, fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NAME", name)
    engine = opened(fake_stockfish)
    with pytest.raises(EngineUnusableError, match=f"expected Stockfish 15 or newer, got '{name}' from /"):
        engine.identity()
    assert engine._process is None


@pytest.mark.parametrize(
    "name", ["Stockfish 15", "Stockfish 17.1", "Stockfish dev-20260101-abcdef", "Stockfish 150922"]
)
def test_newer_and_nightly_engines_are_identified_by_name_and_network(
    name: str, fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NAME", name)
    engine = opened(fake_stockfish)
    assert engine.identity() == f"{name} fake.nnue"
    engine.close()


@pytest.mark.parametrize(
    ("text", "why"), [("#!/bin/sh\nexit 0\n", "it has died"), ("#!/bin/sh\nsleep 9\n", "no uciok in")]
)
def test_program_without_uci_is_refused_in_one_line(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uci, "START_S", 0.5)
    program = tmp_path / "stockfish"
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(EngineUnusableError, match=f"expected a UCI engine, got .*stockfish: {why}") as error:
        opened(program).identity()
    assert "\n" not in str(error.value)
    program.chmod(0o644)
    with pytest.raises(EngineUnusableError, match=r"it does not start: .*Permission denied"):
        opened(program).identity()


@pytest.mark.parametrize(
    "option",
    [
        {"nodes": 0},
        {"processes": 0},
        {"timeout_s": 0.0},
        {"timeout_s": -1.0},
        {"timeout_s": float("inf")},
        {"timeout_s": float("nan")},
        {"timeout_s": 86_401},
    ],
)
def test_engine_option_out_of_range_is_refused_by_name(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"stockfish.{next(iter(option))}: expected"):
        EngineConfig(**option)  # type: ignore[arg-type]


def test_deadline_longer_than_one_poll_is_waited_for_in_parts(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a day for 1 node, the deadline for 100 nodes is more milliseconds than poll accepts.
    engine = opened(fake_stockfish, nodes=1, timeout_s=86_400)
    assert len(engine.analyse(BLACK_MATES, Limit(nodes=100)).lines) == 20
    engine.close()
    monkeypatch.setattr(uci, "LONGEST_POLL_S", 0.05)
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 1)
    monkeypatch.setenv("FAKE_HANGS", QUIET)
    engine = opened(fake_stockfish, timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(ScorerError, match=r"no bestmove in 0.3 s"):
        engine.analyse(QUIET, Limit(nodes=100))
    assert time.monotonic() - began > 0.3
    engine.close()


def test_engine_position_keeps_halfmove_clock_but_not_move_number() -> None:
    at = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq"
    # No black pawn can capture on e3.
    assert engine_position(f"{at} e3 0 1") == engine_position(f"{at} - 0 40") == f"{at} - 0 1"
    assert engine_position(f"{at} - 3 1") == f"{at} - 3 1"
    with pytest.raises(ValueError, match="expected a FEN of six fields"):
        engine_position(at)


@pytest.mark.parametrize("limit", [Limit(nodes=3000), Limit(depth=4)], ids=str)
def test_evals_equal_those_read_by_python_chess(limit: Limit, stockfish: str) -> None:
    board = chess.Board(QUIET)
    theirs = chess.engine.SimpleEngine.popen_uci(stockfish)
    ours = opened(stockfish)
    try:
        theirs.configure({"Threads": 1, "Hash": 1})
        search_limit = chess.engine.Limit(nodes=limit.nodes or None, depth=limit.depth or None)
        lines = theirs.analyse(board, search_limit, multipv=board.legal_moves.count(), game=object())
        expected = tuple((line["pv"][0].uci(), to_pawns(line["score"].pov(board.turn))) for line in lines)
        assert ours.analyse(QUIET, limit) == Analysis(QUIET, expected)
        assert len(expected) == 27
    finally:
        theirs.quit()
        ours.close()


def test_evals_are_from_the_movers_view_and_mate_ranks_first(stockfish: str) -> None:
    engine = opened(stockfish)
    lines = engine.analyse(BLACK_MATES, Limit(nodes=5000)).lines
    engine.close()
    legal = {move.uci() for move in chess.Board(BLACK_MATES).legal_moves}
    assert {move for move, _ in lines} == legal and len(lines) == len(legal) == 20
    # d8d1 mates in one move, and all other moves lose.
    assert lines[0] == ("d8d1", 999.99) and max(pawns for _, pawns in lines[1:]) < -2


def test_tiny_node_limit_is_raised_until_every_move_has_an_eval(stockfish: str) -> None:
    engine = opened(stockfish)
    lines = engine.analyse(QUIET, Limit(nodes=1)).lines
    assert len({move for move, _ in lines}) == 27 and engine.restarts == 0
    assert engine.analyse(QUIET, Limit(nodes=1)).lines == lines
    engine.close()


def test_interrupted_search_keeps_last_exact_eval_of_each_move(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENDS_IN_A_WINDOW", "1")
    engine = opened(fake_stockfish)
    # Fake, 100 nodes, 1 MiB: at depth 1 g8h8 has 1.07 and g8f8 0.96. At the end g8f8 is first, with at least 0.99.
    lines = engine.analyse(BLACK_MATES, Limit(nodes=100)).lines
    assert lines[:3] == (("g8f8", 0.96), ("g8h8", 0.05), ("d8f8", 0.85)) and len(lines) == 20
    engine.close()


def test_default_node_limit_needs_one_search_per_position(stockfish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search = uci.UciProcess.search

    def counted(process: uci.UciProcess, fen: str, limit: Limit, timeout_s: float, moves: int) -> uci.Lines:
        searched.append(fen)
        return search(process, fen, limit, timeout_s, moves)

    monkeypatch.setattr(uci.UciProcess, "search", counted)
    engine, board, positions = opened(stockfish), chess.Board(), []
    for move in ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5", "a7a6", "b5a4", "g8f6", "e1g1", "f8e7", "f1e1", "b7b5"]:
        board.push_uci(move)
        positions.append(board.fen())
    for fen in positions:
        engine.analyse(fen, Limit(nodes=EngineConfig().nodes))
    engine.close()
    assert searched == positions


def test_position_without_legal_moves_starts_no_engine(fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DIES", "k")
    engine = opened(fake_stockfish)
    assert [engine.analyse(fen, Limit(nodes=5)).lines for fen in (MATE, STALEMATE)] == [(), ()]
    assert engine._process is None


@pytest.mark.parametrize(("how", "why"), [("FAKE_HANGS", "no bestmove in 0.3 s"), ("FAKE_DIES", "it has died")])
def test_failing_position_is_named_and_the_next_one_is_analysed(
    how: str, why: str, fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(how, QUIET)
    monkeypatch.setattr("rookworld_rlvr.stockfish.engine.ATTEMPTS", 2)
    engine = opened(fake_stockfish, timeout_s=0.3 if how == "FAKE_HANGS" else 10)
    engine.identity()
    with pytest.raises(ScorerError) as error:
        engine.analyse(QUIET, Limit(nodes=100))
    assert str(error.value).startswith(f"the engine failed 2 times on {QUIET}: {why}")
    assert engine.restarts == 2
    # The fake engine's evals for 100 nodes and 1 MiB.
    assert engine.analyse(BLACK_MATES, Limit(nodes=100)).lines[:2] == (("g8h8", 1.07), ("g8f8", 0.96))
    engine.close()
    engine.close()
    with pytest.raises(ScorerError, match="the engine is closed"):
        engine.analyse(BLACK_MATES, Limit(nodes=100))
