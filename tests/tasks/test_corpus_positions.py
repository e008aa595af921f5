"""Files of positions as a corpus, such as `data.train=games.pgn`."""

from pathlib import Path

import pytest

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.tasks.corpus import read_corpus

PGN = '[Event "?"]\n\n1. e4 e5 *\n'
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


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


def test_malformed_line_of_fen_file_raises_corpus_error(tmp_path: Path) -> None:
    path = tmp_path / "positions.fen"
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match=r"positions\.fen"):
        read_corpus(path)
