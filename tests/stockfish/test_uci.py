"""Evals from recorded output of Stockfish 15.1. A recording has all lines of a search before `bestmove`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rookworld_rlvr.stockfish import uci
from rookworld_rlvr.stockfish.uci import Lines, last_lines

SEARCHES: dict[str, list[str]] = json.loads(Path(__file__).with_name("recorded_searches.json").read_text())


def variations(output: Sequence[str]) -> list[tuple[int, str, float, bool]]:
    """Return rank, move, eval in pawns, and whether the eval is exact, for every scored line."""
    lines = [line.split() for line in output if " score " in line and " pv " in line]
    return [(*uci._variation(words), not {"lowerbound", "upperbound"} & set(words)) for words in lines]


def evals_of_all_lines(output: Sequence[str]) -> Lines:
    """Return the evals found by reading every line from the first to the last."""
    ranked: dict[int, str] = {}
    evals_pawns: dict[str, float] = {}
    for rank, move, pawns, exact in variations(output):
        ranked[rank] = move
        if exact:
            evals_pawns[move] = pawns
    return tuple((ranked[rank], evals_pawns[ranked[rank]]) for rank in sorted(ranked) if ranked[rank] in evals_pawns)


@pytest.mark.parametrize("name", SEARCHES)
def test_last_lines_give_the_same_evals_as_all_lines(name: str) -> None:
    output = SEARCHES[name]
    moves = max(rank for rank, *_ in variations(output))
    for end in range(len(output) + 1):
        assert last_lines(output[:end], moves) == evals_of_all_lines(output[:end])


def test_complete_search_parses_only_the_last_depth(monkeypatch: pytest.MonkeyPatch) -> None:
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
