"""`rookworld data selfplay` on the small model: its files, what resuming changes, what stays out."""

import json
from pathlib import Path

import chess.pgn
import pytest

from rookworld_rlvr.app.data import main
from rookworld_rlvr.app.generation import selfplay as selfplay_data
from rookworld_rlvr.tasks.audit import audit
from rookworld_rlvr.tasks.corpus import example_key, read_corpus
from rookworld_rlvr.tasks.played import GameRecord
from rookworld_rlvr.tasks.prompt_stream import MixtureConfig
from rookworld_rlvr.tasks.types import Task
from rookworld_rlvr.training.config import DataConfig
from rookworld_rlvr.training.data import default_file, load_data, positions_of

CORPORA = ("positions.jsonl", "transitions.txt", "winners.txt", "games.pgn")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay_data, "SIDE_BY_SIDE", 4)


def play(small_model: Path, folder: Path, *options: str) -> dict[str, str]:
    arguments = ["--model", str(small_model), "--games", "6", "--max-plies", "12", "--seed", "5", "--rescue"]
    assert main(["selfplay", *arguments, "--out", str(folder), *options]) == 0
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def played(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfplay_data, "SIDE_BY_SIDE", 4)
        folder = tmp_path_factory.mktemp("selfplay") / "out"
        play(small_model, folder)
    return folder


def test_the_files_hold_what_the_card_says_and_the_games_are_what_was_asked_for(played: Path) -> None:
    card = json.loads((played / "data_card.json").read_text())
    assert (card["games"], sum(card["ends"].values()), card["seed"], card["rescue"]) == (6, 6, 5, 1)
    lines = {name: (played / name).read_text().splitlines() for name in CORPORA[:3] if (played / name).exists()}
    assert {name: len(rows) for name, rows in lines.items()} == {
        name: count for name, count in card["rows"].items() if count and name != "games.pgn"
    }
    games = []
    with (played / "games.pgn").open() as file:
        while game := chess.pgn.read_game(file):
            assert not game.errors
            games.append(len(list(game.mainline_moves())))
    assert len(games) == card["rows"]["games.pgn"] == 6
    records = [
        GameRecord.from_json(json.loads(line)[0]) for line in (played / "games.jsonl").read_text().splitlines()[1:]
    ]
    lengths = [len(record.opening) + sum(bool(turn.played) for turn in record.turns) for record in records]
    assert lengths[:6] == games and {bool(record.opening) for record in records} == {True, False}


def test_transitions_are_sound_and_include_the_model_s_illegal_moves(played: Path) -> None:
    report = audit(played / "transitions.txt")
    assert report.is_clean
    rewards = {line.split("+")[4] for line in (played / "transitions.txt").read_text().splitlines()}
    assert {"-1.0", "0.001"} <= rewards


def test_training_reads_what_was_played_as_prompts_of_both_tasks(played: Path) -> None:
    positions = load_data(
        DataConfig(train=str(played / "positions.jsonl"), mixture=MixtureConfig(1.0, 0.0)), seed=0
    ).train
    assert {(example.task, example.completion) for example in positions} == {(Task.policy, None)}
    assert len({example_key(example) for example in positions}) == len(positions) > 20
    transitions = read_corpus(played / "transitions.txt").examples
    assert {example.task for example in transitions} == {Task.environment}


def test_an_interrupted_run_goes_on_to_the_same_files(small_model: Path, played: Path, tmp_path: Path) -> None:
    whole = {path.name: path.read_text() for path in sorted(played.iterdir())}
    folder = tmp_path / "cut"
    folder.mkdir()
    # Cut off in the middle of the second chunk, in the middle of a line.
    lines = whole["games.jsonl"].splitlines(keepends=True)
    (folder / "games.jsonl").write_text("".join(lines[:6]) + lines[6][:30])
    assert play(small_model, folder) == whole


def test_positions_of_the_files_excluded_and_of_our_held_out_rows_stay_out(
    small_model: Path, played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = (played / "positions.jsonl").read_text().splitlines()
    first, held_out = tmp_path / "first.jsonl", tmp_path / "held_out.jsonl"
    first.write_text(reached[0] + "\n")
    held_out.write_text(f"{reached[1]}\n{reached[20]}\n")
    file = str(default_file("held_out.jsonl"))
    shipped = {example_key(example) for example in read_corpus(file).examples}
    # No game reaches one of the rows that ship: two of those reached take their place.
    assert selfplay_data.held_out_positions() == shipped
    monkeypatch.setattr(selfplay_data, "held_out_positions", lambda: positions_of([str(held_out)]))
    play(small_model, tmp_path / "out", "--exclude", str(first))
    barred = positions_of([str(first), str(held_out)])
    for name in CORPORA[:2]:
        found = {example_key(example) for example in read_corpus(tmp_path / "out" / name).examples}
        before = {example_key(example) for example in read_corpus(played / name).examples}
        assert barred <= before and found == before - barred and len(barred) == 3
    card = json.loads((tmp_path / "out" / "data_card.json").read_text())
    assert card["excluded_positions"] == 3


def test_a_game_that_ends_by_an_illegal_move_is_lost_in_the_pgn_and_has_no_outcome_in_the_rows(
    small_model: Path, tmp_path: Path
) -> None:
    arguments = ["--model", str(small_model), "--games", "4", "--seed", "5", "--out", str(tmp_path)]
    assert main(["selfplay", *arguments]) == 0
    lines = (tmp_path / "games.jsonl").read_text().splitlines()[1:]
    records = [GameRecord.from_json(json.loads(line)[0]) for line in lines]
    lost = 0
    with (tmp_path / "games.pgn").open() as file:
        for record in records:
            game = chess.pgn.read_game(file)
            assert game is not None and game.headers["Termination"] == record.end
            if record.end == "illegal_move":
                last = game.end()
                assert game.headers["Result"] == ("0-1" if last.board().turn else "1-0")
                assert repr(record.turns[-1].written) in last.comment and record.outcome(chess.WHITE) is None
                lost += 1
        assert chess.pgn.read_game(file) is None
    assert lost == 4


def test_games_of_another_chunk_size_are_not_gone_on_with(
    small_model: Path, played: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(small_model), "--games", "9", "--max-plies", "12", "--seed", "5", "--rescue"]
    monkeypatch.setattr(selfplay_data, "SIDE_BY_SIDE", 5)
    assert main(["selfplay", *arguments, "--out", str(played)]) == 2
    assert '"side_by_side": 5' in capsys.readouterr().err


def test_other_settings_in_a_folder_that_was_begun_and_bad_values_are_one_line(
    small_model: Path, played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["selfplay", "--model", str(small_model), "--games", "2"]
    for options, message in (
        (["--out", str(played), "--seed", "6"], "expected games of"),
        (["--out", str(tmp_path), "--temperature", "-1"], "expected a finite temperature from 0"),
        (["--out", str(tmp_path), "--opening-fraction", "2"], "expected 0 to 1, got '2'"),
        (["--out", str(tmp_path), "--exclude", str(tmp_path / "none.txt")], "no file"),
        (["--out", str(tmp_path), "--model", str(tmp_path / "none")], "none"),
    ):
        assert main([*base, *options]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
