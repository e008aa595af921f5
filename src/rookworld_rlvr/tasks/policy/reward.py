"""Components of a policy completion `P:` in three tiers, each in [0, 1].

The prompt, the source of move values and the label decide which components apply. The completion does not, so it gains
nothing by leaving something out. No component falls if a word changes from no move to an illegal move or from an
illegal to a legal one, or from no number to a number.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ...board.fen import parse_fen
from ...board.moves import is_uci
from ...stockfish.move_values import MoveValues
from ..numbers import parse_number
from ..types import PolicyPrompt, require_parsed
from .text import MARKERS, MAX_CANDIDATES, PolicyFields, parse_policy, policy_fields

# Weights within the first tier. `markers` is the length of the longest sequence of M, E, B in order, over
# three; `nothing_else` is that divided by 1 + words before, words after, repeated markers and candidates beyond five.
# Both have the same weight, because a completion that fails one of them cannot be read safely.
STRUCTURE_WEIGHTS = {"markers": 0.5, "nothing_else": 0.5}
# Weights within the second tier: share of candidate words that are UCI; share of evals that are numbers, one per
# candidate; whether the best move is UCI. Moves are most of the text and have most of the weight.
PARSE_WEIGHTS = {"moves": 0.4, "evals": 0.3, "best": 0.3}
# Evals are compared as x / (|x| + scale), so that an eval of three pawns is half-way to a mate. Agreement halves for
# each distance of a tenth on that scale, which runs from -1 to 1: about a third of a pawn in an equal position.
EVAL_SCALE_PAWNS, EVAL_TOLERANCE = 3.0, 0.1


# Components within the third tier: for each its group, which an option scales, and its weight. The `…_match` components
# apply only with a label, the `…_value` components only with an engine's evaluations, and never both.
#
# `best_match` and `best_value` are multiplied by `candidates`, so duplicates cost most of them. Five distinct legal
# moves always earn more than one move written five times, although move values have the larger weight.
CORRECTNESS_WEIGHTS = {
    # Number of distinct legal candidates, over five or the number of legal moves if that is smaller.
    "candidates": ("legality", 0.22),
    # `candidates` times the share of candidate words that are distinct and legal. Duplicates cost little.
    "candidates_clean": ("legality", 0.04),
    # A legal best move.
    "best_legal": ("legality", 0.15),
    # A legal best move that is one of the candidates.
    "best_among_candidates": ("best", 0.03),
    # A legal best move whose own eval is not exceeded by another candidate's (every eval must be a number). Small,
    # because equal evals earn it without effort.
    "best_is_argmax": ("best", 0.02),
    # Share of the label's candidates that are named.
    "candidates_match": ("candidates", 0.06),
    # The label's best move, times `candidates`.
    "best_match": ("best", 0.3),
    # Mean agreement of the evals with the label's, by move; 0 for a move not named or without a number. Repeated and
    # illegal candidates count in the mean, too.
    "evals_match": ("evals", 0.06),
    # Value of the best move (see `move_values`), times `candidates`; 0 if the move is illegal.
    "best_value": ("best", 0.42),
    # Summed values of distinct legal candidates, over those of the best five (or fewer) legal moves.
    "candidates_value": ("candidates", 0.08),
    # Agreement of the evals with the engine's, summed over distinct legal candidates and divided by five, or by the
    # number of legal moves if that is smaller, but at least by the number of candidates.
    "evals_value": ("evals", 0.04),
}


@dataclass(slots=True)
class PolicyWeights:
    """Factors on the weights of the groups of components for good moves. With 1 all keep their weights."""

    best: float = 1.0
    """Factor on the quality of the best move: its value or its agreement with the label, and with the candidates."""
    candidates: float = 1.0
    """Factor on the quality of the candidates: their values, or their agreement with the label's."""
    legality: float = 1.0
    """Factor on legal and distinct moves."""
    evals: float = 1.0
    """Factor on the evals' agreement with the engine's or the label's."""


@dataclass(slots=True)
class PolicyRewardConfig:
    """Options of the policy task's reward: weights of the groups of components, and the values of moves."""

    weights: PolicyWeights = field(default_factory=PolicyWeights)
    """Factors on the weights within the third tier."""
    halving_loss: float = 0.1
    """Win-probability loss that halves a move's value."""
    missed_mate: float = 0.3
    """Factor on the value of a best move if it does not mate at once but another move does; 1: no reduction."""


@dataclass(frozen=True, slots=True)
class PolicyLabel:
    """Usable content of a reference completion. Its illegal moves are left out."""

    evals_pawns: Mapping[str, float]
    """Legal candidates with their evals, from the side to move's view."""
    best: str | None
    """Best move; None if it is illegal."""

    def best_moves(self) -> frozenset[str]:
        """Return all candidates with the highest eval, and the label's own best move if it is not a candidate."""
        highest = max(self.evals_pawns.values(), default=None)
        moves = {move for move, pawns in self.evals_pawns.items() if pawns == highest}
        return frozenset(moves if self.best in self.evals_pawns or self.best is None else {*moves, self.best})


@dataclass(frozen=True, slots=True)
class PolicyTruth:
    """Legal moves of a prompt's position according to python-chess, and the label if there is one."""

    legal: frozenset[str]
    """All legal moves, UCI; empty in mate and stalemate, where correctness does not apply."""
    label: PolicyLabel | None


@dataclass(frozen=True, slots=True)
class _ParsedFields:
    """Content of a completion as far as it can be read; at most five candidates count."""

    moves: tuple[str, ...]
    evals: tuple[float | None, ...]
    """One per move, None if it is not a number; empty if there are not as many evals as moves."""
    best: str


def truth_of_policy(prompt: PolicyPrompt, label: str | None) -> PolicyTruth:
    """Return the legal moves and the parsed label. Raises LabelError if the label does not parse."""
    legal = frozenset(move.uci() for move in parse_fen(prompt.fen).legal_moves)
    return PolicyTruth(legal, None if label is None else policy_label(label, legal))


def policy_components(
    completion: str, truth: PolicyTruth, config: PolicyRewardConfig, values: MoveValues | None = None
) -> dict[str, float]:
    """Return every component that applies, as `tier/name`, in [0, 1].

    The structure is all 0 without a marker. If a marker repeats, its first field counts. In mate and stalemate no
    correctness component applies. With `values`, which come from an engine's evaluations, the label is ignored.
    """
    fields = policy_fields(completion)
    return {**_structure(fields), **_parse(fields), **_correctness(_parse_fields(fields), truth, config, values)}


def policy_label(label: str, legal: frozenset[str]) -> PolicyLabel:
    """Return the label without the moves that are not in `legal`. Raises LabelError if it does not parse."""
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


def _parse_fields(fields: PolicyFields) -> _ParsedFields:
    aligned = len(fields.evals) == len(fields.moves)
    evals = tuple(map(parse_number, fields.evals[:MAX_CANDIDATES])) if aligned else ()
    return _ParsedFields(fields.moves[:MAX_CANDIDATES], evals, fields.best[0] if fields.best else "")


def _correctness(
    parsed_fields: _ParsedFields, truth: PolicyTruth, config: PolicyRewardConfig, values: MoveValues | None
) -> dict[str, float]:
    if not truth.legal:
        return {}
    distinct = len(truth.legal.intersection(parsed_fields.moves))
    candidates = distinct / min(MAX_CANDIDATES, len(truth.legal))
    best_legal = parsed_fields.best in truth.legal
    components = {
        "correctness/candidates": candidates,
        "correctness/candidates_clean": candidates * distinct / max(1, len(parsed_fields.moves)),
        "correctness/best_legal": float(best_legal),
        "correctness/best_among_candidates": float(best_legal and parsed_fields.best in parsed_fields.moves),
        "correctness/best_is_argmax": float(best_legal and _best_is_argmax(parsed_fields)),
    }
    if values:
        return components | _engine_match(parsed_fields, values, candidates, config)
    return components | _label_match(parsed_fields, truth.label, truth.legal, candidates) if truth.label else components


def _best_is_argmax(parsed_fields: _ParsedFields) -> bool:
    numbers = [pawns for pawns in parsed_fields.evals if pawns is not None]
    if not numbers or len(numbers) < len(parsed_fields.evals):
        return False
    highest = max(numbers)
    return any(
        move == parsed_fields.best and pawns == highest
        for move, pawns in zip(parsed_fields.moves, numbers, strict=True)
    )


def _label_match(
    parsed_fields: _ParsedFields, label: PolicyLabel, legal: Set[str], candidates: float
) -> dict[str, float]:
    components = {}
    if label.evals_pawns:
        named = label.evals_pawns.keys() & set(parsed_fields.moves)
        components["correctness/candidates_match"] = len(named) / len(label.evals_pawns)
        components["correctness/evals_match"] = _evals_match(parsed_fields, label.evals_pawns, legal)
    if label.best is not None:
        components["correctness/best_match"] = candidates * (parsed_fields.best == label.best)
    return components


def _engine_match(
    parsed_fields: _ParsedFields, values: MoveValues, candidates: float, config: PolicyRewardConfig
) -> dict[str, float]:
    return {
        "correctness/best_value": candidates * best_move_value(parsed_fields.best, values, config),
        "correctness/candidates_value": values.share(parsed_fields.moves, config.halving_loss),
        "correctness/evals_value": _evals_match(parsed_fields, values.evals_pawns, values.evals_pawns.keys()),
    }


def best_move_value(move: str, values: MoveValues, config: PolicyRewardConfig) -> float:
    """Return a best move's value in [0, 1]: reduced if it misses a mate in one, 0 for anything but a legal move."""
    return (config.missed_mate if values.misses_mate(move) else 1.0) * values.value(move, config.halving_loss)


def _evals_match(parsed_fields: _ParsedFields, reference: Mapping[str, float], legal: Set[str]) -> float:
    """Return the mean agreement with the reference's evals, over its moves, or over five if it has more.

    Of a repeated move the nearest eval counts, so that replacing the other one by an illegal move gains nothing. The
    mean is over at least the reference's moves that are named and the candidates that repeat one or are illegal. So
    several guesses at the eval of one move earn less than one guess, also where there are few legal moves.
    """
    nearest: dict[str, float] = {}
    for move, pawns in zip(parsed_fields.moves, parsed_fields.evals, strict=False):
        if pawns is not None and move in reference:
            agreement = eval_agreement(pawns, reference[move])
            nearest[move] = max(agreement, nearest.get(move, 0.0))
    named = set(parsed_fields.moves)
    superfluous = len(parsed_fields.moves) - len(named & legal)
    return sum(nearest.values()) / max(min(MAX_CANDIDATES, len(reference)), len(named & reference.keys()) + superfluous)


def eval_agreement(pawns: float, reference: float) -> float:
    """Return the agreement in (0, 1] of two evals of one move in pawns, from the same view; 1 only if they are equal.

    It saturates, as a win probability does, but is never flat, so that a nearer mate still makes a difference.
    """
    scale = EVAL_SCALE_PAWNS
    distance = abs(pawns / (abs(pawns) + scale) - reference / (abs(reference) + scale))
    return float(0.5 ** (distance / EVAL_TOLERANCE))
