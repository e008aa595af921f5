"""The model as a UCI engine: the protocol, line by line, and games with python-chess's client."""

import io
import os
import random
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import chess
import chess.engine
import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.play import load_chooser
from rookworld_rlvr.board.openings import drawn_opening
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.legal_choice import legal_logprobs
from rookworld_rlvr.evaluation.players import DecodingConfig
from rookworld_rlvr.play.choice import Choice, MoveChooser
from rookworld_rlvr.play.uci import UciSession
from rookworld_rlvr.tasks import task_named

MATE = "7k/5ppp/8/8/8/8/8/R6K b - - 0 1"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def session(tiny: MoveChooser, said: list[str]) -> Iterator[UciSession]:
    """Yield a UCI session with the shipped model."""
    session = UciSession(lambda _: tiny, "tiny", said.append)
    yield session
    session.receive("quit")


@pytest.fixture
def written(writer: MoveChooser, said: list[str]) -> Iterator[UciSession]:
    """Yield a UCI session in which the shipped model plays what it writes."""
    session = UciSession(lambda _: writer, "tiny", said.append)
    yield session
    session.receive("quit")


def talk(session: UciSession, said: list[str], *lines: str) -> list[str]:
    """Send the lines and return the answers once all searches have ended."""
    said.clear()
    for line in lines:
        session.receive(line)
        session.wait()
    return list(said)


def test_uci_command_lists_all_options(session: UciSession, said: list[str]) -> None:
    message = talk(session, said, "uci", "isready")
    assert message[0].startswith("id name ") and message[-2:] == ["uciok", "readyok"]
    options = [line.split()[2] for line in message if line.startswith("option name ")]
    assert options == ["Temperature", "TopK", "MultiPV", "Attempts", "Checkpoint"]


@pytest.mark.parametrize("positions", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_uci_move_at_temperature_0_is_the_written_best_move(
    positions: int, writer: MoveChooser, written: UciSession, said: list[str]
) -> None:
    own = 0
    for number in range(positions):
        board = drawn_opening(number, 0)
        text = writer.choose(board, DecodingConfig(), attempts=0).text
        [*_, last] = talk(written, said, f"position fen {board.fen()}", "go movetime 100")
        move = last.split()[1]
        assert last.startswith("bestmove ") and chess.Move.from_uci(move) in board.legal_moves
        illegal = [line for line in said if line.startswith("info string illegal")]
        own += not illegal
        assert illegal or move == task_named("policy").move(text, None)
    assert own >= 0.8 * positions


def test_move_is_the_likeliest_legal_one_beside_the_written_one(
    tiny: MoveChooser, session: UciSession, said: list[str]
) -> None:
    for number in range(4):
        board = drawn_opening(number, 0)
        [logprobs] = legal_logprobs(tiny.policy, task_named("policy"), [f"P: {board.fen()}"])
        choice = tiny.choose(board, DecodingConfig(), attempts=0)
        assert choice.move == max(logprobs, key=logprobs.__getitem__) and not choice.replaced and not choice.illegal
        assert choice.written == task_named("policy").move(choice.text, None)
        message = talk(session, said, f"position fen {board.fen()}", "go movetime 100")
        assert message[-1] == f"bestmove {choice.move}"
        told = f"info string chosen among the legal moves; the model wrote {choice.written}"
        assert any(line.startswith(told) for line in message) == (choice.written != choice.move)


def test_info_lines_list_candidates_with_evals_and_best_move_first(written: UciSession, said: list[str]) -> None:
    message = talk(written, said, "setoption name MultiPV value 5", "position startpos moves e2e4", "go depth 1")
    lines = [line.split() for line in message if line.startswith("info depth")]
    assert [line[4] for line in lines] == [str(place) for place in range(1, len(lines) + 1)] and len(lines) > 2
    assert lines[0][-1] == message[-1].split()[1] and len({line[-1] for line in lines}) == len(lines)
    assert all(line[5:7] == ["score", "cp"] for line in lines)


def test_searchmoves_limits_the_answer(session: UciSession, said: list[str]) -> None:
    [*_, last] = talk(session, said, "position startpos", "go searchmoves a2a3 h2h4 depth 3")
    assert last in ("bestmove a2a3", "bestmove h2h4")


def test_searchmoves_limits_variations_and_calls_no_legal_move_illegal(written: UciSession, said: list[str]) -> None:
    message = talk(written, said, "setoption name MultiPV value 5", "position startpos", "go searchmoves a2a3")
    assert [line.split()[-1] for line in message if line.startswith("info depth")] == ["a2a3"]
    assert message[0].startswith("info string not among searchmoves: ") and "illegal" not in " ".join(message)


class Breaks(MoveChooser):
    def choose(self, *_arguments: object, **_options: object) -> Choice:
        raise RuntimeError("out of memory")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_while_choosing_gives_a_legal_move_and_frees_the_session(
    tiny: MoveChooser, session: UciSession, said: list[str]
) -> None:
    session.receive("isready")
    session._chooser = Breaks(tiny.policy, tiny._generator)
    first, second = (talk(session, said, "position startpos", "go") for _ in range(2))
    assert first == second and first[0].split()[1] in {move.uci() for move in chess.Board().legal_moves}


def test_unknown_words_before_a_command_are_ignored(session: UciSession, said: list[str]) -> None:
    assert talk(session, said, "joho isready") == ["readyok"]


def test_infinite_search_is_answered_only_at_stop(session: UciSession, said: list[str]) -> None:
    said.clear()
    session.receive("position startpos")
    session.receive("go infinite")
    time.sleep(1)
    assert not any(line.startswith("bestmove") for line in said)
    session.receive("isready")
    assert said[-1] == "readyok"
    session.receive("stop")
    assert said[-1].startswith("bestmove ")
    session.receive("stop")
    assert sum(line.startswith("bestmove") for line in said) == 1


def moves_of(session: UciSession, said: list[str], *lines: str) -> list[str]:
    """Send the lines without waiting, as some programs do, and return the moves that were sent."""
    said.clear()
    for line in lines:
        session.receive(line)
    session.receive("stop")
    return [line.split()[1] for line in said if line.startswith("bestmove ")]


def is_legal(fen: str, move: str) -> bool:
    return chess.Move.from_uci(move) in chess.Board(fen).legal_moves


AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


def test_every_go_without_waiting_gets_one_move_in_order(session: UciSession, said: list[str]) -> None:
    lines = ["position startpos", "go", "position startpos moves e2e4", "go", "isready", f"position fen {MATE}", "go"]
    moves = moves_of(session, said, *lines)
    assert len(moves) == 3 and all(
        is_legal(fen, move) for fen, move in zip([chess.STARTING_FEN, AFTER_E4, MATE], moves, strict=True)
    )


@pytest.mark.parametrize("held", ["go ponder wtime 60000 btime 60000", "go infinite"])
@pytest.mark.parametrize("before", [[], ["ucinewgame"]])
def test_next_go_releases_a_held_search(session: UciSession, said: list[str], held: str, before: list[str]) -> None:
    lines = ["position startpos", held, "isready", *before, "position startpos moves e2e4", "go wtime 60000"]
    first, second = moves_of(session, said, *lines)
    assert is_legal(chess.STARTING_FEN, first) and is_legal(AFTER_E4, second)


def test_new_game_releases_a_held_search(session: UciSession, said: list[str]) -> None:
    talk(session, said, "position startpos")
    session.receive("go infinite")
    session.receive("ucinewgame")
    assert said[-1].startswith("bestmove ")


@pytest.mark.parametrize("position", [
    "position fen 8/8/8/8/8/8/8/Kk6 w - - 0 1", "position startpos moves e2e5", "position startpos moves e2e4 0000",
    "position startpos e2e4", "position", "position moves e2e4", "position fen", "Position fen nonsense",
    "position startpos moves e2e4 e7e5\x00", "position startpos moves e2e4" + 2**18 * " e7e5",
])  # fmt: skip
@pytest.mark.parametrize("go", ["go depth 1", "go infinite"])
def test_after_a_refused_position_go_is_answered_by_the_null_move(
    session: UciSession, said: list[str], position: str, go: str
) -> None:
    talk(session, said, "position startpos", position)
    assert said[-1].startswith("info string position: ")
    assert moves_of(session, said, go) == ["0000"] and "expected a position, the last one was refused" in said[0]
    [move] = moves_of(session, said, f"position fen {MATE}", "go")
    assert is_legal(MATE, move)


@pytest.mark.parametrize(("position", "fen"), [
    ("fen 6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - moves", "6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 0 1"),
    ("fen 6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - - - moves d1d2", "6k1/5ppp/8/8/8/8/3R1PPP/6K1 b - - 1 1"),
    ("fen 4k3/8/8/8/8/8/4P3/4K3 w KQkq e3 0 0 moves", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"),
    ("fen 8/4P1k1/8/8/8/8/6K1/8 w - - 0 1 moves e7e8Q g7h7", "4Q3/7k/8/8/8/8/6K1/8 w - - 1 2"),
    ("startpos moves E2E4", AFTER_E4), ("startpos moves", chess.STARTING_FEN),
    ("startpos moves e2e4 e7e5 g1f3 b8c6 f1c4 g8f6 e1h1",
     "r1bqkb1r/pppp1ppp/2n2n2/4p3/2B1P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4"),
])  # fmt: skip
def test_positions_of_other_programs_are_read(session: UciSession, said: list[str], position: str, fen: str) -> None:
    message = talk(session, said, f"position {position}")
    assert message == [] and session._board is not None and session._board.fen() == fen
    [move] = moves_of(session, said, "go depth 1")
    assert is_legal(fen, move)


@pytest.mark.parametrize("spelling", ["e1h1", "E1G1", "e1g1"])
def test_searchmoves_are_read_as_other_programs_write_them(session: UciSession, said: list[str], spelling: str) -> None:
    fen = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq -"
    assert moves_of(session, said, f"position fen {fen}", f"go searchmoves {spelling} z9 depth 1") == ["e1g1"]


def test_model_that_cannot_be_loaded_still_answers_go(said: list[str]) -> None:
    def load(path: str) -> MoveChooser:
        raise UserError(f"no model in {path}")

    session = UciSession(load, "tiny", said.append)
    assert talk(session, said, "go") == ["info string go: no model in tiny", "bestmove 0000"]


@pytest.mark.parametrize("value", [5000 * "x", "\x00", "a\ufffdb", "/root/secret/model"])
def test_impossible_checkpoint_keeps_the_loaded_model(said: list[str], tiny: MoveChooser, value: str) -> None:
    loaded = iter([tiny])
    session = UciSession(lambda path: next(loaded, None) or load_chooser(path, seed=0), "tiny", said.append)
    [message] = talk(session, said, "isready", f"setoption name Checkpoint value {value}")[1:]
    assert message.startswith("info string setoption: ")
    assert talk(session, said, "go")[-1].startswith("bestmove ")


def test_bytes_of_another_encoding_end_no_session(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = b"""\xef\xbb\xbfuci\r
setoption name Checkpoint value /home/h\xfchne/mod\xe8le\r
position startpos moves e2e4\xff\r
go\r
isready\r
position startpos\r
go\r
"""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sent), encoding="utf-8"))
    assert main(["uci"]) == 0
    answers = capsys.readouterr().out.splitlines()
    after = answers[answers.index("uciok") + 1 :]
    assert after[0].startswith("info string setoption: model.path: expected a folder")
    assert after[1].startswith("info string position: expected a legal move in") and "bestmove 0000" in after
    assert "readyok" in after and is_legal(chess.STARTING_FEN, after[-1].removeprefix("bestmove "))


@pytest.mark.parametrize("sent", ["uci\nisready\nposition startpos\ngo\nisready\n", "isready\ngo infinite\n"])
def test_chess_program_that_has_gone_ends_the_engine_quietly(
    sent: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        monkeypatch.setattr(sys, "stdin", io.StringIO(sent))
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["uci"]) == 0
    assert capfd.readouterr().err == ""


def test_position_without_legal_moves_is_answered_with_null_move(session: UciSession, said: list[str]) -> None:
    mated = "R6k/6pp/8/8/8/8/8/7K b - - 0 1"
    assert talk(session, said, f"position fen {mated}", "go") == ["bestmove 0000"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("setoption Temperature 3", "expected setoption name"),
        ("setoption name Temperature value warm", "expected a number, got 'warm'"),
        ("setoption name Temperature value 1_0", "expected a number, got '1_0'"),
        ("setoption name Temperature value nan", "expected a finite temperature"),
        ("setoption name MultiPV value 9", "expected a whole number from 1 to 5, got '9'"),
        ("setoption name Hash value 16", "expected Temperature, TopK, MultiPV, Attempts or Checkpoint"),
        ("castle", "unknown command: castle"),
    ],
)
def test_malformed_uci_line_is_reported_and_changes_nothing(
    session: UciSession, said: list[str], line: str, message: str
) -> None:
    talk(session, said, f"position fen {MATE}")
    [answer] = talk(session, said, line)
    assert answer.startswith("info string ") and message in answer
    [*_, last] = talk(session, said, "go")
    assert chess.Move.from_uci(last.split()[1]) in chess.Board(MATE).legal_moves


@pytest.mark.parametrize(("line", "message"), [
    ("position fen 8/8 w", "position: expected a FEN"), ("position", "position: expected startpos or fen"),
    ("position startpos moves e2e5", "expected a legal move in"),
    ("position fen 4k3/8/8/8/8/8/4P3/4K3 b - - 0 999999 moves e8e7", "expected two counters of one to six digits"),
])  # fmt: skip
def test_refused_position_is_named(session: UciSession, said: list[str], line: str, message: str) -> None:
    [answer] = talk(session, said, line)
    assert answer.startswith("info string ") and message in answer


def test_thousand_malformed_uci_lines_give_only_info_strings(session: UciSession, said: list[str]) -> None:
    rng = random.Random(0)
    words = ["position", "fen", "startpos", "moves", "setoption", "name", "value", "stop", "ponderhit", "isready"]
    words += ["Temperature", "MultiPV", "e2e4", "e9", "-1", "w", "KQkq", "8/8/8/8/8/8/8/8", "\x00", "é", "1e999"]
    said.clear()
    for _ in range(1000):
        line = " ".join(rng.choices(words, k=rng.randrange(8)))
        if rng.random() < 0.3:
            line += "".join(rng.choices(string.printable, k=rng.randrange(60)))
        if line.split()[:1] not in (["quit"], ["go"]):
            assert session.receive(line)
    assert all(line == "readyok" or line.startswith("info string ") for line in said)
    assert talk(session, said, "position startpos", "go")[-1].startswith("bestmove ")


def test_model_that_writes_no_move_plays_a_legal_one_and_says_so(small_model: Path, said: list[str]) -> None:
    session = UciSession(lambda path: load_chooser(path, seed=0), str(small_model), said.append)
    message = talk(session, said, "position startpos", "go")
    assert chess.Move.from_uci(message[-1].split()[1]) in chess.Board().legal_moves
    assert message[0].startswith("info string chosen among the legal moves; the model wrote ")
    assert "illegal" in message[0]
    session.receive("quit")


@pytest.mark.parametrize(
    ("arguments", "says"), [([], "the model wrote"), (["--decoding", "text"], "random legal move")]
)
def test_command_chooses_among_legal_moves_unless_it_is_to_write(
    small_model: Path,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("uci\nposition startpos\ngo\nquit\n"))
    assert main(["uci", "--model", str(small_model), *arguments]) == 0
    assert says in capsys.readouterr().out


def test_illegal_answer_is_replaced_and_reported(small_model: Path, said: list[str]) -> None:
    session = UciSession(lambda path: load_chooser(path, seed=0, decoding="text"), str(small_model), said.append)
    message = talk(session, said, "setoption name Attempts value 0", "position startpos", "go", "go")
    moves = [line.split()[1] for line in message if line.startswith("bestmove")]
    assert len(moves) == 2 and all(chess.Move.from_uci(move) in chess.Board().legal_moves for move in moves)
    notes = [line for line in message if line.startswith("info string illegal")]
    assert len(notes) == 2 and "a random legal move; 2 of 2 moves in this game" in notes[1]
    assert "1 of 1 moves in this game" in notes[0]
    assert "1 of 1 moves" in talk(session, said, "ucinewgame", "position startpos", "go")[0]
    session.receive("quit")


def test_missing_checkpoint_keeps_the_loaded_model(small_model: Path, said: list[str]) -> None:
    session = UciSession(lambda path: load_chooser(path, seed=0), str(small_model), said.append)
    [message] = talk(session, said, "isready", "setoption name Checkpoint value /nope")[1:]
    assert message.startswith("info string setoption: ") and "/nope" in message
    assert talk(session, said, "isready") == ["readyok"]


def test_uci_refuses_missing_model_folder(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("uci\nisready\n"))
    assert main(["uci", "--model", "/nope"]) == 2
    said = capfd.readouterr()
    assert said.out.splitlines()[-1] == "uciok"
    assert said.err.startswith("rookworld: ") and said.err.count("\n") == 1


def test_uci_introduction_imports_no_torch() -> None:
    code = "import sys, rookworld_rlvr.app.cli, rookworld_rlvr.app.uci; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, "xboard waits 10 seconds for it"


def test_python_chess_client_analyses_and_sends_odd_positions() -> None:
    command = [sys.executable, "-m", "rookworld_rlvr", "uci"]
    with chess.engine.SimpleEngine.popen_uci(command, timeout=120) as engine:
        with engine.analysis(chess.Board(), multipv=3) as analysis:
            analysis.stop()
            assert any("pv" in info for info in analysis)
            assert is_legal(chess.STARTING_FEN, str(analysis.wait().move))
        # Its FEN has the rights that python-chess's own board was given: those of no rook.
        odd = chess.Board("4k3/8/8/8/8/8/4P3/4K3 w KQkq - 0 1")
        assert engine.play(odd, chess.engine.Limit(time=1)).move in odd.legal_moves
        castled = chess.Board("4k2r/8/8/8/8/8/8/4K2R w Kk - 0 1")
        castled.push(chess.Move.from_uci("e1h1"))
        assert engine.play(castled, chess.engine.Limit(depth=1)).move in castled.legal_moves
        moves = engine.play(chess.Board(), chess.engine.Limit(), root_moves=[chess.Move.from_uci("a2a3")])
        assert str(moves.move) == "a2a3"
        impossible = chess.Board("8/8/8/8/8/8/8/Kk6 w - - 0 1")
        assert engine.play(impossible, chess.engine.Limit(depth=1)).move == chess.Move.null()
        assert engine.play(chess.Board(), chess.engine.Limit(depth=1)).move in chess.Board().legal_moves


@pytest.mark.parametrize(("games", "most"), [(1, 12), pytest.param(2, 300, marks=pytest.mark.slow)])
def test_python_chess_client_plays_whole_games(games: int, most: int) -> None:
    command = [sys.executable, "-m", "rookworld_rlvr", "uci"]
    with chess.engine.SimpleEngine.popen_uci(command, timeout=120) as engine:
        engine.configure({"Temperature": "0.6", "TopK": 5})
        for number in range(games):
            board, rng = drawn_opening(number, 0), random.Random(number)
            while not board.is_game_over(claim_draw=True) and len(board.move_stack) < most:
                if board.turn == (number % 2 == 0):
                    # python-chess raises if the engine's move is illegal.
                    move = engine.play(board, chess.engine.Limit(time=0.1), game=number).move
                    assert move is not None
                else:
                    move = rng.choice(sorted(board.legal_moves, key=str))
                board.push(move)
