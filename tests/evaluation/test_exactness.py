"""The evaluation table of 500 transcripts, against an independent recomputation from the definitions.

A transcript is a shipped held-out row with an answer, which is its label or a damaged copy of it. The recomputation
shares only python-chess with the scoring code. It reads texts with regular expressions and has its own edit distance.
"""

import math
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator

import chess
import pytest

from rookworld_rlvr.evaluation.completions import held_out_rows
from rookworld_rlvr.evaluation.table import summarise
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.move_classes import IllegalKind
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import default_file

ROWS_A_TASK = 250
UCI = r"[a-h][1-8][a-h][1-8][qrbn]?"
NUMBER = r"[+-]?\d{1,6}(?:\.\d{1,6})?"
MOVES, EVALS = rf"{UCI}(?:\s+{UCI}){{0,4}}", rf"{NUMBER}(?:\s+{NUMBER})*"
POLICY = re.compile(rf"\s*M:\s*(?P<m>{MOVES})\s+E:\s*(?P<e>{EVALS})\s+B:\s*(?P<b>{UCI})\s*")
ENVIRONMENT = re.compile(rf"\s*(?P<fen>[^+]*?)\s*\+\s*(?P<r>{NUMBER})\s*\+\s*(?P<t>[01])\s*\+\s*(?P<c>[01])\s*")
# Two-sided 95 %.
Z = statistics.NormalDist().inv_cdf(0.975)
FIELDS = ("placement", "turn", "castling", "en_passant", "halfmove_clock", "fullmove_number")


def damaged(rng: random.Random, text: str, other: str) -> str:
    """Return the text unchanged, or with a mistake that models make."""
    words = text.split(" ")
    place = rng.randrange(len(words))
    return rng.choice(
        [
            text,
            text,
            text[: rng.randrange(len(text))],
            text[: (cut := rng.randrange(len(text)))] + rng.choice("12345678abcdefgh+ ") + text[cut + 1 :],
            " ".join(words[:place] + words[place + 1 :]),
            " ".join([*words[:place], rng.choice(other.split(" ")), *words[place + 1 :]]),
            other,
            text + rng.choice([" ", "+0", " e2e4", " M: e2e4"]),
            re.sub(r"B:.*", f"B: {rng.choice(['e2e4', 'g8f6', 'e1h1', '0000', 'a1a1', ''])}", text),
            re.sub(r"M:\s*(\S+) (\S+)", r"M: \1 \1", text),
            re.sub(r"\+0\.001\+", rng.choice(["+1.0+", "+0.5+", "+-1.0+", "+9+"]), text),
            re.sub(r"\+0$", "+1", text),
            re.sub(r" (w|b) ", lambda turn: " b " if turn[1] == "w" else " w ", text),
        ]
    )


@pytest.fixture(scope="module")
def transcripts() -> tuple[list[Example], list[str]]:
    rng = random.Random(2026)
    rows = read_corpus(default_file("held_out.jsonl")).examples
    examples = [
        row
        for task in ("policy", "environment")
        for row in rng.sample([row for row in rows if row.task == task], ROWS_A_TASK)
    ]
    labels = {
        task: [row.completion or "" for row in examples if row.task == task] for task in ("policy", "environment")
    }
    return examples, [damaged(rng, row.completion or "", rng.choice(labels[row.task])) for row in examples]


def legal_moves(board: chess.Board) -> set[str]:
    return {board.uci(move) for move in board.legal_moves}


def read_policy(text: str) -> tuple[list[str], list[float], str] | None:
    match = POLICY.fullmatch(text)
    if not match:
        return None
    moves, evals = match["m"].split(), [float(word) for word in match["e"].split()]
    same_square = any(move[:2] == move[2:4] for move in [*moves, match["b"]])
    return None if same_square or len(moves) != len(evals) else (moves, evals, match["b"])


def mated(board: chess.Board, uci: str) -> bool:
    after = board.copy()
    after.push_uci(uci)
    return after.is_checkmate()


def policy_values(example: Example, text: str) -> Iterator[tuple[str, float]]:
    board = chess.Board(example.prompt[3:])
    legal, answer, label = legal_moves(board), read_policy(text), read_policy(example.completion or "")
    moves, _, best = answer or ([], [], "")
    yield "valid", answer is not None
    if legal:
        yield "legal_best_move", best in legal
        yield "legal_candidates", len(set(moves) & legal) / min(5, len(legal))
    if mates := {move for move in legal if mated(board, move)}:
        yield "mate_in_one", best in mates
    if label and set(label[0]) & legal:
        evals = {move: value for move, value in zip(label[0], label[1], strict=True) if move in legal}
        top = {move for move in evals if evals[move] == max(evals.values())}
        yield "best_move_accuracy", best in top or (best == label[2] and best in legal and best not in evals)
        yield "top5_accuracy", best in evals
        yield "top5_overlap", sum(move in moves for move in evals) / len(evals)


def transition(example: Example) -> tuple[str, float, bool, bool]:
    """Return the transition by the rules. The ten moves of a prompt cannot prove a fivefold repetition."""
    fen, uci = example.prompt[3:].split("+")[:2]
    board = chess.Board(fen)
    if uci not in legal_moves(board):
        return board.fen(), -1.0, False, True
    board.push_uci(uci)
    if board.is_checkmate():
        return board.fen(), 1.0, True, False
    if board.is_stalemate() or board.is_insufficient_material() or board.is_seventyfive_moves():
        return board.fen(), 0.5, True, False
    return board.fen(), 0.001, False, False


def edits(a: str, b: str) -> int:
    above = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        row = [i]
        for j, right in enumerate(b, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (left != right)))
        above = row
    return above[-1]


def board_of(fen: str) -> chess.Board | None:
    if not re.fullmatch(r"\S+ \S+ \S+ \S+ \d{1,6} \d{1,6}", fen):
        return None
    try:
        return chess.Board(fen)
    except ValueError:
        return None


def environment_values(example: Example, text: str) -> Iterator[tuple[str, float]]:
    fen, reward, terminated, truncated = transition(example)
    match = ENVIRONMENT.fullmatch(text)
    valid = match is not None and board_of(match["fen"]) is not None
    right_reward = bool(valid and float(match["r"]) == reward)
    flags = {"t": terminated, "c": truncated}
    right_flags = [bool(valid and match[name] == str(int(flag))) for name, flag in flags.items()]
    yield "valid", valid
    yield "next_state_accuracy", bool(valid and match["fen"] == fen)
    yield "next_state_nls", 1 - edits(match["fen"], fen) / max(len(match["fen"]), len(fen)) if valid else 0.0
    yield "reward_accuracy", right_reward
    yield "reward_mae", min(2.0, abs(float(match["r"]) - reward)) if valid else 2.0
    yield "terminated_accuracy", right_flags[0]
    yield "truncated_accuracy", right_flags[1]
    yield {0.001: "recall_legal", 1.0: "recall_win", 0.5: "recall_draw", -1.0: "recall_illegal"}[reward], right_reward
    yield from [("recall_terminated", right_flags[0])] * terminated
    yield from [("recall_truncated", right_flags[1])] * truncated
    first = text.split("+")[0].strip()
    read, true = board_of(first), chess.Board(fen)
    yield "fen_strict", first == fen
    yield "fen_lenient", read is not None and read.epd() == true.epd()
    words = first.split(" ") + [""] * 6
    yield from ((f"fen_error_{name}", words[i] != fen.split()[i]) for i, name in enumerate(FIELDS))


def phase(prompt: str) -> str:
    """Return the phase by the FEN: queens, rooks, bishops and knights on the board, and men on their own first rank."""
    ranks = prompt.split()[1].split("/")
    pieces = sum(len(re.findall("[qrbn]", rank, re.IGNORECASE)) for rank in ranks)
    if pieces < 7:
        return "endgame"
    at_home = min(len(re.findall("[A-Z]", ranks[-1])), len(re.findall("[a-z]", ranks[0])))
    return "middlegame" if pieces < 11 or at_home < 4 else "opening"


def columns_of(examples: list[Example], texts: list[str]) -> dict[str, list[float]]:
    columns: defaultdict[str, list[float]] = defaultdict(list)
    for example, text in zip(examples, texts, strict=True):
        values = policy_values if example.task == "policy" else environment_values
        color = "white" if example.prompt.split()[2] == "w" else "black"
        for name, value in values(example, text):
            for part in ("", f"/{color}", f"/{phase(example.prompt)}", f"/from_{example.source}"):
                columns[f"{example.task}/{name}{part}"].append(float(value))
    return columns


def farthest(share: float, n: int, end: float) -> float:
    """Return, by bisection, the fraction nearest to `end` that is within Z of its own standard errors of `share`."""
    near, far = share, end
    for _ in range(80):
        middle = (near + far) / 2
        inside = n * (share - middle) ** 2 <= Z**2 * middle * (1 - middle)
        near, far = (middle, far) if inside else (near, middle)
    return near


def bounds(key: str, values: list[float]) -> tuple[float, float]:
    """Return both ends of the 95 % interval."""
    n, widest = len(values), {"legal_candidates": 1.0, "top5_overlap": 1.0, "next_state_nls": 1.0, "reward_mae": 2.0}
    mean, highest = statistics.fmean(values), widest.get(key.split("/")[1])
    if highest is None:
        return farthest(mean, n, 0.0), farthest(mean, n, 1.0)
    if n == 1:
        return 0.0, highest
    if len(set(values)) == 1:
        others = farthest(0.0, n, 1.0)
        return (1 - others) * mean, (1 - others) * mean + others * highest
    error = Z * math.sqrt(statistics.variance(values) / n)
    return max(0.0, mean - error), min(highest, mean + error)


def test_table_of_500_transcripts_equals_independent_recomputation(
    transcripts: tuple[list[Example], list[str]],
) -> None:
    table, columns = summarise(held_out_rows(0, *transcripts)), columns_of(*transcripts)
    kinds = {key for key in table if key.removeprefix("environment/recall_illegal/") in set(IllegalKind)}
    assert table.keys() - kinds == columns.keys() and len(kinds) == len(IllegalKind)
    assert sum(table[key].n for key in kinds) == table["environment/recall_illegal"].n
    for key, values in columns.items():
        measure, (low, high) = table[key], bounds(key, values)
        assert (measure.n, measure.value) == (len(values), pytest.approx(sum(values) / len(values))), key
        assert (measure.low, measure.high) == pytest.approx((low, high), abs=1e-9), key


def test_intervals_of_few_transcripts_equal_recomputation(
    transcripts: tuple[list[Example], list[str]],
) -> None:
    """The tables have keys of one row, and keys whose values are all equal."""
    rows = transcripts[0][:3] + transcripts[0][-3:]
    for texts in ([row.completion or "" for row in rows], ["junk"] * len(rows)):
        table, columns = summarise(held_out_rows(0, rows, texts)), columns_of(rows, texts)
        assert {1, 3} <= {measure.n for measure in table.values()}
        for key, values in columns.items():
            measure = table[key]
            assert (measure.low, measure.high) == pytest.approx(bounds(key, values), abs=1e-9), key


def test_transcripts_cover_every_phase_and_colour_of_both_tasks(
    transcripts: tuple[list[Example], list[str]],
) -> None:
    parts = {(example.task, phase(example.prompt), example.prompt.split()[2]) for example in transcripts[0]}
    assert len(parts) == 12


def test_transcripts_mix_right_and_wrong_answers_for_common_keys(
    transcripts: tuple[list[Example], list[str]],
) -> None:
    table = summarise(held_out_rows(0, *transcripts))
    assert len(transcripts[0]) == 500
    mixed = {key for key, measure in table.items() if 0 < measure.value < 1 and key.count("/") == 1}
    assert {key for key in table if key.count("/") == 1} - mixed <= {
        "environment/recall_win",
        "environment/recall_draw",
        "environment/recall_illegal",
        "environment/recall_truncated",
        "environment/recall_terminated",
    }
