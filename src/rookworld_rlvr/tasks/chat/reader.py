r"""Reader of the answers to chat prompts.

The text read is the prefill and the completion. Behind the last `</think>`, the last answer in a known form counts:
`<answer>`, `<uci_move>`, `<move>`, `\boxed{}`, `FINAL_ANSWER:`, `Final Answer:` or `MOVE:`. Without one, the last move
counts, one in UCI before one in SAN. Moves are read as people and models write them: in UCI, in SAN with or without
marks, with move numbers, markdown, quotes and punctuation, castling also as king takes rook.

Two different answers are unread, or a list of all moves would be one. So is thinking that does not end.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import chess

from ...board.fen import parse_fen
from ...board.moves import is_uci
from ..types import FailureReason, ParseFailure
from .prompts import ChatPrompt, Form

# Distinct words times positions: more than a step's completions have.
CACHED_WORDS = 8192
# Characters of a text that a failure shows.
SHOWN = 60

_UCI = r"[a-h][1-8][-x]?[a-h][1-8](?:=?[QRBNqrbn])?|[A-H][1-8][A-H][1-8][QRBN]?"
_SAN = r"[KQRBN][a-h]?[1-8]?[-x]?[a-h][1-8]|(?:[a-h]x)?[a-h][1-8](?:=?[QRBNqrbn])?|[Oo0]-[Oo0](?:-[Oo0])?"
_MARKS = r"[+#]{0,2}[!?]{0,2}"
_AROUND = r"""[\s*_`"'“”‘’.,;:()\[\]$]*"""
# A move with no letter or digit beside it.
_MOVE = re.compile(rf"(?<![^\W_])(?:(?P<uci>{_UCI})|{_SAN}){_MARKS}(?![^\W_])")
# A move and nothing else but its number and what is written around it.
_ALONE = re.compile(rf"{_AROUND}(?:[0-9]{{1,3}}\.{{1,3}}{_AROUND})?(?:{_UCI}|{_SAN}){_MARKS}{_AROUND}")
# The text of a tag does not contain the tag again, so that a tag that is not closed ends where the next one begins.
_ANSWER = re.compile(
    r"<(?P<tag>(?i:answer|uci_move|move))>(?P<tagged>(?:(?!<(?P=tag)>).)*?)(?:(?P<close></(?P=tag)>)|\Z)"
    r"|\\boxed\{(?:\\[a-z]+\{)?(?P<boxed>[^{}]*)\}"
    r"|(?:(?P<final>\b(?i:final[_ ]answer))|(?<![^\W_])MOVE)[*_`]{0,3}:\s*(?P<line>[^\n]*)",
    re.DOTALL,
)
_MARKUP = re.compile(
    r"</?(?i:answer|uci_move|move|think)>|\\boxed\{|\}|(?:\b(?i:final[_ ]answer)|(?<![^\W_])MOVE)[*_`]{0,3}:"
)


@dataclass(frozen=True, slots=True)
class MoveWord:
    """A word with the form of a move."""

    text: str
    """The word as it is written."""
    move: str
    """The move in UCI: that of a legal SAN, or any in UCI form, legal or not; empty for SAN that is not legal here."""
    in_uci: bool
    """Whether the word is written in UCI or as a pair of squares."""

    @property
    def key(self) -> str:
        """Move, or the word if it is no move here. Two moves with the same key are one."""
        return self.move or self.text


@dataclass(frozen=True, slots=True)
class FormedAnswer:
    """An answer in a known form other than `bare`."""

    form: Form
    content: str
    """Text within the form, without surrounding blanks."""
    closed: bool
    """Whether the form is complete; False for a tag that is not closed."""
    words: tuple[MoveWord, ...]
    """Moves in the content."""
    followed: bool
    """Whether another move follows the last answer, which is a line. A tag marks its answer wherever it is."""


@dataclass(frozen=True, slots=True)
class ChatText:
    """A completion taken apart."""

    answers: tuple[FormedAnswer, ...]
    """Answers behind the thinking; none if the thinking does not end."""
    words: tuple[MoveWord, ...]
    """All moves behind the thinking, in a form or not; none if it does not end."""
    thoughts: tuple[MoveWord, ...]
    """All moves of the thinking, if there are none behind it."""
    alone: bool
    """Whether the completion, without its thinking, is one move and nothing else."""
    unfinished: bool
    """Whether the completion is thinking that does not end."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Answer of a completion."""

    text: str
    """Content of the answer as it is written, without surrounding blanks."""
    form: Form
    """Form in which it was found."""
    move: str
    """The move in UCI: that of a legal SAN, or any in UCI form, legal or not; empty if it is neither."""
    is_move: bool
    """Whether there is a word with the form of a move, in UCI or SAN."""
    failure: ParseFailure | None
    """Why the answer is not valid, although it can be read."""

    @property
    def valid(self) -> bool:
        """True if the completion ended by itself, with exactly one answer, in the form asked for, that is a move."""
        return self.failure is None


def read_answer(completion: str, prompt: ChatPrompt, finished: bool = True) -> ChatAnswer | ParseFailure:
    """Return the answer of a completion, or why it has none. `finished` says whether the completion ended by itself.

    >>> from rookworld_rlvr.tasks.chat.prompts import Notation
    >>> prompt = ChatPrompt(chess.STARTING_FEN, Form.answer, Notation.uci, thinks=False, reasons=False, prefill="")
    >>> read_answer("<answer>Nf3</answer>", prompt).move
    'g1f3'
    >>> read_answer("<answer>e4</answer> or <answer>d4</answer>", prompt)
    ParseFailure(reason=<FailureReason.two_answers: 'two_answers'>, detail='e4 d4')
    """
    return answer_of(take_apart(completion, prompt, finished), completion, prompt, finished)


def take_apart(completion: str, prompt: ChatPrompt, finished: bool = True) -> ChatText:
    """Return the answers and the moves of a completion. What lies in the prefill alone does not count."""
    text = prompt.prefill + completion
    closed = text.rfind("</think>")
    start = 0 if closed < 0 else closed + len("</think>")
    rest, written = text[start:], max(0, len(prompt.prefill) - start)
    answers = tuple(_answers(rest, written, prompt.fen))
    # A template may have opened the thinking in the prompt, where the scorer does not see it.
    unclosed = prompt.thinks and not finished and closed < 0 and not answers
    unfinished = text.rfind("<think>") > closed or unclosed
    words, alone = _words(rest, written, prompt.fen)
    thoughts = _words(text, len(prompt.prefill), prompt.fen)[0] if unfinished or not words else ()
    if unfinished:
        return ChatText((), (), thoughts, alone=False, unfinished=True)
    return ChatText(answers, words, thoughts, alone, unfinished=False)


def answer_of(text: ChatText, completion: str, prompt: ChatPrompt, finished: bool) -> ChatAnswer | ParseFailure:
    """Return the answer of a completion that has been taken apart, or why it has none."""
    if not completion.strip():
        return ParseFailure(FailureReason.empty, "")
    if text.unfinished:
        return ParseFailure(FailureReason.unfinished_thinking, completion[-SHOWN:])
    if not text.answers:
        return _bare_answer(text, completion, prompt, finished)
    # A form without a move, such as one that only names the form, counts if there is no other.
    answers = [answer for answer in text.answers if answer.words] or text.answers
    different = {word.key: word.text for answer in answers for word in answer.words}
    if len(different) > 1:
        return ParseFailure(FailureReason.two_answers, " ".join(different.values())[:SHOWN])
    last = answers[-1]
    move = last.words[-1].move if last.words else ""
    return ChatAnswer(last.content, last.form, move, bool(last.words), _failure(last, text, prompt, finished))


def own_words(completion: str) -> int:
    """Return the number of words of a completion, without the forms of answers and the tags of thinking.

    >>> own_words("I play <answer> e2e4 </answer>")
    3
    """
    return len(_MARKUP.sub(" ", completion).split())


def move_words(text: str, fen: str) -> tuple[MoveWord, ...]:
    """Return the words of a text that have the form of a move, in order, as moves of the position `fen`.

    >>> [word.move for word in move_words("1. e4 e2e5 **Ng1-f3** 0-0", chess.STARTING_FEN)]
    ['e2e4', 'e2e5', 'g1f3', '']
    """
    return _words(text, 0, fen)[0]


def _words(text: str, written: int, fen: str) -> tuple[tuple[MoveWord, ...], bool]:
    """Return the moves that end behind the first `written` characters, and whether there is one and nothing else."""
    found = []
    for match in _MOVE.finditer(text):
        word = _move_word(match[0], match["uci"] or "", fen) if match.end() > written else None
        if word:
            found.append((match.start(), word))
    alone = len(found) == 1 and bool(_ALONE.fullmatch(text, min(found[0][0], written)))
    return tuple(word for _, word in found), alone


@lru_cache(maxsize=CACHED_WORDS)
def _move_word(text: str, uci: str, fen: str) -> MoveWord | None:
    """Return a word as a move. `uci` is its pair of squares if it has one. None if the squares are the same."""
    board = parse_fen(fen)
    if uci:
        squares = "".join(letter for letter in uci.lower() if letter not in "-x=")
        if not is_uci(squares):
            return None
        move = chess.Move.from_uci(squares)
        # python-chess takes the king's move to its rook for castling, and writes it in the usual way.
        return MoveWord(text, board.uci(move) if board.is_legal(move) else squares, True)
    san = text.rstrip("+#!?")
    if san[0] in "Oo0":
        san = san.upper().replace("0", "O")
    try:
        return MoveWord(text, board.parse_san(san).uci(), False)
    except ValueError:
        return MoveWord(text, "", False)


def _answers(text: str, written: int, fen: str) -> list[FormedAnswer]:
    """Return the answers in a form that end behind the first `written` characters."""
    matches = [match for match in _ANSWER.finditer(text) if match.end() > written]
    found = []
    for match in matches:
        form, content = Form.final_answer if match["final"] else Form.move_line, match["line"]
        if match["tag"]:
            form, content = Form(match["tag"].lower()), match["tagged"]
        elif match["boxed"] is not None:
            form, content = Form.boxed, match["boxed"]
        closed, words = not match["tag"] or bool(match["close"]), move_words(content, fen)
        later = move_words(text[match.end() :], fen) if match["line"] is not None and match is matches[-1] else ()
        followed = any(word.key not in {own.key for own in words} for word in later)
        found.append(FormedAnswer(form, content.strip(), closed, words, followed))
    return found


def _bare_answer(text: ChatText, completion: str, prompt: ChatPrompt, finished: bool) -> ChatAnswer | ParseFailure:
    """Return the last move of a text without a form, unless its end is missing."""
    exact = prompt.form is Form.bare and text.alone
    if not finished and not exact:
        return ParseFailure(FailureReason.cut_off, completion[-SHOWN:])
    if not text.words:
        return ParseFailure(FailureReason.no_answer, completion[-SHOWN:])
    word = last_word(text.words)
    failure = None if finished else ParseFailure(FailureReason.cut_off, word.text)
    if not exact:
        reason = FailureReason.extra_text if prompt.form is Form.bare else FailureReason.other_form
        failure = ParseFailure(reason, completion[-SHOWN:])
    return ChatAnswer(word.text, Form.bare, word.move, True, failure)


def last_word(words: tuple[MoveWord, ...]) -> MoveWord:
    """Return the last of some moves: the last in UCI, else the last in SAN."""
    return next((word for word in reversed(words) if word.in_uci), words[-1])


def _failure(last: FormedAnswer, text: ChatText, prompt: ChatPrompt, finished: bool) -> ParseFailure | None:
    """Return why a formed answer is not valid. `cut_off` means that nothing but the completion's end is missing."""
    if last.form is not prompt.form or not last.closed:
        return ParseFailure(FailureReason.other_form, last.form if last.closed else f"no </{last.form}>")
    if len(text.answers) > 1:
        return ParseFailure(FailureReason.two_answers, " ".join(answer.content for answer in text.answers)[:SHOWN])
    if not last.words or not _ALONE.fullmatch(last.content):
        return ParseFailure(FailureReason.bad_move, last.content[:SHOWN])
    if last.followed:
        return ParseFailure(FailureReason.extra_text, last.content)
    return None if finished else ParseFailure(FailureReason.cut_off, last.content)
