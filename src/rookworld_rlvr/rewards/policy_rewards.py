"""Components of a policy completion `P:` in three tiers, each in [0, 1].

The prompt, the source of move values and the label decide which components apply, never the completion, so none gains
by leaving something out. No component falls when a word climbs from no move to an illegal move to a legal
one, or from no number to a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..board.fen import parse_fen
from ..board.moves import is_uci
from ..tasks.policy import MARKERS, MAX_CANDIDATES, PolicyFields, parse_number, parse_policy, policy_fields
from ..tasks.types import ParseFailure, PolicyPrompt, require_parsed
from .move_values import MoveValues

# Weights within the first tier. `markers` is the longest run of M, E, B in order, over three; `nothing_else` is that
# divided by 1 + words before, words after, repeated markers and candidates above five. Both matter alike: a completion
# that fails one of them cannot be read safely.
STRUCTURE_WEIGHTS = {"markers": 0.5, "nothing_else": 0.5}
# Weights within the second tier: share of candidate words that are UCI; share of evals that are numbers, one per
# candidate; the best move is UCI. Moves are written most often and have most of the weight.
PARSE_WEIGHTS = {"moves": 0.4, "evals": 0.3, "best": 0.3}
# Evals are compared as x / (|x| + scale): an eval of three pawns is half-way to a mate. Agreement halves for each
# distance of a tenth on that scale, which runs from -1 to 1: about half a pawn in an equal position.
EVAL_SCALE_PAWNS, EVAL_TOLERANCE = 3.0, 0.1


@dataclass(slots=True)
class PolicyCorrectness:
    """Weights of the components for good moves. The `…_match` apply only with a label, the `…_value` only with an
    engine's evaluations, and never both.

    The best move's reward from a label or an engine is multiplied by `candidates`, so duplicates cost most of it:
    five distinct legal moves always beat one move written five times, although move values have the larger weight.
    """

    candidates: float = 0.22
    """Distinct legal candidates, over five or the number of legal moves if that is smaller."""
    candidates_clean: float = 0.04
    """`candidates` times the share of candidate words that are distinct and legal: duplicates cost a little."""
    best_legal: float = 0.15
    """The best move is legal."""
    best_among_candidates: float = 0.03
    """The best move is legal and one of the candidates."""
    best_is_argmax: float = 0.02
    """And none of its own evals is higher (ties all count; every eval must be a number). Small, because
    equal evals earn it for nothing."""
    candidates_match: float = 0.06
    """Share of the label's candidates that are named."""
    best_match: float = 0.3
    """The best move is the label's; times `candidates`."""
    evals_match: float = 0.06
    """Mean agreement of evals with the label's, move by move; a move not named, or without a number, is 0."""
    best_value: float = 0.42
    """Value of the best move, see `move_values`, times `candidates`; 0 if it is illegal."""
    candidates_value: float = 0.08
    """Sum of the values of the distinct legal candidates, over that of the best five moves, or of all if fewer."""
    evals_value: float = 0.04
    """Agreement of evals with the engine's, move by move, summed over distinct legal candidates; over five, or over
    the number of legal moves if that is smaller."""


@dataclass(slots=True)
class PolicyRewardConfig:
    """Weights of the policy task's correctness, and the values of moves."""

    correctness: PolicyCorrectness = field(default_factory=PolicyCorrectness)
    """Weights within the third tier."""
    halving_loss: float = 0.1
    """A move's value halves for each such win-probability loss."""
    missed_mate: float = 0.3
    """Where a move mates at once, the value of any other best move is multiplied by this; 1: nothing is lost."""


@dataclass(frozen=True, slots=True)
class PolicyLabel:
    """The usable content of a reference completion; its illegal moves are left out."""

    evals_pawns: Mapping[str, float]
    """Its legal candidates with their evals, side to move's view."""
    best: str | None
    """Its best move, None if that is illegal."""


@dataclass(frozen=True, slots=True)
class PolicyTruth:
    """Truth about a prompt by python-chess and by the label, where there is one."""

    legal: frozenset[str]
    """All legal moves, UCI; empty in mate and stalemate, where correctness does not apply."""
    label: PolicyLabel | None


@dataclass(frozen=True, slots=True)
class _Claims:
    """A completion as far as it can be read; at most five candidates count."""

    moves: tuple[str, ...]
    evals: tuple[float | None, ...]
    """One per move, None for no number; empty if there are not as many evals as moves."""
    best: str


def truth_of_policy(prompt: PolicyPrompt, label: str | None) -> PolicyTruth:
    """The legal moves and the label, parsed. Raises LabelError if the label does not parse."""
    legal = frozenset(move.uci() for move in parse_fen(prompt.fen).legal_moves)
    return PolicyTruth(legal, None if label is None else _policy_label(label, legal))


def score_policy(
    completion: str, truth: PolicyTruth, config: PolicyRewardConfig, values: MoveValues | None = None
) -> tuple[dict[str, float], ParseFailure | None]:
    """Every component that applies, as `tier/name`, in [0, 1], and the strict parser's complaint.

    The structure is all 0 without a marker. Where a marker repeats, its first field counts. In mate and
    stalemate no correctness component applies. With `values`, by an engine's evaluations, the label is ignored.
    """
    parsed, fields = parse_policy(completion), policy_fields(completion)
    components = {**_structure(fields), **_parse(fields), **_correctness(_claims(fields), truth, config, values)}
    return components, parsed if isinstance(parsed, ParseFailure) else None


def _policy_label(label: str, legal: frozenset[str]) -> PolicyLabel:
    parsed = require_parsed(label, parse_policy(label))
    candidates = zip(parsed.moves, parsed.evals_pawns, strict=True)
    evals = {move: pawns for move, pawns in candidates if move in legal}
    return PolicyLabel(evals, parsed.best if parsed.best in legal else None)


def _structure(fields: PolicyFields) -> dict[str, float]:
    run = _longest_run_in_order(fields.markers) / len(MARKERS)
    repeats = len(fields.markers) - len(set(fields.markers))
    before, after = len(fields.before.split()), max(0, len(fields.best) - 1)
    extra = before + after + repeats + max(0, len(fields.moves) - MAX_CANDIDATES)
    return {"structure/markers": run, "structure/nothing_else": run / (1 + extra)}


def _longest_run_in_order(markers: tuple[str, ...]) -> int:
    longest = [0] * len(MARKERS)
    for marker in markers:
        place = MARKERS.index(marker)
        longest[place] = 1 + max(longest[:place], default=0)
    return max(longest)


def _parse(fields: PolicyFields) -> dict[str, float]:
    moves, evals = fields.moves, fields.evals
    numbers = sum(parse_number(text) is not None for text in evals)
    return {
        "parse/moves": sum(map(is_uci, moves)) / max(1, len(moves)),
        "parse/evals": min(numbers, len(moves)) / max(1, len(moves), len(evals)),
        "parse/best": float(is_uci(fields.best[0])) if fields.best else 0.0,
    }


def _claims(fields: PolicyFields) -> _Claims:
    aligned = len(fields.evals) == len(fields.moves)
    evals = tuple(map(parse_number, fields.evals[:MAX_CANDIDATES])) if aligned else ()
    return _Claims(fields.moves[:MAX_CANDIDATES], evals, fields.best[0] if fields.best else "")


def _correctness(
    claims: _Claims, truth: PolicyTruth, config: PolicyRewardConfig, values: MoveValues | None
) -> dict[str, float]:
    if not truth.legal:
        return {}
    distinct = len(truth.legal.intersection(claims.moves))
    candidates = distinct / min(MAX_CANDIDATES, len(truth.legal))
    best_legal = claims.best in truth.legal
    components = {
        "correctness/candidates": candidates,
        "correctness/candidates_clean": candidates * distinct / max(1, len(claims.moves)),
        "correctness/best_legal": float(best_legal),
        "correctness/best_among_candidates": float(best_legal and claims.best in claims.moves),
        "correctness/best_is_argmax": float(best_legal and _best_is_argmax(claims)),
    }
    if values:
        return components | _engine_match(claims, values, candidates, config)
    return components | _label_match(claims, truth.label, candidates) if truth.label else components


def _best_is_argmax(claims: _Claims) -> bool:
    numbers = [pawns for pawns in claims.evals if pawns is not None]
    if not numbers or len(numbers) < len(claims.evals):
        return False
    highest = max(numbers)
    return any(move == claims.best and pawns == highest for move, pawns in zip(claims.moves, numbers, strict=True))


def _label_match(claims: _Claims, label: PolicyLabel, candidates: float) -> dict[str, float]:
    components = {}
    if label.evals_pawns:
        named = label.evals_pawns.keys() & set(claims.moves)
        components["correctness/candidates_match"] = len(named) / len(label.evals_pawns)
        components["correctness/evals_match"] = _evals_match(claims, label.evals_pawns)
    if label.best is not None:
        components["correctness/best_match"] = candidates * (claims.best == label.best)
    return components


def _engine_match(
    claims: _Claims, values: MoveValues, candidates: float, config: PolicyRewardConfig
) -> dict[str, float]:
    return {
        "correctness/best_value": candidates * best_move_value(claims.best, values, config),
        "correctness/candidates_value": values.share(claims.moves, config.halving_loss),
        "correctness/evals_value": _evals_match(claims, values.evals_pawns),
    }


def best_move_value(move: str, values: MoveValues, config: PolicyRewardConfig) -> float:
    """Value of a best move in [0, 1]: less where it misses a mate in one, 0 for anything but a legal move."""
    return (config.missed_mate if values.misses_mate(move) else 1.0) * values.value(move, config.halving_loss)


def _evals_match(claims: _Claims, reference: Mapping[str, float]) -> float:
    """Mean agreement with the reference's evals, over its moves, or over five, the most that a completion can name.

    The nearest eval of a repeated move counts, so that replacing the other by an illegal move gains nothing.
    """
    nearest: dict[str, float] = {}
    for move, pawns in zip(claims.moves, claims.evals, strict=False):
        if pawns is not None and move in reference:
            agreement = eval_agreement(pawns, reference[move])
            nearest[move] = max(agreement, nearest.get(move, 0.0))
    return sum(nearest.values()) / min(MAX_CANDIDATES, len(reference))


def eval_agreement(pawns: float, reference: float) -> float:
    """Agreement in (0, 1] of two evals of one move in pawns, same view; 1 only where they are equal.

    Saturating, as a win probability is, but never flat, so that a nearer mate still differs.
    """
    scale = EVAL_SCALE_PAWNS
    distance = abs(pawns / (abs(pawns) + scale) - reference / (abs(reference) + scale))
    return float(0.5 ** (distance / EVAL_TOLERANCE))
