"""Prompts of the chat task: a position as chat messages, and what a scorer finds in any such messages.

A prompt is one string: the messages as JSON, a list of objects with `role` and `content`. If the last of them has the
role `assistant`, it is the beginning of the answer, which the model continues. Nothing else is needed to score a
completion: position, form and notation are read from the messages, whoever wrote them.

The presets have the structure of public prompts, in other words: Chess-R1 (arXiv 2507.00726), AIcrowd's Global Chess
Challenge 2025 (github.com/AIcrowd/chess-env), C1 (arXiv 2603.20510) and Kaggle Game Arena
(github.com/google-deepmind/game_arena). No prompt of ours shows a move in the form of an answer, because a copy of it
would be an answer.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from string import Formatter

import chess

from ...board.fen import is_valid_fen, parse_fen, position_key, require_valid_fen
from ..types import PromptError

# More than the prompts of a step, each of which all completions of a group share.
CACHED_PROMPTS = 1024
# Value of `prefill` that stands for what the prompt asks for first.
AUTO = "auto"
# Characters of a malformed prompt that an error shows.
SHOWN = 80


class Form(StrEnum):
    """Form of an answer."""

    answer = "answer"
    """`<answer>e2e4</answer>`."""
    uci_move = "uci_move"
    """`<uci_move>e2e4</uci_move>`."""
    move = "move"
    """`<move>e2e4</move>`."""
    boxed = "boxed"
    r"""`\boxed{e2e4}`."""
    final_answer = "final_answer"
    """A line `FINAL_ANSWER: e2e4`, or `Final Answer: e2e4`."""
    move_line = "move_line"
    """A line `MOVE: e2e4`."""
    bare = "bare"
    """The move alone."""


class Notation(StrEnum):
    """Notation of moves."""

    uci = "uci"
    """Squares and promotion, such as `e2e4` and `e7e8q`."""
    san = "san"
    """Standard algebraic notation, such as `Nf3`. A list of legal moves in it marks captures (`x`), checks (`+`) and
    mates (`#`): a rule that takes the move with `#`, else one with `x`, needs no chess. Compare a model with it."""


class ChatPreset(StrEnum):
    """Wording of a chat prompt, with the form, the notation and the parts that belong to it."""

    plain = "plain"
    """FEN, side to move and legal moves in UCI, answered by `<answer>` and nothing else."""
    r1 = "r1"
    """Chess-R1: system message with the rules, legal moves in SAN, `<think>`, `<answer>`."""
    aicrowd = "aicrowd"
    """AIcrowd: FEN, side, legal moves in UCI; one sentence in `<rationale>`, then `<uci_move>`."""
    c1 = "c1"
    """C1: FEN, list of pieces, legal moves in UCI; free text, then `FINAL_ANSWER:` with UCI."""
    game_arena = "game_arena"
    """Game Arena: FEN without legal moves; free text, then `Final Answer:` with SAN."""


class _Words(StrEnum):
    """Text that a prompt asks for before the answer."""

    none = "none"
    tags = "tags"
    sentence = "sentence"
    free = "free"


@dataclass(slots=True)
class ChatPromptConfig:
    """Options of chat prompts. An option that is null has the preset's value. Raises ValueError for a bad prefill."""

    preset: ChatPreset = ChatPreset.plain
    form: Form | None = None
    """Form of the answer that the prompt asks for."""
    notation: Notation | None = None
    """Notation of the legal moves and of the move that the prompt asks for. Answers are read in either."""
    legal_moves: bool | None = None
    """Whether the prompt lists the legal moves."""
    board: bool | None = None
    """Whether the prompt has the board drawn as text."""
    thinking: bool | None = None
    """True: the prompt asks for thinking in `<think>`. False: it asks for the answer and nothing else, also if the
    preset would ask for other words before it."""
    prefill: str = ""
    """Beginning of the answer, which the model continues; `auto` is what the prompt asks for first, such as `<answer>`
    or `<think>`."""

    def __post_init__(self) -> None:
        # Templates drop blanks at the end of a message, so the model would not read what the scorer does.
        if self.prefill != self.prefill.rstrip():
            raise ValueError(f"chat.prefill: expected no blank at its end, got {self.prefill!r}")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Content of a chat prompt: all that a scorer needs."""

    fen: str
    """FEN with six fields."""
    form: Form
    """Form of the answer that the messages ask for."""
    notation: Notation
    """Notation that the messages ask for or show."""
    thinks: bool
    """Whether thinking in `<think>` is asked for, or has been begun by the prefill."""
    reasons: bool
    """Whether any words before the answer are asked for: thinking, reasons or an analysis. Else brevity is scored."""
    prefill: str
    """Beginning of the answer that the model continues; empty if there is none."""


@dataclass(frozen=True, slots=True)
class _Preset:
    """Parts of a preset. A line that names an empty part is left out."""

    user: tuple[str, ...]
    system: tuple[str, ...] = ()
    form: Form = Form.answer
    notation: Notation = Notation.uci
    legal_moves: bool = True
    board: bool = False
    words: _Words = _Words.none


# Text around the move in each form.
AFFIXES: Mapping[Form, tuple[str, str]] = {
    Form.answer: ("<answer>", "</answer>"),
    Form.uci_move: ("<uci_move>", "</uci_move>"),
    Form.move: ("<move>", "</move>"),
    Form.boxed: (r"\boxed{", "}"),
    Form.final_answer: ("FINAL_ANSWER: ", ""),
    Form.move_line: ("MOVE: ", ""),
    Form.bare: ("", ""),
}
_NOTATIONS = {Notation.uci: "UCI notation", Notation.san: "SAN (standard algebraic notation)"}
_HOW = {
    _Words.none: "Write only {answer}.",
    _Words.tags: "First think between <think> and </think>. Then write {answer}.",
    _Words.sentence: "Explain your choice by one sentence between <rationale> and </rationale>. Then write {answer}.",
    _Words.free: "Reason step by step. Then end with {answer}.",
}
_BEGINNINGS = {_Words.tags: "<think>", _Words.sentence: "<rationale>", _Words.free: ""}
_PRESETS: Mapping[ChatPreset, _Preset] = {
    ChatPreset.plain: _Preset(
        user=(
            "Chess position in FEN: {fen}",
            "Board:\n{board}",
            "Side to move: {side}",
            "Legal moves: {moves}",
            "Choose the best move for {side}. {how}",
        )
    ),
    ChatPreset.r1: _Preset(
        system=(
            "You are an assistant with the strength of a professional chess player.",
            "The user gives you a position as FEN. Find the best move.",
            "{how}",
            "Remember the rules: bishops move along diagonals, rooks along ranks and files, queens along both, knights "
            "in the shape of an L, kings by one square. Pawns move forward, capture diagonally and can be promoted.",
        ),
        user=("FEN of the position: {fen}", "Board:\n{board}", "Legal moves: {moves}"),
        notation=Notation.san,
        words=_Words.tags,
    ),
    ChatPreset.aicrowd: _Preset(
        user=(
            "You are an expert at chess. Pick the best move for the side to move.",
            "Board:\n{board}",
            "Position (FEN): {fen}",
            "Side to move: {side}",
            "Legal moves: {moves}",
            "{how}",
        ),
        form=Form.uci_move,
        words=_Words.sentence,
    ),
    ChatPreset.c1: _Preset(
        user=(
            "Find the best move in this chess position.",
            "FEN: {fen}",
            "Pieces: {pieces}",
            "Board:\n{board}",
            "Legal moves: {moves}",
            "{how}",
        ),
        form=Form.final_answer,
        words=_Words.free,
    ),
    ChatPreset.game_arena: _Preset(
        user=(
            "We are playing chess. This is the state of the game in FEN:\n{fen}",
            "Board:\n{board}",
            "These moves are legal:\n{moves}",
            "You have the {side} pieces, and it is your turn. Choose your strongest move; it must be legal. {how}",
        ),
        form=Form.final_answer,
        notation=Notation.san,
        legal_moves=False,
        words=_Words.free,
    ),
}
# The label of this form in each preset that has its own.
_LABELS = {ChatPreset.game_arena: "Final Answer: "}

_FEN = re.compile(
    r"[pnbrqkPNBRQK1-8]{1,8}(?:/[pnbrqkPNBRQK1-8]{1,8}){7} +[wb] +(?:-|[KQkq]{1,4}) +(?:-|[a-h][36])"
    r"(?: +[0-9]{1,6} +[0-9]{1,6})?(?![^\W_])"
)
# A tag behind a label, such as `FINAL_ANSWER: <move>`, stands for the move, unless it is closed.
_FORM = re.compile(
    r"<(?P<tag>answer|uci_move|move)>|(?P<boxed>\\boxed\b)|"
    r"(?:(?P<final>\b(?i:final[_ ]answer))|(?<![^\W_])MOVE)[*_`]{0,3}:(?:\s*<(?P<slot>\w+)>(?!.*</(?P=slot)>))?",
    re.DOTALL,
)
_REASONS = re.compile(
    r"<think>|\b(?:think(?:ing)?|reason(?:s|ing)?|analy[sz]e|analysis|explain|explanation|rationale|step by step)\b",
    re.IGNORECASE,
)
_MOVE_WORDS = re.compile(r"[\w=+#-]+")
_NAMES = re.compile(r"\b(?:(?P<uci>uci)|san|algebraic)\b", re.IGNORECASE)


def chat_prompt(fen: str, config: ChatPromptConfig) -> str:
    """Return the prompt of a position: its messages as JSON. Raises ValueError for an invalid FEN.

    >>> parse_chat_prompt(chat_prompt(chess.STARTING_FEN, ChatPromptConfig())).form
    <Form.answer: 'answer'>
    """
    board, preset = require_valid_fen(fen), _PRESETS[config.preset]
    form = preset.form if config.form is None else config.form
    notation = preset.notation if config.notation is None else config.notation
    words = preset.words
    if config.thinking is not None:
        words = _Words.tags if config.thinking else _Words.none
    how = _HOW[words].format(answer=_answer_asked(form, notation, config.preset))
    parts = {"fen": board.fen(), "side": chess.COLOR_NAMES[board.turn].capitalize(), "how": how}
    shown = preset.legal_moves if config.legal_moves is None else config.legal_moves
    parts["moves"] = " ".join(shuffled_legal_moves(board, notation)) if shown else ""
    parts["board"] = draw_board(board) if (preset.board if config.board is None else config.board) else ""
    parts["pieces"] = _pieces(board)
    prefill = config.prefill
    if prefill == AUTO:
        prefill = _BEGINNINGS.get(words, AFFIXES[form][0].rstrip())
    texts = {"system": _joined(preset.system, parts), "user": _joined(preset.user, parts), "assistant": prefill}
    return dump_messages([{"role": role, "content": text} for role, text in texts.items() if text])


def dump_messages(messages: list[dict[str, str]]) -> str:
    """Return messages as the text of a prompt."""
    return json.dumps(messages, ensure_ascii=False)


def shuffled_legal_moves(board: chess.Board, notation: Notation) -> list[str]:
    """Return the legal moves in an order that depends on the position alone and says nothing about their value.

    They are sorted by a hash of the position and the move. In alphabetical order a move's place would depend on its
    squares, which are related to its value, and python-chess generates them piece by piece.

    >>> shuffled_legal_moves(chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1"), Notation.san)
    ['Ka2', 'Kb2', 'Kb1']
    """
    key = position_key(board)
    moves = sorted(board.legal_moves, key=lambda move: hashlib.sha256(f"{key} {move.uci()}".encode()).digest())
    return [board.san(move) if notation is Notation.san else move.uci() for move in moves]


def draw_board(board: chess.Board) -> str:
    """Return the board as text: White's pieces are capital letters, empty squares are dots.

    >>> print(draw_board(chess.Board()).splitlines()[0])
    8 r n b q k b n r
    """
    ranks = [f"{8 - row} {line}" for row, line in enumerate(str(board).splitlines())]
    return "\n".join([*ranks, "  a b c d e f g h"])


def write_answer(prompt: ChatPrompt, move: str) -> str:
    """Return the shortest completion that answers with `move` in the form that was asked for, behind the prefill.

    >>> prompt = parse_chat_prompt(chat_prompt(chess.STARTING_FEN, ChatPromptConfig(prefill="auto")))
    >>> write_answer(prompt, "e2e4")
    'e2e4</answer>'
    """
    before, after = AFFIXES[prompt.form]
    text = before + move + after
    if prompt.thinks and "<think>" in prompt.prefill.rpartition("</think>")[2]:
        return f"</think>{text}"
    beginnings = (text[:end] for end in range(len(before), 0, -1))
    if written := next((start for start in beginnings if prompt.prefill.endswith(start)), ""):
        return text.removeprefix(written)
    return f" {text}" if prompt.prefill[-1:].isalnum() and text[0].isalnum() else text


@lru_cache(maxsize=CACHED_PROMPTS)
def parse_chat_prompt(prompt: str) -> ChatPrompt:
    r"""Return what a scorer needs of a prompt, which may have been written by others.

    The position is the first valid FEN of the last user message that has one; counters may be absent. The form is the
    last known one that the instructions (system and user messages) mention. The notation is that of the legal moves
    that they show, else the first one that they name. Raises PromptError if there are no messages or no position.

    >>> user = f"FEN: {chess.STARTING_FEN}. Think, then end with the move as \"MOVE: b1c3\"."
    >>> parse_chat_prompt(dump_messages([{"role": "user", "content": user}])).form
    <Form.move_line: 'move_line'>
    """
    messages = _load_messages(prompt)
    prefill = messages.pop()[1] if messages[-1][0] == "assistant" else ""
    if not messages or messages[-1][0] != "user":
        raise PromptError(f"expected a user message before the answer, got {prompt[:SHOWN]!r}")
    fen = next((fen for role, text in reversed(messages) if role == "user" and (fen := _first_fen(text))), "")
    if not fen:
        raise PromptError(f"expected a user message with the FEN of a possible position, got {prompt[:SHOWN]!r}")
    instructions = "\n".join(text for role, text in messages if role != "assistant")
    thinks = "<think>" in instructions or "<think>" in prefill.rpartition("</think>")[2]
    return ChatPrompt(
        fen=fen,
        form=_form(instructions),
        notation=_notation(instructions, fen),
        thinks=thinks,
        reasons=thinks or bool(_REASONS.search(instructions)),
        prefill=prefill,
    )


def _load_messages(prompt: str) -> list[tuple[str, str]]:
    """Return role and content of each message. Raises PromptError for anything else."""
    try:
        messages = json.loads(prompt)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"expected chat messages as JSON, got {prompt[:SHOWN]!r}: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise PromptError(f"expected a list of chat messages, got {prompt[:SHOWN]!r}")
    for message in messages:
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise PromptError(f"expected messages with exactly role and content, got {str(message)[:SHOWN]!r}")
        if not all(isinstance(text, str) for text in message.values()):
            raise PromptError(f"expected role and content to be texts, got {str(message)[:SHOWN]!r}")
    return [(message["role"], message["content"]) for message in messages]


def _first_fen(text: str) -> str:
    """Return the first valid FEN in a text, with six fields; empty if there is none."""
    for match in _FEN.finditer(text):
        fields = match[0].split()
        fen = " ".join(fields if len(fields) == 6 else [*fields, "0", "1"])
        if is_valid_fen(fen):
            return fen
    return ""


def _form(instructions: str) -> Form:
    mentions = list(_FORM.finditer(instructions))
    if not mentions:
        return Form.bare
    match = mentions[-1]
    if match["tag"]:
        return Form(match["tag"])
    if match["boxed"]:
        return Form.boxed
    return Form.final_answer if match["final"] else Form.move_line


def _notation(instructions: str, fen: str) -> Notation:
    board = parse_fen(fen)
    words, moves = set(_MOVE_WORDS.findall(instructions)), list(board.legal_moves)
    ucis = sum(move.uci() in words for move in moves)
    # SAN is slow to compute, and where every move is shown in UCI one missing SAN settles it.
    if ucis == len(moves) and any(board.san(move) not in words for move in moves):
        return Notation.uci
    sans = sum(board.san(move) in words for move in moves)
    if ucis == sans:
        named = _NAMES.search(instructions)
        return Notation.san if named and not named["uci"] else Notation.uci
    return Notation.uci if ucis > sans else Notation.san


def _answer_asked(form: Form, notation: Notation, preset: ChatPreset) -> str:
    if form is Form.bare:
        return f"the move in {_NOTATIONS[notation]}"
    before, after = AFFIXES[form]
    if form is Form.final_answer:
        before = _LABELS.get(preset, before)
    line = "" if after else "a last line "
    return f"{line}{before}X{after}, where X is the move in {_NOTATIONS[notation]}"


def _joined(lines: tuple[str, ...], parts: Mapping[str, str]) -> str:
    """Fill in the parts, and leave out each line that names an empty one."""
    named = ((line, [name for _, name, _, _ in Formatter().parse(line) if name]) for line in lines)
    return "\n".join(line.format(**parts) for line, names in named if all(parts[name] for name in names))


def _pieces(board: chess.Board) -> str:
    """Return the pieces of both sides by their squares: `White: Ke1 Qd1 a2; Black: Ke8`."""
    sides = []
    for color in (chess.WHITE, chess.BLACK):
        pieces = [
            chess.piece_symbol(kind).upper().replace("P", "") + chess.square_name(square)
            for kind in reversed(chess.PIECE_TYPES)
            for square in board.pieces(kind, color)
        ]
        sides.append(f"{chess.COLOR_NAMES[color].capitalize()}: {' '.join(pieces)}")
    return "; ".join(sides)
