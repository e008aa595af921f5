"""Components of an environment completion `A:` in three tiers, each in [0, 1]; python-chess decides what is true.

All components always apply. One that cannot be read is 0.
"""

import re
from dataclasses import dataclass, field

from ..board.transition import REWARD_ILLEGAL
from ..tasks.environment import FIELDS, FLAGS, environment_fields, environment_truth, fen_failure, parse_environment
from ..tasks.policy import parse_number
from ..tasks.types import EnvironmentCompletion, EnvironmentPrompt, ParseFailure, require_parsed
from .similarity import changed_similarity, expand_placement

_RANK = re.compile(r"[1-8pnbrqkPNBRQK]{1,8}")
_FEN_FIELDS = tuple(map(re.compile, (r"[wb]", r"-|[KQkq]{1,4}", r"-|[a-h][36]", r"[0-9]{1,4}", r"[0-9]{1,4}")))
_HAS_DIGIT = re.compile(r"[0-9]")
RANKS = 8
# Of a FEN and of a number.
WORDS = (6, 1)


# Weights within the first tier. `fields` is the share of the four that are there: a next state with a rank separator,
# three fields with a digit. `nothing_else` is the same times 4 / (4 + excess), where the excess counts fields beyond
# four, words in a field beyond its own, and characters of a flag beyond one.
STRUCTURE_WEIGHTS = {"fields": 0.5, "nothing_else": 0.5}
# Weights within the second tier: the FEN parses, the reward is a number, both flags are 0 or 1. The FEN is most of the
# completion's text, and of its difficulty.
PARSE_WEIGHTS = {"next_fen": 0.4, "reward": 0.2, "terminated": 0.2, "truncated": 0.2}
# Value of `parse/next_fen` for a FEN that does not parse although all its fields look right: well below 1, so that a
# parsable FEN always earns more, and above 0, so that it can be learned field by field.
UNPARSABLE_FEN_CREDIT = 0.5


@dataclass(slots=True)
class EnvironmentCorrectness:
    """Weights of the components for the truth. Reward and flags have half the weight of the next state.

    The next state counts only where reward and truncated flag both say rightly whether the move was legal. After an
    illegal move it is a copy, so that otherwise a copy between the two answers would earn more than either in doubt.
    """

    next_state_exact: float = 0.4
    """The next FEN is the true one, as text; after an illegal move the prompt's own spelling is right too."""
    next_state_similarity: float = 0.2
    """Similarity of what changed; 0 for a FEN that does not parse."""
    reward: float = 0.2
    """The reward is the true one."""
    terminated: float = 0.1
    """The flag is the true one."""
    truncated: float = 0.1
    """The flag is the true one."""


@dataclass(slots=True)
class EnvironmentRewardConfig:
    """Weights of the environment task's correctness."""

    correctness: EnvironmentCorrectness = field(default_factory=EnvironmentCorrectness)
    """Weights within the third tier."""


@dataclass(frozen=True, slots=True)
class EnvironmentTruth:
    """Truth about a prompt by python-chess."""

    before: str
    """The prompt's FEN."""
    after: EnvironmentCompletion


@dataclass(frozen=True, slots=True)
class _Claims:
    """A completion as far as it can be read; None for what is no number or flag."""

    next_fen: str
    fen_parses: bool
    reward: float | None
    terminated: bool | None
    truncated: bool | None


def truth_of_environment(prompt: EnvironmentPrompt, label: str | None) -> EnvironmentTruth:
    """python-chess's transition. A label is checked to parse, and where it differs python-chess decides.

    Raises LabelError if the label does not parse.
    """
    if label is not None:
        require_parsed(label, parse_environment(label))
    return EnvironmentTruth(prompt.fen, environment_truth(prompt))


def score_environment(completion: str, truth: EnvironmentTruth) -> tuple[dict[str, float], ParseFailure | None]:
    """Every component as `tier/name`, in [0, 1], and what the strict parser says.

    The structure is all 0 where no field is recognised. Of more than four fields the first four count.
    """
    parsed, fields = parse_environment(completion), environment_fields(completion)
    claims = _claims(fields)
    components = {**_structure(fields), **_parse(claims), **_correctness(claims, truth)}
    return components, parsed if isinstance(parsed, ParseFailure) else None


def well_formed_share(fen: str) -> float:
    """Share in [0, 1] of six FEN fields that look right, of the placement the share of its ranks.

    Words and ranks beyond those of a FEN lower it. 1 does not mean that the FEN parses.
    """
    placement, *words = fen.split(" ")
    right = sum(pattern.fullmatch(word) is not None for pattern, word in zip(_FEN_FIELDS, words, strict=False))
    ranks = placement.split("/")
    full = sum(_RANK.fullmatch(rank) is not None and len(expand_placement(rank)) == RANKS for rank in ranks)
    return (min(full, RANKS) / max(RANKS, len(ranks)) + right) / max(1 + len(_FEN_FIELDS), 1 + len(words))


def _claims(fields: tuple[str, ...]) -> _Claims:
    next_fen, reward, terminated, truncated = (*fields, *[""] * len(FIELDS))[: len(FIELDS)]
    return _Claims(
        next_fen=next_fen,
        fen_parses=fen_failure(next_fen) is None,
        reward=parse_number(reward),
        terminated=FLAGS.get(terminated),
        truncated=FLAGS.get(truncated),
    )


def _structure(fields: tuple[str, ...]) -> dict[str, float]:
    there = ("/" in fields[0]) + sum(_HAS_DIGIT.search(text) is not None for text in fields[1 : len(FIELDS)])
    share = there / len(FIELDS)
    nothing_else = share * len(FIELDS) / (len(FIELDS) + _too_much(fields))
    return {"structure/fields": share, "structure/nothing_else": nothing_else}


def _too_much(fields: tuple[str, ...]) -> int:
    """Amount of text that no well-formed completion holds. Text behind one stands in its last field."""
    words = (len(text.split()) - own for text, own in zip(fields, WORDS, strict=False))
    characters = (len(flag) - 1 for flag in fields[len(WORDS) : len(FIELDS)])
    return sum(max(0, extra) for extra in (len(fields) - len(FIELDS), *words, *characters))


def _parse(claims: _Claims) -> dict[str, float]:
    partial = 0.0 if claims.fen_parses else UNPARSABLE_FEN_CREDIT * well_formed_share(claims.next_fen)
    return {
        "parse/next_fen": 1.0 if claims.fen_parses else partial,
        "parse/reward": float(claims.reward is not None),
        "parse/terminated": float(claims.terminated is not None),
        "parse/truncated": float(claims.truncated is not None),
    }


def _correctness(claims: _Claims, truth: EnvironmentTruth) -> dict[str, float]:
    after = truth.after
    return {
        **_next_state(claims, truth),
        "correctness/reward": float(claims.reward == after.reward),
        "correctness/terminated": float(claims.terminated == after.terminated),
        "correctness/truncated": float(claims.truncated == after.truncated),
    }


def _next_state(claims: _Claims, truth: EnvironmentTruth) -> dict[str, float]:
    """After an illegal move the state before is compared as python-chess prints it, which is the truth."""
    before, after, guess = truth.before, truth.after.next_fen, claims.next_fen
    if truth.after.truncated:
        before, guess = after, after if guess == before else guess
    counts = claims.fen_parses and (claims.reward == REWARD_ILLEGAL) == claims.truncated == truth.after.truncated
    return {
        "correctness/next_state_exact": float(counts and guess == after),
        "correctness/next_state_similarity": changed_similarity(before, after, guess) if counts else 0.0,
    }
