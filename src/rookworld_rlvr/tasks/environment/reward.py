"""Components of an environment completion `A:` in three tiers, each in [0, 1]. python-chess decides what is true.

All components always apply. A component that cannot be read is 0.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...board.transition import REWARD_ILLEGAL, Transition
from ..numbers import parse_number
from ..types import EnvironmentPrompt, require_parsed
from .text import FIELDS, FLAGS, environment_fields, environment_truth, fen_failure, parse_environment

_RANK = re.compile(r"[1-8pnbrqkPNBRQK]{1,8}")
_FEN_FIELDS = tuple(map(re.compile, (r"[wb]", r"-|[KQkq]{1,4}", r"-|[a-h][36]", r"[0-9]{1,4}", r"[0-9]{1,4}")))
_HAS_DIGIT = re.compile(r"[0-9]")
_BLANKS = str.maketrans({str(width): "." * width for width in range(1, 9)} | {"/": ""})
# A promoted piece may be marked with a tilde; python-chess reads the mark but never prints it.
_SQUARE = re.compile(r".~?")
RANKS = 8
# Number of words in a well-formed FEN and in a number.
WORDS_PER_FIELD = (6, 1)


# Weights within the first tier. `fields` is the share of the four fields that are present: a next state with a rank
# separator, and three fields with a digit. `nothing_else` is the same times 4 / (4 + excess), where the excess counts
# fields beyond four, words beyond those of a FEN or a number, and characters of a flag beyond one.
STRUCTURE_WEIGHTS = {"fields": 0.5, "nothing_else": 0.5}
# Weights within the second tier: the FEN parses, the reward is a number, both flags are 0 or 1. The FEN is the longest
# and the most difficult part of the completion.
PARSE_WEIGHTS = {"next_fen": 0.4, "reward": 0.2, "terminated": 0.2, "truncated": 0.2}
# Value of `parse/next_fen` for a FEN that does not parse although all its fields look right: well below 1, so that a
# parsable FEN always earns more, and above 0, so that it can be learned field by field.
UNPARSABLE_FEN_CREDIT = 0.5
# Weight of the 64 squares in the similarity of two FENs; the five other fields have the rest. Above one half, because
# turn and counters change in the same way after every move.
BOARD_SHARE = 0.7
# Penalty for a square or field that should have stayed: n of them divide the share by 1 + n × this, so one alteration
# costs more than it could gain.
ALTERED_PENALTY = 1.0


# Components within the third tier, which compare with the truth: for each its group, which an option scales, and its
# weight. Reward and flags together have two thirds of the next state's weight.
#
# The next state counts only if reward and truncated flag both state correctly whether the move was legal. After an
# illegal move the next state is a copy of the position. Without this rule, a copy with a reward and flags that mix the
# two answers would earn more than either answer if the model is unsure about legality.
CORRECTNESS_WEIGHTS = {
    # The exact next FEN, compared as text; after an illegal move the prompt's own spelling is right too.
    "next_state_exact": ("next_state", 0.4),
    # The next FEN's similarity in what the move changes; 0 for a FEN that does not parse.
    "next_state_similarity": ("next_state", 0.2),
    "reward": ("reward", 0.2),
    "terminated": ("flags", 0.1),
    "truncated": ("flags", 0.1),
}


@dataclass(slots=True)
class EnvironmentWeights:
    """Factors on the weights of the groups of components that compare with the truth. With 1 all keep their weights."""

    next_state: float = 1.0
    """Factor on the next FEN, exact and by similarity."""
    reward: float = 1.0
    """Factor on the true reward."""
    flags: float = 1.0
    """Factor on the true flags, terminated and truncated."""


@dataclass(slots=True)
class EnvironmentRewardConfig:
    """Options of the environment task's reward."""

    weights: EnvironmentWeights = field(default_factory=EnvironmentWeights)
    """Factors on the weights within the third tier."""


EnvironmentTruth = tuple[str, Transition]
"""A prompt's FEN, and the true transition of its move according to python-chess."""


@dataclass(frozen=True, slots=True)
class _ParsedFields:
    """Content of a completion as far as it can be read; None for text that is not a number or flag."""

    next_fen: str
    fen_parses: bool
    reward: float | None
    terminated: bool | None
    truncated: bool | None


def truth_of_environment(prompt: EnvironmentPrompt, label: str | None) -> EnvironmentTruth:
    """Return python-chess's transition. A label is only checked to parse; if it differs, python-chess decides.

    Raises LabelError if the label does not parse.
    """
    if label is not None:
        require_parsed(label, parse_environment(label))
    return prompt.fen, environment_truth(prompt)


def environment_components(completion: str, truth: EnvironmentTruth) -> dict[str, float]:
    """Return every component as `tier/name`, in [0, 1].

    The structure is all 0 if no field is recognised. If there are more than four fields, the first four count.
    """
    fields = environment_fields(completion)
    parsed_fields = _parse_fields(fields)
    return {**_structure(fields), **_parse(parsed_fields), **_correctness(parsed_fields, truth)}


def well_formed_share(fen: str) -> float:
    """Return the share in [0, 1] of six FEN fields that look right. The placement counts by the share of its ranks.

    Words and ranks beyond those of a FEN lower the share. 1 does not mean that the FEN parses.
    """
    placement, *words = fen.split(" ")
    right = sum(pattern.fullmatch(word) is not None for pattern, word in zip(_FEN_FIELDS, words, strict=False))
    ranks = placement.split("/")
    full = sum(_RANK.fullmatch(rank) is not None and len(expand_placement(rank)) == RANKS for rank in ranks)
    return (min(full, RANKS) / max(RANKS, len(ranks)) + right) / max(1 + len(_FEN_FIELDS), 1 + len(words))


def _parse_fields(fields: tuple[str, ...]) -> _ParsedFields:
    next_fen, reward, terminated, truncated = (*fields, *[""] * len(FIELDS))[: len(FIELDS)]
    return _ParsedFields(
        next_fen=next_fen,
        fen_parses=fen_failure(next_fen) is None,
        reward=parse_number(reward),
        terminated=FLAGS.get(terminated),
        truncated=FLAGS.get(truncated),
    )


def _structure(fields: tuple[str, ...]) -> dict[str, float]:
    there = ("/" in fields[0]) + sum(_HAS_DIGIT.search(text) is not None for text in fields[1 : len(FIELDS)])
    share = there / len(FIELDS)
    nothing_else = share * len(FIELDS) / (len(FIELDS) + _excess_text(fields))
    return {"structure/fields": share, "structure/nothing_else": nothing_else}


def _excess_text(fields: tuple[str, ...]) -> int:
    """Return the amount of text beyond a well-formed completion. Text that follows one belongs to its last field."""
    words = (len(text.split()) - own for text, own in zip(fields, WORDS_PER_FIELD, strict=False))
    characters = (len(flag) - 1 for flag in fields[len(WORDS_PER_FIELD) : len(FIELDS)])
    return sum(max(0, extra) for extra in (len(fields) - len(FIELDS), *words, *characters))


def _parse(parsed_fields: _ParsedFields) -> dict[str, float]:
    next_fen = 1.0 if parsed_fields.fen_parses else UNPARSABLE_FEN_CREDIT * well_formed_share(parsed_fields.next_fen)
    return {
        "parse/next_fen": next_fen,
        "parse/reward": float(parsed_fields.reward is not None),
        "parse/terminated": float(parsed_fields.terminated is not None),
        "parse/truncated": float(parsed_fields.truncated is not None),
    }


def _correctness(parsed_fields: _ParsedFields, truth: EnvironmentTruth) -> dict[str, float]:
    _, transition = truth
    return {
        **_next_state(parsed_fields, truth),
        "correctness/reward": float(parsed_fields.reward == transition.reward),
        "correctness/terminated": float(parsed_fields.terminated == transition.terminated),
        "correctness/truncated": float(parsed_fields.truncated == transition.truncated),
    }


def _next_state(parsed_fields: _ParsedFields, truth: EnvironmentTruth) -> dict[str, float]:
    """Return the next-state components. After an illegal move the prompt's own spelling of the FEN counts as true."""
    before, transition = truth
    after, guess = transition.next_fen, parsed_fields.next_fen
    if transition.truncated:
        before, guess = after, after if guess == before else guess
    counts = (
        parsed_fields.fen_parses
        and (parsed_fields.reward == REWARD_ILLEGAL) == parsed_fields.truncated == transition.truncated
    )
    return {
        "correctness/next_state_exact": float(counts and guess == after),
        "correctness/next_state_similarity": changed_similarity(before, after, guess) if counts else 0.0,
    }


def changed_similarity(before: str, after: str, predicted: str) -> float:
    """Return the similarity in [0, 1] of a predicted next FEN to the true one, on the squares and fields that change.

    The similarity of the squares is the share of changed squares predicted right, divided by 1 + penalty × the number
    of altered squares that should not change. The same formula applies to turn, castling, en passant and the two
    counters. The result is the weighted mean of the two: 1 exactly if `predicted` equals `after`, 0 if it copies
    `before` after a legal move. If nothing changes (an illegal move), the share is 1 and only alterations lower it.
    All three must be FENs that parse. Fields are compared as text.
    """
    (squares, *fields), (new_squares, *new_fields), (guessed_squares, *guessed_fields) = (
        fen.split(" ") for fen in (before, after, predicted)
    )
    placements = (expand_placement(text) for text in (squares, new_squares, guessed_squares))
    board = _share_of_changes(zip(*placements, strict=True))
    rest = _share_of_changes(zip(fields, new_fields, guessed_fields, strict=True))
    return BOARD_SHARE * board + (1 - BOARD_SHARE) * rest


def expand_placement(placement: str) -> Sequence[str]:
    """Return the squares of a placement from a8 to h1, `.` for an empty one; 64 if the placement is well-formed."""
    squares = placement.translate(_BLANKS)
    return _SQUARE.findall(squares) if "~" in squares else squares


def _share_of_changes(triples: Iterable[tuple[str, str, str]]) -> float:
    """Return the share of changes predicted right, lowered by alterations. A triple holds old, new and guessed text."""
    changed = right = altered = 0
    for old, new, guess in triples:
        if old != new:
            changed += 1
            right += guess == new
        else:
            altered += guess != new
    return (right / changed if changed else 1.0) / (1 + ALTERED_PENALTY * altered)
