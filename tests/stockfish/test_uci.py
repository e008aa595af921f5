"""Evals from the recorded output of Stockfish 15.1, for each search all lines before `bestmove`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rookworld_rlvr.stockfish import uci
from rookworld_rlvr.stockfish.uci import Lines, last_lines

SEARCHES: dict[str, list[str]] = json.loads(Path(__file__).with_name("recorded_searches.json").read_text())


def variations(output: Sequence[str]) -> list[tuple[int, str, float, bool]]:
    """Rank, move, eval in pawns, and whether the eval is exact, of every scored line."""
    lines = [line.split() for line in output if " score " in line and " pv " in line]
    return [(*uci._variation(words), not {"lowerbound", "upperbound"} & set(words)) for words in lines]


def evals_of_all_lines(output: Sequence[str]) -> Lines:
    """Evals by reading every line from the oldest on."""
    ranked: dict[int, str] = {}
    evals_pawns: dict[str, float] = {}
    for rank, move, pawns, exact in variations(output):
        ranked[rank] = move
        if exact:
            evals_pawns[move] = pawns
    return tuple((ranked[rank], evals_pawns[ranked[rank]]) for rank in sorted(ranked) if ranked[rank] in evals_pawns)


@pytest.mark.parametrize("name", SEARCHES)
def test_the_last_lines_give_the_evals_of_all_lines_wherever_it_ends(name: str) -> None:
    output = SEARCHES[name]
    moves = max(rank for rank, *_ in variations(output))
    for end in range(len(output) + 1):
        assert last_lines(output[:end], moves) == evals_of_all_lines(output[:end])


def test_of_a_complete_search_only_the_last_depth_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    output = SEARCHES["five of many moves"]
    parse, parsed = uci._variation, list[str]()

    def counted(words: list[str]) -> tuple[int, str, float]:
        parsed.append(words[2])
        return parse(words)

    monkeypatch.setattr(uci, "_variation", counted)
    assert len(last_lines(output, 5)) == 5
    assert parsed == ["5"] * 5


@pytest.mark.parametrize(
    ("name", "move", "exact"),
    [("last score is a lower bound", "f8g7", 0.3), ("last report has an upper bound", "h3h2", -0.13)],
)
def test_a_bound_is_replaced_by_the_exact_score_of_an_earlier_depth(name: str, move: str, exact: float) -> None:
    (newest, bound) = [(pawns, not known) for _, said, pawns, known in variations(SEARCHES[name]) if said == move][-1]
    assert bound and newest != exact == dict(last_lines(SEARCHES[name], 3))[move]
