"""Audit of a file of rows: count and name its defects, and write the same rows corrected.

The most important defect: if Black moves, published policy data takes `B:` from the wrong end of the evals, so that a
model learns to play Black's worst candidate.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import chess

from ..board.fen import is_valid_fen, parse_fen
from ..board.moves import is_legal_uci, is_mate
from ..board.positions import count_games
from ..board.transition import Transition
from . import parse_prompt
from .audit_report import AuditReport
from .corpus import RawRow, example_key, parse_completion, parse_row, raw_rows, require_valid, split_line
from .environment import environment_truth, render_environment
from .policy import legal_candidates, render_policy
from .types import EnvironmentPrompt, Example, FailureReason, ParseFailure, PolicyCompletion, PolicyPrompt, Task

# Number of malformed rows shown for each failure reason, and number of characters shown of each row.
MOST_SHOWN, MOST_CHARACTERS = 3, 100


def audit(source: str | Path, *, progress: Callable[[int], None] = lambda rows: None) -> AuditReport:
    """Read all rows of `source`, as `read_corpus` does, and count their defects.

    `progress` is called with the number of rows so far. Defects are counted and raise nothing. Raises UserError only
    if the source is missing, unreadable or without a valid row.
    """
    report, first = AuditReport(str(source)), ""
    seen: set[tuple[Task, str]] = set()
    for number, raw in enumerate(raw_rows(source), start=1):
        progress(number)
        row = parse_row(raw)
        if isinstance(row, ParseFailure):
            report.malformed[row.reason.value] += 1
            if report.malformed[row.reason.value] <= MOST_SHOWN:
                report.malformed_rows.append(f"  row {number}: {row.reason.value}: {_cut(raw)}")
            first = first or f"row {number}: {row.detail}"
            continue
        report.valid += 1
        identity = (row.task, example_key(row))
        report.duplicate_positions[row.task] += identity in seen
        seen.add(identity)
        if row.completion is None:
            report.unlabelled += 1
        else:
            _add_findings(report, row.task, row.prompt, row.completion)
    require_valid(source, report.valid, report.malformed, first)
    if Path(source).suffix == ".pgn":
        report.games = count_games(source)
    return report


def _cut(raw: RawRow) -> str:
    """Return a row on one line, without the characters beyond MOST_CHARACTERS."""
    text = " ".join((raw if isinstance(raw, str) else json.dumps(raw)).split())
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _add_findings(report: AuditReport, task: Task, prompt: str, completion: str) -> None:
    """Add the findings in a labelled row to the report."""
    match parse_prompt(prompt), parse_completion(task, completion):
        case PolicyPrompt() as query, PolicyCompletion() as label:
            board = parse_fen(query.fen)
            (report.white if board.turn else report.black).add(_policy_findings(board, label))
        case EnvironmentPrompt() as query, Transition() as label:
            report.environment.add(_environment_findings(query, label))


def _policy_findings(board: chess.Board, label: PolicyCompletion) -> Iterator[str]:
    """Yield the name of each `PolicyAudit` count to which a row belongs."""
    yield "rows"
    if not all(is_legal_uci(board, uci) for uci in label.moves):
        yield "illegal_candidate"
    if len(set(label.moves)) < len(label.moves):
        yield "repeated_candidate"
    if not is_legal_uci(board, label.best):
        yield "illegal_best"
    yield from _mate_findings(board, label)
    lowest, highest = min(label.evals_pawns), max(label.evals_pawns)
    if lowest < highest:
        yield "decided"
    if label.best not in label.moves:
        yield "best_not_candidate"
        return
    best_pawns = label.evals_pawns[label.moves.index(label.best)]
    if best_pawns < highest:
        yield "below_best"
        if best_pawns == lowest:
            yield "lowest"


def _mate_findings(board: chess.Board, label: PolicyCompletion) -> Iterator[str]:
    """Yield the findings about mates in one, which need only the board: no other move may have as high an eval."""
    evals = list(zip(label.moves, label.evals_pawns, strict=True))
    mates = [pawns for uci, pawns in evals if is_mate(board, uci)]
    if mates:
        yield "mates"
        if any(pawns >= min(mates) and not is_mate(board, uci) for uci, pawns in evals):
            yield "mate_misjudged"


def _environment_findings(query: EnvironmentPrompt, label: Transition) -> Iterator[str]:
    """Yield the name of each `EnvironmentAudit` count to which a row belongs."""
    truth = environment_truth(query)
    yield "rows"
    if not is_valid_fen(query.fen):
        yield "impossible"
    if label != truth:
        yield "differing"
    yield from (f.name for f in fields(truth) if getattr(label, f.name) != getattr(truth, f.name))
    if truth.truncated and not label.truncated:
        yield "illegal_as_legal"


def corrected_lines(source: str | Path, *, dropped: Counter[str] | None = None) -> Iterator[str]:
    """Yield the corrected rows of `source`, in order, as lines without a newline. An audit of them finds no defect.

    A row without a defect is unchanged. `P:` rows lose illegal and repeated candidates, and `B:` becomes the candidate
    with the highest eval, the first one if several are equal. `A:` rows get python-chess's completion. Four kinds of
    rows are dropped and counted by reason in `dropped`: malformed rows, `A:` rows of impossible positions, rows left
    without a candidate, and rows in which a mate in one has no higher eval than another candidate. Rows that are
    objects stay JSON objects. Raises UserError as `raw_rows` does.
    """
    for raw in raw_rows(source):
        row = parse_row(raw)
        corrected = row if isinstance(row, ParseFailure) else _corrected(row)
        if not isinstance(corrected, ParseFailure):
            yield _render_like(raw, corrected)
        elif dropped is not None:
            dropped[corrected.reason.value] += 1


def _render_like(raw: RawRow, example: Example) -> str:
    """Return the example as a line of the same form as its row."""
    if isinstance(raw, str):
        return example.prompt + (example.completion or "")
    if example.completion is None:
        return json.dumps(raw, default=str)
    if isinstance(raw.get("prompt"), str):
        return json.dumps({**raw, "prompt": example.prompt, "completion": example.completion}, default=str)
    return json.dumps({**raw, "text": example.prompt + example.completion}, default=str)


def _corrected(example: Example) -> Example | ParseFailure:
    if example.completion is None:
        return example
    match parse_prompt(example.prompt), parse_completion(example.task, example.completion):
        case PolicyPrompt() as query, PolicyCompletion() as label:
            return _corrected_policy(example, query.fen, label)
        case EnvironmentPrompt() as query, Transition() as label:
            if not is_valid_fen(query.fen):
                return ParseFailure(FailureReason.bad_prompt, f"impossible position {query.fen}")
            truth = environment_truth(query)
            return example if label == truth else split_line(example.prompt + render_environment(truth))
    raise ValueError(f"expected a valid row, got {example}")


def _corrected_policy(example: Example, fen: str, label: PolicyCompletion) -> Example | ParseFailure:
    board = parse_fen(fen)
    kept = legal_candidates(board, label)
    if "mate_misjudged" in _mate_findings(board, label):
        return ParseFailure(FailureReason.bad_eval, f"a mate in one is not the best of {' '.join(label.moves)}")
    if not kept:
        return ParseFailure(FailureReason.bad_move, f"no legal candidate among {' '.join(label.moves)}")
    best = max(kept, key=kept.__getitem__)
    if tuple(kept) == label.moves and kept.get(label.best) == kept[best]:
        return example
    corrected = PolicyCompletion(tuple(kept), tuple(kept.values()), best)
    return split_line(example.prompt + render_policy(corrected, fen))
