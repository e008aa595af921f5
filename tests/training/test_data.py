"""Training and held-out rows have no position in common, regardless of `limit`."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from rookworld_rlvr.board.fen import parse_fen, position_key
from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.tasks.corpus import example_key, read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import DataConfig, default_file, held_out_positions, load_data, load_evaluation_data

OPENING_FENS = [opening_board(opening).fen() for opening in OPENINGS]

POLICY = ["policy", "environment:0"]


def keys(examples: Iterable[Example]) -> set[str]:
    return {example_key(example) for example in examples}


def write_fens(path: Path, fens: Iterable[str]) -> str:
    path.write_text("".join(f"{fen}\n" for fen in fens))
    return str(path)


@pytest.fixture(scope="module")
def shipped_openings() -> list[str]:
    """Final positions of openings that are in the shipped held-out file: Benko and Two Knights."""
    held_out = keys(read_corpus(default_file("held_out.jsonl")).examples)
    return [fen for fen in OPENING_FENS if position_key(parse_fen(fen)) in held_out]


@pytest.mark.parametrize("held_out", ["", "own"])
def test_shipped_held_out_positions_are_never_trained_on(
    held_out: str, shipped_openings: list[str], tmp_path: Path
) -> None:
    assert len(shipped_openings) == 2
    train = write_fens(tmp_path / "train.fen", OPENING_FENS)
    own = write_fens(tmp_path / "own.fen", OPENING_FENS[:1])
    config = DataConfig(train=train, held_out=held_out and own, tasks=POLICY)
    data = load_data(config, seed=0)
    barred = {position_key(parse_fen(fen)) for fen in shipped_openings}
    assert not keys(data.train) & (barred | keys(data.held_out))
    assert barred | keys(data.held_out) <= data.excluded
    # All other rows are trained on or held out.
    rest = {position_key(parse_fen(fen)) for fen in OPENING_FENS} - barred
    assert keys(data.train) == rest - keys(data.held_out)


def test_held_out_positions_are_excluded_regardless_of_row_limit(tmp_path: Path) -> None:
    train = write_fens(tmp_path / "train.fen", OPENING_FENS[:40])
    held_out = write_fens(tmp_path / "held_out.fen", OPENING_FENS[10:20])
    data = load_data(DataConfig(train=train, held_out=held_out, limit=15, tasks=POLICY), seed=0)
    assert len(data.held_out) == 10 and len(data.train) <= 10
    data = load_data(DataConfig(train=train, held_out=held_out, limit=1, tasks=POLICY), seed=0)
    assert len(data.held_out) == 1
    barred = {position_key(parse_fen(fen)) for fen in OPENING_FENS[10:20]}
    assert data.excluded == held_out_positions() | barred
    # If a fraction is held out, its positions are the same whether all rows are read or only some.
    shares = [load_data(DataConfig(train=train, held_out="", limit=limit, tasks=POLICY), seed=0) for limit in (None, 9)]
    assert len(shares[1].held_out) < len(shares[0].held_out) and shares[0].excluded == shares[1].excluded


def test_evaluation_excludes_all_training_positions_regardless_of_limit(tmp_path: Path) -> None:
    train = write_fens(tmp_path / "train.fen", OPENING_FENS[:40])
    held_out = write_fens(tmp_path / "held_out.fen", OPENING_FENS[30:45])
    data = load_evaluation_data(DataConfig(train=train, held_out=held_out, limit=12), seed=0)
    assert len(data.held_out) == 12
    assert data.trained == {position_key(parse_fen(fen)) for fen in OPENING_FENS[:40]}
    whole, part = (
        load_evaluation_data(DataConfig(train=train, held_out="", limit=limit), seed=0) for limit in (None, 12)
    )
    assert whole.trained == part.trained and keys(part.held_out) < keys(whole.held_out)


def test_excluded_sources_are_neither_trained_on_nor_evaluated(tmp_path: Path) -> None:
    train = write_fens(tmp_path / "train.fen", OPENING_FENS[:20])
    held_out = write_fens(tmp_path / "held_out.fen", OPENING_FENS[30:40])
    played = tmp_path / "self_play_positions.jsonl"
    played.write_text("".join(f'{{"fen": "{fen}", "game": 0, "ply": 3}}\n' for fen in OPENING_FENS[15:35]))
    config = DataConfig(train=train, held_out=held_out, exclude=[str(played)], tasks=POLICY, limit=18)
    barred = {position_key(parse_fen(fen)) for fen in OPENING_FENS[15:35]}
    data = load_data(config, seed=0)
    assert barred <= data.excluded and not keys(data.train) & barred and len(data.train) >= 12
    assert barred <= load_evaluation_data(config, seed=0).trained
    assert load_evaluation_data(config, seed=0).trained > load_evaluation_data(DataConfig(train=train), seed=0).trained
    with pytest.raises(UserError, match=r"data\.exclude: expected .*nothing\.jsonl: no file"):
        load_data(DataConfig(exclude=[str(tmp_path / "nothing.jsonl")]), seed=0)


def test_default_run_trains_on_all_shipped_training_rows() -> None:
    data = load_data(DataConfig(), seed=0)
    assert (len(data.train), len(data.held_out)) == (7920, 4096)
    assert data.excluded == keys(data.held_out) == held_out_positions()


def test_rows_left_out_of_a_source_are_counted_by_reason(tmp_path: Path) -> None:
    held_out = write_fens(tmp_path / "held_out.fen", OPENING_FENS[:1])
    good = [json.dumps({"fen": fen}) for fen in [*OPENING_FENS[5:15], OPENING_FENS[0]]]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join([*good, '{"fen": "nonsense"}', '{"fen": "8/8"}', "chess"]) + "\n")
    config = DataConfig(train=str(rows), held_out=held_out, tasks=POLICY)
    rows_line, bad, barred = load_data(config, seed=0).notes
    assert rows_line == f"data: 10 of policy, 0 of environment from {rows}; 1 held-out rows from {held_out}"
    assert bad.startswith(f"{rows}: 3 of 14 rows are malformed and were left out (bad_")
    assert "; the first: row 12: expected a FEN of six fields" in bad
    assert bad.endswith(f"rookworld data audit {rows} shows them")
    assert "of 11 rows have positions that are held out or excluded, and are not trained on" in barred
    assert len(load_data(DataConfig(), seed=0).notes) == 1


def test_pgn_game_without_result_is_noted_as_cut_off(tmp_path: Path) -> None:
    games = tmp_path / "cut.pgn"
    games.write_text("1. e4 e5 2. Nf3 1-0\n\n1. d4 d5 2. c4 e6 3. Nc3 Nf6 4. B")
    config = DataConfig(train=str(games), tasks=POLICY)
    assert (
        f"{games}: Game 2 has no result: it stops at line 3, and the file may be cut off there"
        in load_data(config, seed=0).notes
    )


def test_source_without_rows_of_a_task_is_refused_with_option_to_set(tmp_path: Path) -> None:
    rows = write_fens(tmp_path / "rows.fen", OPENING_FENS[5:15])
    with pytest.raises(UserError, match=r"rows of task environment.*data\.tasks=\[policy\] needs none"):
        load_data(DataConfig(train=rows), seed=0)
