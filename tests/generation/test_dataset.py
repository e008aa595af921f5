"""Rows that `rookworld data generate` writes: they resume, keep positions out, and do not depend on processes."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.app import data
from rookworld_rlvr.app.data import main
from rookworld_rlvr.board.distance_to_mate import exact_evals
from rookworld_rlvr.board.evals import MATE_THRESHOLD_PAWNS
from rookworld_rlvr.board.moves import is_mate
from rookworld_rlvr.evaluation.conversion import Advantage, endgames_kept_out, won_board
from rookworld_rlvr.generation import dataset
from rookworld_rlvr.generation.dataset import _given_games
from rookworld_rlvr.generation.sources import Source
from rookworld_rlvr.generation.transitions import rows_from_positions
from rookworld_rlvr.generation.workers import Game, Labelling, _labelled_game, limit_of
from rookworld_rlvr.stockfish.engine import Engine, EngineConfig, EngineUnusableError, find_engine
from rookworld_rlvr.stockfish.move_evals import move_evals_lines, parse_move_evals
from rookworld_rlvr.stockfish.uci import Limit
from rookworld_rlvr.tasks.audit import audit
from rookworld_rlvr.tasks.corpus import example_key, read_corpus
from rookworld_rlvr.tasks.policy.text import parse_policy
from rookworld_rlvr.tasks.types import PolicyCompletion
from rookworld_rlvr.training.data import HELD_OUT_FILE, default_file, held_out_positions

ROOT = Path(__file__).resolve().parents[2]
# A process that a script starts in the background ignores SIGINT, and so do its children.
PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from rookworld_rlvr.app.data import main; sys.exit(main(sys.argv[1:]))"
)


def has_engine() -> bool:
    try:
        return bool(find_engine())
    except EngineUnusableError:
        return False


needs_engine = pytest.mark.skipif(not has_engine(), reason="no Stockfish on this machine")


def generate(folder: Path, *options: str, rows: int = 60) -> None:
    arguments = ["--rows", str(rows), "--seed", "7", "--depth", "3", "--out", str(folder), *options]
    assert main(["generate", *arguments]) == 0


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def one_line_refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_policy_rows_without_an_engine_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(tmp_path / "absent"))
    assert "engine" in one_line_refusal(capsys, "generate", "--rows", "5", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_environment_rows_need_no_engine_and_pass_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(tmp_path / "absent"))
    generate(tmp_path / "out", "--task", "environment", rows=200)
    report = audit(tmp_path / "out" / "environment.txt")
    assert report.is_clean and report.tasks["environment"].found["rows"] == 200
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())["environment"]
    assert sum(card["reward_classes"].values()) == sum(card["rows_by_color"].values()) == 200
    assert set(card["reward_classes"]) >= {"-1.0", "0.001"}


@needs_engine
def test_rows_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    generate(tmp_path / "one", "--processes", "1")
    generate(tmp_path / "two", "--processes", "2")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert files(tmp_path / "one").keys() == {"data_card.json", "environment.txt", "policy.txt", "move_evals.tsv"}
    assert audit(tmp_path / "one" / "policy.txt").is_clean


@needs_engine
def test_policy_rows_are_distinct_balanced_and_label_the_best_move(tmp_path: Path) -> None:
    generate(tmp_path / "out", "--task", "policy")
    examples = read_corpus(tmp_path / "out" / "policy.txt").examples
    assert len({example_key(example) for example in examples}) == len(examples) == 60
    for example in examples:
        answer = parse_policy(example.completion or "")
        assert isinstance(answer, PolicyCompletion)
        assert answer.evals_pawns[answer.moves.index(answer.best)] == max(answer.evals_pawns)
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())
    assert card["policy"]["labels_checked"] == card["policy"]["rows_by_color"]
    mating: Counter[str] = Counter()
    for example in examples:
        board = chess.Board(example.prompt.removeprefix("P: "))
        answer = parse_policy(example.completion or "")
        assert isinstance(answer, PolicyCompletion)
        mating[chess.COLOR_NAMES[board.turn]] += any(is_mate(board, move) for move in answer.moves)
    assert card["policy"]["mates_in_one_best"] == {color: mating[color] for color in ("white", "black")}
    assert min(card["policy"]["rows_by_color"].values()) > 20
    assert (card["seed"], card["depth"], card["engine"][:9]) == (7, 3, "Stockfish")


@needs_engine
@pytest.mark.slow
def test_generation_resumes_after_a_truncated_line_to_the_same_rows(tmp_path: Path) -> None:
    generate(tmp_path / "whole", rows=300)
    generate(tmp_path / "cut", rows=20)
    for log in (tmp_path / "cut" / "games").iterdir():
        log.write_bytes(log.read_bytes()[:-10])
    generate(tmp_path / "cut", rows=300)
    assert files(tmp_path / "whole") == files(tmp_path / "cut")


@needs_engine
def test_interrupted_generation_exits_130_and_resumes_to_same_rows(tmp_path: Path) -> None:
    folder, log = tmp_path / "cut", tmp_path / "cut" / "games" / "policy.jsonl"
    options = ["--task", "policy", "--rows", "100000", "--seed", "7", "--depth", "3", "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", PROGRAM, "generate", *options]
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not (log.exists() and log.read_bytes().count(b"\n") > 1):
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 130 and "Traceback" not in errors
    assert not (folder / "policy.txt").exists()
    played = log.read_bytes().count(b"\n")
    generate(folder, "--task", "policy", rows=20)
    generate(tmp_path / "whole", "--task", "policy", rows=20)
    assert played > 1
    assert files(folder) == files(tmp_path / "whole")


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def children(pid: int) -> set[int]:
    """Return the processes that descend from a process; none if it has ended."""
    pids = {int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()}
    return pids.union(*(children(child) for child in pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def engines(pids: set[int]) -> set[int]:
    """Return those of the processes that run the engine."""
    return {pid for pid in pids if read(f"/proc/{pid}/comm").strip() == Path(find_engine()).name}


@needs_engine
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_generation_leaves_no_worker_and_no_engine_process(how: signal.Signals, tmp_path: Path) -> None:
    # At this depth no search ends before the test does.
    options = ["--task", "policy", "--rows", "9", "--depth", "99", "--processes", "2", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    started = subprocess.Popen([sys.executable, "-c", PROGRAM, "generate", *options], env=environment)
    while len(engines(own := children(started.pid))) < 2:
        assert started.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    assert len(own) >= 4  # Two workers and one engine for each.
    started.send_signal(how)
    started.wait()
    deadline = time.monotonic() + 30
    try:
        while any(map(alive, own)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for pid in filter(alive, own):
            os.kill(pid, signal.SIGKILL)


def test_resumed_generation_reports_existing_rows_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int, int]] = []
    reports: list[int] = []

    @contextmanager
    def progress(_console: object, name: str, total: int, *, start: int = 0) -> Iterator[Callable[[int], None]]:
        opened.append((name, total, start))
        yield reports.append

    generate(tmp_path, "--task", "environment", rows=40)
    known = sum(map(len, map(json.loads, (tmp_path / "games/environment.jsonl").read_text().splitlines()[1:])))
    assert known >= 40
    monkeypatch.setattr(data, "progress", progress)
    generate(tmp_path, "--task", "environment", rows=60)
    assert opened == [("environment", 60, min(known, 60)), ("audit of environment", 60, 0)]
    assert reports[-60:] == list(range(1, 61))


def test_data_folder_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path, "--task", "environment", rows=5)
    capsys.readouterr()
    monkeypatch.setattr(dataset, "GAMES_VERSION", dataset.GAMES_VERSION + 1)
    options = ["--task", "environment", "--rows", 9, "--seed", 7, "--out", tmp_path]
    assert f'"version": {dataset.GAMES_VERSION}' in one_line_refusal(capsys, "generate", *options)


@needs_engine
def test_excluded_positions_are_kept_out_of_both_tasks(tmp_path: Path) -> None:
    generate(tmp_path / "first", rows=60)
    named = tmp_path / "held_out.jsonl"
    lines = files(tmp_path / "first")["policy.txt"].splitlines()
    fens = [line.removeprefix("P: ").split("M:")[0].strip() for line in lines]
    named.write_text("".join(json.dumps({"fen": fen}) + "\n" for fen in fens))
    environment = tmp_path / "first" / "environment.txt"
    generate(tmp_path / "second", "--exclude", str(named), str(environment), rows=60)
    kept_out = {example_key(e) for source in (named, environment) for e in read_corpus(source).examples}
    for task in ("policy", "environment"):
        examples = read_corpus(tmp_path / "second" / f"{task}.txt").examples
        assert len(examples) == 60 and not kept_out & {example_key(example) for example in examples}


@needs_engine
def test_positions_of_our_evaluations_are_kept_out_by_default(tmp_path: Path) -> None:
    examples = read_corpus(default_file(HELD_OUT_FILE)).examples
    fens = [example.prompt.removeprefix("P: ") for example in examples if example.task == "policy"][:5]
    fens += [won_board(kind, 19, seed=0).fen() for kind in (Advantage.kqk, Advantage.krk)]
    named = tmp_path / "positions.fen"
    named.write_text("".join(f"{fen}\n" for fen in fens))
    generate(tmp_path / "out", "--task", "policy", "--positions", str(named), rows=5)
    rows = read_corpus(tmp_path / "out" / "policy.txt").examples
    assert len(rows) == 5 and not (held_out_positions() | endgames_kept_out()) & {example_key(row) for row in rows}
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())
    assert card["excluded_positions"] == len(held_out_positions() | endgames_kept_out())
    assert card["policy"]["dropped"]["excluded"] >= len(fens)


def test_data_folder_of_another_seed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(tmp_path / "out", "--task", "environment", rows=5)
    before = files(tmp_path / "out")
    capsys.readouterr()
    options = ["--task", "environment", "--rows", 5, "--seed", 8, "--out", tmp_path / "out"]
    assert '"seed": 7' in one_line_refusal(capsys, "generate", *options)
    assert files(tmp_path / "out") == before


def test_damaged_game_log_is_refused_with_its_line_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(tmp_path, "--task", "environment", rows=40)
    capsys.readouterr()
    log = tmp_path / "games/environment.jsonl"
    whole = log.read_bytes().splitlines()
    options = ["--task", "environment", "--rows", 40, "--seed", 7, "--out", tmp_path]
    damages = [(1, b""), (1, b"\xff"), *((3, text) for text in (b"", b'["\xff"]', b"{}", b"[1]", b'["A: no end'))]
    for number, text in damages:
        lines = [*whole[: number - 1], text, *whole[number:]]
        log.write_bytes(b"".join(line + b"\n" for line in lines))
        assert f"in line {number} of {log}, got b" in one_line_refusal(capsys, "generate", *options)


@needs_engine
@pytest.mark.slow
def test_generated_rows_contain_mate_scores_below_1000_pawns(tmp_path: Path) -> None:
    generate(tmp_path / "out", "--task", "policy", rows=400)
    examples = read_corpus(tmp_path / "out" / "policy.txt").examples
    answers = [parse_policy(example.completion or "") for example in examples]
    evals = [pawns for answer in answers if isinstance(answer, PolicyCompletion) for pawns in answer.evals_pawns]
    assert any(abs(pawns) > MATE_THRESHOLD_PAWNS for pawns in evals)
    assert all(abs(pawns) < 1000 for pawns in evals)


@needs_engine
def test_node_limit_is_recorded_and_not_mixed_with_a_depth_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--task", "policy", "--rows", "20", "--seed", "7", "--out", str(tmp_path / "out")]
    assert main(["generate", *given, "--nodes", "300"]) == 0
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())
    assert (card["nodes"], card["hash_mib"], "depth" in card) == (300, 1, False)
    assert sum(card["policy"]["labels_checked"].values()) == 20
    capsys.readouterr()
    assert '"nodes": 300' in one_line_refusal(capsys, "generate", *given, "--depth", "3")
    assert "not allowed with" in one_line_refusal(capsys, "generate", *given, "--depth", "3", "--nodes", "300")


@needs_engine
def test_king_and_rook_against_king_is_labelled_by_distance_to_mate() -> None:
    fen = "8/8/8/3k4/8/8/8/K6R w - - 0 1"
    labelling = Labelling(EngineConfig(), Limit(depth=3), [[fen, "8/8/8/3k4/8/8/6P1/K6R w - - 0 1"]])
    game = _labelled_game(0, 0, Engine(labelling.engine), labelling)
    assert isinstance(game, Game)
    rook, with_pawn = (parse_move_evals(line).evals_pawns for line in game.lines)
    # A search of three plies sees no mate in fifteen.
    assert rook == exact_evals(chess.Board(fen)) and min(rook.values()) > MATE_THRESHOLD_PAWNS
    assert max(with_pawn.values()) < MATE_THRESHOLD_PAWNS


@needs_engine
def test_engine_killed_while_labelling_changes_no_row() -> None:
    labelling = Labelling(EngineConfig(), Limit(depth=5))
    engine, over = Engine(labelling.engine), threading.Event()
    plain = _labelled_game(7, 5, engine, labelling)
    assert isinstance(plain, Game) and len(plain.lines) > 20 and plain.restarts == 0

    def kill_once() -> None:
        first = engine._process
        time.sleep(0.05)
        if first is not None:
            os.kill(first._process.pid, signal.SIGKILL)
        over.set()

    thread = threading.Thread(target=kill_once)
    thread.start()
    lines, restarts = [], 0
    while not (over.is_set() and restarts):
        game = _labelled_game(7, 5, engine, labelling)
        assert isinstance(game, Game)
        lines.append(game.lines)
        restarts += game.restarts
        assert len(lines) < 50
    thread.join()
    engine.close()
    assert all(written == plain.lines for written in lines) and restarts == 1


def test_search_timeout_is_independent_of_the_node_limit(
    fake_stockfish: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(fake_stockfish))
    monkeypatch.setenv("FAKE_HANGS", " ")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    options = ["--task", "policy", "--rows", "5", "--nodes", "60000", "--timeout", "1"]
    assert main(["generate", *options, "--out", str(tmp_path / "out")]) == 2
    assert ": no bestmove in 1 s (" in capfd.readouterr().err


def test_repeated_engine_failure_ends_generation_without_traceback(
    fake_stockfish: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(fake_stockfish))
    monkeypatch.setenv("FAKE_DIES", " ")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    assert main(["generate", "--task", "policy", "--rows", "5", "--out", str(tmp_path / "out")]) == 2
    error = capfd.readouterr().err
    # The error is one line after the progress bar.
    line = error.splitlines()[-1]
    position = re.match(r"rookworld data: the engine failed 3 times on (.*?): it has died", line)
    assert position and chess.Board(position[1]).is_valid()
    assert error.count("engine failed") == 1 and "Traceback" not in error


@needs_engine
def test_policy_rows_hold_the_best_of_all_evaluated_legal_moves(tmp_path: Path) -> None:
    generate(tmp_path / "out", "--task", "policy")
    labels = [parse_move_evals(line) for line in move_evals_lines(tmp_path / "out" / "move_evals.tsv")]
    rows = read_corpus(tmp_path / "out" / "policy.txt").examples
    assert len(labels) == len(rows) == 60
    for evals, row in zip(labels, rows, strict=True):
        assert evals.evals_pawns.keys() == {move.uci() for move in chess.Board(evals.fen).legal_moves}
        answer = parse_policy(row.completion or "")
        assert isinstance(answer, PolicyCompletion) and row.prompt == f"P: {evals.fen}"
        assert evals.evals_pawns[answer.best] == max(evals.evals_pawns.values())
        assert list(answer.evals_pawns) == sorted(evals.evals_pawns.values(), reverse=True)[:5]
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())["policy"]
    assert card["rows_by_source"] == dict(sorted(Counter(evals.source for evals in labels).items()))


def test_given_games_are_parted_at_null_moves(tmp_path: Path) -> None:
    path = tmp_path / "GAMES.PGN"
    path.write_text("1. e4 e5 2. Nf3 Nc6 3. Bc4 -- 4. d4 exd4 5. O-O d6 *\n")
    first, second = _given_games([str(path)])
    assert (len(first), len(second)) == (6, 5)
    assert first[-1].split()[1] == "b" and second[0].split()[1] == "w"
    assert all(chess.Board(fen).is_valid() for fen in (*first, *second))
    rows = [row for part in (first, second) for row in rows_from_positions(part, random.Random(0), Source.given)]
    assert any("A: " in row and "+e1g1+d2d4 e5d4 e1g1+" in row for row in rows)


def test_positions_of_an_unknown_type_are_refused_with_all_types(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a file of type \.pgn, \.fen, \.txt, \.epd, \.jsonl, \.csv, got"):
        _given_games([str(tmp_path / "games.bin")])


@needs_engine
def test_given_games_and_positions_are_labelled_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pgn, lines, bad = (tmp_path / name for name in ("games.pgn", "lines.fen", "bad.fen"))
    pgn.write_text('[Event "a"]\n\n1. f3 e5 2. g4 Qh4# 0-1\n\n[Event "b"]\n\n1. e4 c5 *\n')
    lines.write_text("7k/8/8/8/8/8/7P/K7 w - - 0 1\n")
    given = ["--positions", str(pgn), str(lines)]
    generate(tmp_path / "out", *given, rows=30)
    evals = [parse_move_evals(line) for line in move_evals_lines(tmp_path / "out" / "move_evals.tsv")]
    # The start position counts once for both games. Five later positions of the games are not over; one FEN is given.
    assert [label.source for label in evals].count("given") == 7
    assert evals[6].fen == "7k/8/8/8/8/8/7P/K7 w - - 0 1" and evals[7].source != "given"
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())
    assert card["given_games"] == 3
    rows = (tmp_path / "out" / "environment.txt").read_text()
    assert "+d8h4+f2f3 e7e5 g2g4 d8h4+" in rows and "+1.0+1+0" in rows
    capsys.readouterr()
    assert "given" in one_line_refusal(
        capsys, "generate", "--rows", "30", "--seed", "7", "--depth", "3", "--out", tmp_path / "out"
    )
    bad.write_text("no position\n")
    refused = ("generate", "--rows", "30", "--out", tmp_path / "other", "--positions", bad)
    complaint = one_line_refusal(capsys, *refused)
    assert "--positions: " in complaint and "bad.fen:1: expected a FEN" in complaint


@needs_engine
@pytest.mark.slow
def test_engine_games_also_yield_environment_rows(tmp_path: Path) -> None:
    generate(tmp_path / "out", rows=200)
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())["environment"]
    by_source = Counter[str]()
    for name, count in card["rows_by_source"].items():
        by_source[name.split()[0]] += count
    assert by_source["engine"] > 10 and by_source["engine"] <= 0.3 * 200
    assert by_source["opening"] > 10 and by_source["random"] > 10 and sum(by_source.values()) == 200
    assert audit(tmp_path / "out" / "environment.txt").is_clean


@needs_engine
def test_held_out_positions_are_disjoint_from_rows_of_both_tasks(tmp_path: Path) -> None:
    generate(tmp_path / "out", "--held-out", "0.3", rows=100)
    sides = []
    for prefix in ("", "held_out_"):
        examples = [
            read_corpus(tmp_path / "out" / f"{prefix}{task}.txt").examples for task in ("policy", "environment")
        ]
        sides.append({example_key(example) for rows in examples for example in rows})
        assert len(
            [parse_move_evals(line) for line in move_evals_lines(tmp_path / "out" / f"{prefix}move_evals.tsv")]
        ) == len(examples[0])
    assert not sides[0] & sides[1] and 0.15 < len(sides[1]) / len(sides[0] | sides[1]) < 0.45
    # A call without held-out rows trains on these positions, so their files are removed.
    generate(tmp_path / "out", rows=100)
    assert not list((tmp_path / "out").glob("held_out_*"))


@needs_engine
def test_unusable_cache_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.fen").write_text(f"{chess.STARTING_FEN}\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    error = one_line_refusal(capsys, "evals", tmp_path / "rows.fen", "--out", tmp_path / "evals.tsv.gz")
    assert "expected a cache of analyses at " in error


def test_positions_of_few_pieces_are_searched_more_deeply() -> None:
    pawn_ending = chess.Board("8/8/4k3/8/8/8/4P3/4K3 w - - 0 1")
    assert limit_of(pawn_ending, Limit(depth=4)).depth == 8
    assert limit_of(chess.Board(), Limit(depth=4)).depth == 4
    assert limit_of(pawn_ending, Limit(nodes=500)) == Limit(nodes=500)
