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
from ..board.positions import PgnCounts, count_games
from . import parse_prompt
from .audit_report import AuditReport, EnvironmentAudit, PolicyAudit
from .corpus import RawRow, example_key, parse_completion, parse_row, raw_rows, require_valid, split_line
from .environment import environment_truth, render_environment
from .policy import legal_candidates, render_policy
from .types import (
    EnvironmentCompletion,
    EnvironmentPrompt,
    Example,
    FailureReason,
    ParseFailure,
    PolicyCompletion,
    PolicyPrompt,
    Task,
)

GROUPS = ("white", "black", "environment")
# Number of malformed rows shown for each failure reason, and number of characters shown of each row.
MOST_SHOWN, MOST_CHARACTERS = 3, 100


def audit(
    source: str | Path, *, split: str = "train", progress: Callable[[int], None] = lambda rows: None
) -> AuditReport:
    """Read all rows of `source`, as `read_corpus` does, and count their defects.

    `progress` is called with the number of rows so far. Defects are counted and raise nothing. Raises CorpusError only
    if the source is missing, unreadable or without a valid row.
    """
    tally, first = _Tally(), ""
    for number, raw in enumerate(raw_rows(source, split=split), start=1):
        progress(number)
        row = parse_row(raw)
        tally.add(row)
        if isinstance(row, ParseFailure):
            tally.show(number, row, raw)
            first = first or f"row {number}: {row.detail}"
    require_valid(source, tally.valid, tally.malformed, first)
    games = count_games(source) if Path(source).suffix == ".pgn" else None
    return tally.report(str(source), games)


class _Tally:
    """Running counts from which the report is made."""

    def __init__(self) -> None:
        self.valid = self.unlabelled = 0
        self.malformed: Counter[str] = Counter()
        self.malformed_rows: list[str] = []
        self.duplicates: Counter[Task] = Counter()
        self.seen: set[tuple[Task, str]] = set()
        self.findings: dict[str, Counter[str]] = {name: Counter() for name in GROUPS}

    def add(self, row: Example | ParseFailure) -> None:
        if isinstance(row, ParseFailure):
            self.malformed[row.reason.value] += 1
            return
        self.valid += 1
        identity = (row.task, example_key(row))
        self.duplicates[row.task] += identity in self.seen
        self.seen.add(identity)
        if row.completion is None:
            self.unlabelled += 1
        else:
            group, findings = _audit_row(row.task, row.prompt, row.completion)
            self.findings[group].update(findings)

    def show(self, number: int, failure: ParseFailure, raw: RawRow) -> None:
        """Keep a malformed row to show in the report, unless enough rows with its reason are kept already."""
        if self.malformed[failure.reason.value] <= MOST_SHOWN:
            text = " ".join((raw if isinstance(raw, str) else json.dumps(raw)).split())
            cut = text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"
            self.malformed_rows.append(f"  row {number}: {failure.reason.value}: {cut}")

    def report(self, source: str, games: PgnCounts | None) -> AuditReport:
        white, black, environment = (self.findings[group] for group in GROUPS)
        return AuditReport(
            source=source,
            rows=self.valid + self.malformed.total(),
            valid=self.valid,
            unlabelled=self.unlabelled,
            malformed=self.malformed,
            duplicate_positions=self.duplicates,
            white=PolicyAudit(**{field.name: white[field.name] for field in fields(PolicyAudit)}),
            black=PolicyAudit(**{field.name: black[field.name] for field in fields(PolicyAudit)}),
            environment=EnvironmentAudit(**{f.name: environment[f.name] for f in fields(EnvironmentAudit)}),
            malformed_rows=tuple(self.malformed_rows),
            games=games,
        )


def _audit_row(task: Task, prompt: str, completion: str) -> tuple[str, Iterator[str]]:
    """Return the group in which a labelled row is counted, and its findings."""
    match parse_prompt(prompt), parse_completion(task, completion):
        case PolicyPrompt() as query, PolicyCompletion() as label:
            board = parse_fen(query.fen)
            return chess.COLOR_NAMES[board.turn], _policy_findings(board, label)
        case EnvironmentPrompt() as query, EnvironmentCompletion() as label:
            return "environment", _environment_findings(query, label)
    raise ValueError(f"expected a valid row, got {prompt + completion!r}")


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


def _environment_findings(query: EnvironmentPrompt, label: EnvironmentCompletion) -> Iterator[str]:
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


def corrected_lines(source: str | Path, *, split: str = "train", dropped: Counter[str] | None = None) -> Iterator[str]:
    """Yield the corrected rows of `source`, in order, as lines without a newline. An audit of them finds no defect.

    A row without a defect is unchanged. `P:` rows lose illegal and repeated candidates, and `B:` becomes the candidate
    with the highest eval, the first one if several are equal. `A:` rows get python-chess's completion. Four kinds of
    rows are dropped and counted by reason in `dropped`: malformed rows, `A:` rows of impossible positions, rows left
    without a candidate, and rows in which a mate in one has no higher eval than another candidate. Rows that are
    objects stay JSON objects. Raises CorpusError as `raw_rows` does.
    """
    for raw in raw_rows(source, split=split):
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
        case EnvironmentPrompt() as query, EnvironmentCompletion() as label:
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
