"""Files of positions as a corpus, such as `data.train=games.pgn`."""

import gzip
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.tasks import task_named
from rookworld_rlvr.tasks.audit import audit
from rookworld_rlvr.tasks.corpus import read_corpus

PGN = '[Event "?"]\n\n1. e4 e5 *\n'
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
LABELLED = f"P: {AFTER_E4} M: e7e5 E: 0.1 B: e7e5"


def test_game_gives_unlabelled_policy_prompts_of_its_positions(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(PGN)
    examples = read_corpus(path).examples
    assert f"P: {AFTER_E4}" in [example.prompt for example in examples]
    assert {example.completion for example in examples} == {None}


def test_a_fen_file_gives_its_lines_as_prompts(tmp_path: Path) -> None:
    path = tmp_path / "positions.fen"
    path.write_text(AFTER_E4 + "\n")
    assert [example.prompt for example in read_corpus(path).examples] == [f"P: {AFTER_E4}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.fen", AFTER_E4),
        ("a.epd", f"{AFTER_E4.removesuffix(' 0 1')} bm e5;"),
        ("a.pgn", PGN),
        ("a.jsonl", f'{{"fen": "{AFTER_E4}"}}'),
        ("a.csv", f"PuzzleId,FEN,Moves,Rating\none,{chess.STARTING_FEN},e2e4 e7e5,600"),
        ("a.txt", LABELLED),
    ],
)
def test_positions_of_every_kind_of_file_are_chat_prompts_too(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text + "\n")
    task = task_named("chat")
    examples = read_corpus(tmp_path / name, tasks=[task]).examples
    assert {example.task for example in examples} == {"chat"}
    assert task.prompt(AFTER_E4) in [example.prompt for example in examples]


def test_malformed_line_of_fen_file_raises_corpus_error(tmp_path: Path) -> None:
    path = tmp_path / "positions.fen"
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match=r"positions\.fen"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("G.PGN", "1. e4 *\n"),
        ("P.FEN", f"{AFTER_E4}\n"),
        ("P.Epd", f"{AFTER_E4.removesuffix(' 0 1')}\n"),
        ("R.TXT", f"{LABELLED}\n"),
        ("R.JSONL", f'{{"fen": "{AFTER_E4}"}}\n'),
    ],
)
def test_the_suffix_of_a_file_may_have_capitals(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert read_corpus(tmp_path / name).examples[-1].prompt == f"P: {AFTER_E4}"


@pytest.mark.parametrize("given", ["w - -", "w  -  -", "w - - 0", "w - - - -", "w - - 0 1"])
@pytest.mark.parametrize(("name", "line"), [("a.fen", "{}"), ("a.jsonl", '{{"fen": "{}", "evals": []}}')])
def test_fen_without_counters_gets_the_first_ones(given: str, name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(line.format(f"6k1/5ppp/8/8/8/8/5PPP/3R2K1 {given}") + "\n")
    [example] = read_corpus(tmp_path / name).examples
    assert example.prompt == "P: 6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 0 1"


def test_prompt_text_of_four_fields_stays_malformed(tmp_path: Path) -> None:
    row = LABELLED.replace(" 0 1", "")
    (tmp_path / "a.txt").write_text(f"{LABELLED}\n{row}\n")
    corpus = read_corpus(tmp_path / "a.txt")
    assert corpus.rejects == {"bad_prompt": 1}
    assert corpus.first_reject.startswith("row 2: expected a FEN of six fields")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.fen", "a.epd", "a.pgn", "a.csv"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a Git LFS pointer .*git lfs pull"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "compressed by zstd: decompress it first"),
        (gzip.compress(b"1. e4 *\n", mtime=0), "compressed by gzip: decompress it first"),
        (b"\n<!DOCTYPE html>\n<html>", "a web page"),
    ],
)
def test_file_of_another_kind_is_named_as_what_it_is(name: str, content: bytes, named: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"got (a file )?{named}"):
        read_corpus(tmp_path / name)


@pytest.mark.parametrize(("name", "text"), [("a.fen", AFTER_E4), ("a.txt", LABELLED), ("a.pgn", "1. e4 *")])
def test_utf_16_is_read_by_its_mark(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{text}\n", encoding="utf-16")
    assert read_corpus(tmp_path / name).examples[-1].prompt == f"P: {AFTER_E4}"


@pytest.mark.parametrize("ending", ["pgn", "PGN"])
def test_audit_tells_of_null_moves_and_games_of_a_pgn_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"games.{ending}"
    path.write_text("1. e4 e5 2. Nf3 Nc6 3. d4 exd4 4. Nxd4 Nxd4 5. Qxd4 -- 6. c4 -- 7. Nc3 d6 *\n")
    report = audit(path)
    assert (report.rows, report.valid, report.is_clean) == (15, 15, True)
    assert "Games: 1; each position is a row, and the moves that were played are no labels" in report.lines()
    told = "1 game has null moves, the first at line 1 in game 1: the turn passes, and the game goes on"
    assert told in report.lines()
    fens = [example.prompt.removeprefix("P: ") for example in read_corpus(path).examples]
    assert "r1bqkbnr/pppp1ppp/8/8/2PQP3/8/PP3PPP/RNB1KB1R b KQkq - 0 6" in fens and len(set(fens)) == 15
