"""Components of the answer to a chat prompt in three tiers, each in [0, 1].

A model that knows neither the form nor chess has a way up, because each step has a higher *level* than the one before:

    0     no word with the form of a move
    0.16  such a word
    0.28  a legal move somewhere in the text
    0.5   one answer in another known form, or a move alone, or the form that was asked for with more than a move in it
    1     one answer in the form that was asked for, a move and nothing else

All components are multiplied by the level. With the default weights of the tiers a completion of a higher level earns
more than any of a lower one: whatever its move, its end and the words around it. Two different answers, a list of moves
and a copy of the prompt have no answer and at most the third level. So does thinking that does not end.

Whether a component applies depends on the prompt, the source of move values and the label, never on the completion.
"""

from dataclasses import dataclass, field

from ...board.fen import parse_fen
from ...board.moves import is_uci
from ...stockfish.move_values import MoveValues
from ..types import FailureReason, LabelError, ParseFailure
from .prompts import ChatPrompt, Form
from .reader import ChatAnswer, ChatText, answer_of, last_word, move_words, own_words, take_apart

# Levels of a completion; see above. They lie so far apart that a level's worst completion earns more than the best of
# the level below. The worst structure is 0.75 of the best one for an answer, and 0.6 for other text. By its content a
# completion of level x earns from 1 + 0.2x to 1 + 1.5x times what it earns by its structure alone.
NOISE, MOVE_LIKE, LEGAL_SOMEWHERE, OTHER_FORM, ASKED_FORM = 0.0, 0.16, 0.28, 0.5, 1.0
# Words around the move that halve `alone`.
HALVING_WORDS = 8

# Weights within the first tier. `form` is the level; `one_answer` is divided by the number of different moves if there
# is no answer; `ended` says that the completion ended by itself, which an answer that counts has to.
STRUCTURE_WEIGHTS = {"form": 0.6, "one_answer": 0.15, "ended": 0.25}
# Weights within the second tier: there is a move; few words beside it, which applies if the prompt asks for none.
PARSE_WEIGHTS = {"move": 0.8, "alone": 0.2}
# Components within the third tier: for each its group, which an option scales, and its weight. `match` applies only
# with a label, `value` only with an engine's evaluations, and never both.
CORRECTNESS_WEIGHTS = {
    # A legal answer. Without an answer, the share of the different moves in the text that are legal.
    "legal": ("legality", 0.2),
    # The label's move. Without an answer, the last move's, divided by the number of different moves.
    "match": ("best", 0.6),
    # Value of the move (see `move_values`), in the same way; 0 if it is illegal.
    "value": ("best", 0.8),
}


@dataclass(slots=True)
class ChatWeights:
    """Factors on the weights of the groups of components for good moves. With 1 all keep their weights."""

    best: float = 1.0
    """Factor on the quality of the move: its value or its agreement with the label."""
    legality: float = 1.0
    """Factor on a legal move."""


@dataclass(slots=True)
class ChatRewardConfig:
    """Options of the chat task's reward: weights of the groups of components, and the values of moves."""

    weights: ChatWeights = field(default_factory=ChatWeights)
    """Factors on the weights within the third tier."""
    halving_loss: float = 0.1
    """Win-probability loss that halves a move's value."""
    missed_mate: float = 0.3
    """Factor on the value of a move that does not mate at once although another move does; 1: no reduction."""


@dataclass(frozen=True, slots=True)
class ChatTruth:
    """Legal moves of a prompt's position according to python-chess, and the label if there is one."""

    legal: frozenset[str]
    """All legal moves, UCI; empty in mate and stalemate, where correctness does not apply."""
    label: str | None
    """The best move in UCI; None if there is no label, or an illegal one."""


@dataclass(frozen=True, slots=True)
class _Content:
    """Content of a completion by which it is scored."""

    level: float
    move: str
    """Move of the answer, else the last move of the text; empty if it is no move of the position's notation."""
    different: int
    """Number of different moves among which `move` was found, 1 for an answer."""
    legal_share: float
    """Share of legal moves among them."""


def truth_of_chat(prompt: ChatPrompt, label: str | None) -> ChatTruth:
    """Return the legal moves and the label, a move in UCI. Raises LabelError for a label that is none."""
    legal = frozenset(move.uci() for move in parse_fen(prompt.fen).legal_moves)
    if label is None:
        return ChatTruth(legal, None)
    if not is_uci(label):
        raise LabelError(f"expected a label that is a move in UCI, got {label!r}")
    move = move_words(label, prompt.fen)[0].move
    return ChatTruth(legal, move if move in legal else None)


def score_chat(
    completion: str,
    prompt: ChatPrompt,
    truth: ChatTruth,
    config: ChatRewardConfig,
    values: MoveValues | None = None,
    finished: bool = True,
) -> tuple[dict[str, float], ParseFailure | None]:
    """Return every component that applies, as `tier/name`, in [0, 1], and why the answer is not valid, if it is not.

    All are 0 without a word that has the form of a move. In mate and stalemate no correctness component applies. With
    `values`, which come from an engine's evaluations, the label is ignored. `finished` says whether the completion
    ended by itself.
    """
    text = take_apart(completion, prompt, finished)
    answer = answer_of(text, completion, prompt, finished)
    content = _content(text, answer, truth)
    level = content.level
    components = {
        "structure/form": level,
        "structure/one_answer": level / content.different,
        "structure/ended": level * finished,
        "parse/move": level,
    }
    if not prompt.reasons:
        extra = max(0, own_words(completion) - 1)
        components["parse/alone"] = level * HALVING_WORDS / (HALVING_WORDS + extra)
    if truth.legal:
        components["correctness/legal"] = level * content.legal_share
        if values:
            value = chat_move_value(content.move, values, config)
            components["correctness/value"] = level * value / content.different
        elif truth.label:
            components["correctness/match"] = level * (content.move == truth.label) / content.different
    return components, answer if isinstance(answer, ParseFailure) else answer.failure


def chat_move_value(move: str, values: MoveValues, config: ChatRewardConfig) -> float:
    """Return a move's value in [0, 1]: reduced if it misses a mate in one, 0 for anything but a legal move."""
    return (config.missed_mate if values.misses_mate(move) else 1.0) * values.value(move, config.halving_loss)


def _content(text: ChatText, answer: ChatAnswer | ParseFailure, truth: ChatTruth) -> _Content:
    level = _answer_level(text, answer)
    if level and isinstance(answer, ChatAnswer):
        return _Content(level, answer.move, 1, float(answer.move in truth.legal))
    words = text.words or text.thoughts
    if not words:
        return _Content(NOISE, "", 1, 0.0)
    different = {word.key for word in words}
    legal = len(different & truth.legal)
    level = LEGAL_SOMEWHERE if legal else MOVE_LIKE
    return _Content(level, last_word(words).move, len(different), legal / len(different))


def _answer_level(text: ChatText, answer: ChatAnswer | ParseFailure) -> float:
    """Return the level of an answer; 0 if the text has none that counts as one."""
    if isinstance(answer, ParseFailure) or not answer.is_move:
        return NOISE
    if answer.failure is None or answer.failure.reason is FailureReason.cut_off:
        return ASKED_FORM
    return OTHER_FORM if answer.form is not Form.bare or text.alone else NOISE
