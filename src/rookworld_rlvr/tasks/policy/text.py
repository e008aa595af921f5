"""Text format of the policy task `P:`. Readers find the fields by their markers, never by column.

P: <FEN, padded>M: <up to 5 UCI moves, padded>E: <evals, padded>B: <best move>
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import chess

from ...board.fen import parse_fen, require_valid_fen
from ...board.moves import is_legal_uci, is_uci
from ..numbers import parse_number
from ..types import FailureReason, ParseFailure, PolicyCompletion, PolicyPrompt, PromptError

PREFIX = "P: "
MARKERS = ("M", "E", "B")
# Text before the candidates; the first of them depends on the prompt alone.
FIRST_MARKER = f"{MARKERS[0]}:"
MAX_CANDIDATES = 5
# Published column widths; readers must not rely on them.
FEN_WIDTH, MOVES_WIDTH, EVALS_WIDTH = 90, 30, 40

_MARKER = re.compile(r"(?<!\S)([MEB]):")


@dataclass(frozen=True, slots=True)
class PolicyFields:
    """Completion split at its markers. If a marker repeats, its first field counts."""

    before: str
    """Text before the first marker, without surrounding blanks."""
    markers: tuple[str, ...]
    """All markers in order of occurrence, repeats included."""
    moves: tuple[str, ...]
    evals: tuple[str, ...]
    best: tuple[str, ...]
    """`moves`, `evals` and `best` hold the words of their field; `best` should be one word."""


def render_policy_prompt(fen: str) -> str:
    """Render the prompt of a position, without the padding after the FEN, which the model writes."""
    return PREFIX + parse_fen(fen).fen()


def parse_policy_prompt(prompt: str) -> PolicyPrompt:
    """Parse the position of a prompt. Raises PromptError, also for an impossible position.

    >>> parse_policy_prompt("P: 8/8/8/8/8/8/8/K1k5 w - - 0 1").fen
    '8/8/8/8/8/8/8/K1k5 w - - 0 1'
    """
    fen = prompt.removeprefix(PREFIX).rstrip()
    try:
        if not prompt.startswith(PREFIX):
            raise ValueError(f"it does not begin with {PREFIX!r}")
        require_valid_fen(fen)
    except ValueError as error:
        raise PromptError(f"expected 'P: <FEN>', got {prompt!r}: {error}") from error
    return PolicyPrompt(fen)


def render_policy(completion: PolicyCompletion, fen: str) -> str:
    """Render `completion` as the text after the prompt of `fen`, in the published columns.

    >>> render_policy(PolicyCompletion(("a1b1",), (0.5,), "a1b1"), "8/8/8/8/8/8/8/K1k5 w - - 0 1").split()
    ['M:', 'a1b1', 'E:', '0.5', 'B:', 'a1b1']
    """
    padding = " " * max(1, FEN_WIDTH - len(fen))
    moves = " ".join(completion.moves).ljust(MOVES_WIDTH)
    evals = " ".join(map(str, completion.evals_pawns)).ljust(EVALS_WIDTH)
    return f"{padding}M: {moves}E: {evals}B: {completion.best}"


# Cached because both the rewards and the strict parser split the same completion.
@lru_cache(maxsize=1)
def policy_fields(completion: str) -> PolicyFields:
    """Split a completion at its markers. Never fails: a missing field is empty.

    >>> policy_fields("M: a1b1 E: 0.5 B: a1b1").markers
    ('M', 'E', 'B')
    """
    matches = list(_MARKER.finditer(completion))
    words: dict[str, tuple[str, ...]] = {}
    ends = [*(match.start() for match in matches[1:]), len(completion)]
    for match, end in zip(matches, ends, strict=False):
        words.setdefault(match[1], tuple(completion[match.end() : end].split()))
    return PolicyFields(
        before=completion[: matches[0].start()].strip() if matches else completion.strip(),
        markers=tuple(match[1] for match in matches),
        moves=words.get("M", ()),
        evals=words.get("E", ()),
        best=words.get("B", ()),
    )


def split_policy(line: str) -> tuple[str, str]:
    """Split a published line into prompt and completion. The prompt ends before its padding, which the model writes.

    >>> split_policy("P: 8/8/8/8/8/8/8/K1k5 w - - 0 1   M: a1a2 E: 0.5 B: a1a2")
    ('P: 8/8/8/8/8/8/8/K1k5 w - - 0 1', '   M: a1a2 E: 0.5 B: a1a2')
    """
    prompt = (line[: line.find("M:")] if "M:" in line else line).rstrip()
    return prompt, line[len(prompt) :]


def parse_policy(completion: str) -> PolicyCompletion | ParseFailure:
    """Parse a policy completion, or return why it is malformed.

    >>> parse_policy("M: a1b1 a1a2 E: 0.5 -1.0 B: a1b1")
    PolicyCompletion(moves=('a1b1', 'a1a2'), evals_pawns=(0.5, -1.0), best='a1b1')
    >>> parse_policy("M: a1b1 E: nan B: a1b1")
    ParseFailure(reason=<FailureReason.bad_eval: 'bad_eval'>, detail='nan')
    """
    fields = policy_fields(completion)
    failure = _structure_failure(completion, fields) or _words_failure(fields)
    if failure:
        return failure
    return PolicyCompletion(fields.moves, tuple(float(text) for text in fields.evals), fields.best[0])


def legal_candidates(board: chess.Board, completion: PolicyCompletion) -> dict[str, float]:
    """Return the legal candidates with their evals in pawns. Of a repeated candidate the first eval counts.

    >>> completion = PolicyCompletion(("e2e4", "e2e5", "e2e4"), (0.3, 0.9, 0.1), "e2e4")
    >>> legal_candidates(chess.Board(), completion)
    {'e2e4': 0.3}
    """
    evals = dict(zip(reversed(completion.moves), reversed(completion.evals_pawns), strict=True))
    return {uci: evals[uci] for uci in dict.fromkeys(completion.moves) if is_legal_uci(board, uci)}


def _structure_failure(completion: str, fields: PolicyFields) -> ParseFailure | None:
    if not completion.strip():
        return ParseFailure(FailureReason.empty, "")
    missing = [name for name in MARKERS if name not in fields.markers]
    if missing:
        return ParseFailure(FailureReason.missing_field, " ".join(missing))
    if len(fields.markers) > len(MARKERS):
        return ParseFailure(FailureReason.repeated_field, " ".join(fields.markers))
    if fields.markers != MARKERS:
        return ParseFailure(FailureReason.field_order, " ".join(fields.markers))
    if fields.before or len(fields.best) > 1:
        return ParseFailure(FailureReason.extra_text, fields.before or " ".join(fields.best[1:]))
    return None


def _words_failure(fields: PolicyFields) -> ParseFailure | None:
    if len(fields.moves) > MAX_CANDIDATES:
        return ParseFailure(FailureReason.too_many_moves, str(len(fields.moves)))
    bad_move = next((uci for uci in (*fields.moves, *fields.best) if not is_uci(uci)), None)
    if bad_move is not None or not fields.moves or not fields.best:
        return ParseFailure(FailureReason.bad_move, bad_move or "no move")
    bad_eval = next((text for text in fields.evals if parse_number(text) is None), None)
    if bad_eval is not None:
        return ParseFailure(FailureReason.bad_eval, bad_eval)
    if len(fields.evals) != len(fields.moves):
        counts = f"{len(fields.moves)} moves, {len(fields.evals)} evals"
        return ParseFailure(FailureReason.unaligned_evals, counts)
    return None
