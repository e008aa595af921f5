"""The chat task: one position, one move, for any model that was trained on instructions."""

from collections.abc import Mapping
from typing import ClassVar

import chess

from ...board.drawing import Drawing, candidate, position
from ...board.fen import parse_fen
from ...board.moves import is_uci
from ...stockfish.analysis import Analysis
from ...stockfish.move_values import MoveValues
from ..keys import Key
from ..messages import messages_of
from ..task import Task, Weights, scaled_weights
from ..types import Completion, Example, LabelError, ParseFailure, Position
from .evaluation import KEYS, score_chat_row
from .prompts import AFFIXES, ChatPrompt, ChatPromptConfig, Notation, chat_prompt, parse_chat_prompt, write_answer
from .reader import ChatAnswer, read_answer
from .reward import (
    CORRECTNESS_WEIGHTS,
    PARSE_WEIGHTS,
    STRUCTURE_WEIGHTS,
    ChatRewardConfig,
    ChatTruth,
    chat_move_value,
    score_chat,
    truth_of_chat,
)

ILLEGAL_ANSWER = "illegal answer"
# Maximum number of tokens of an answer whose beginning is given, of a whole answer, and of one with words before it.
BEGUN_TOKENS, ANSWER_TOKENS, REASONING_TOKENS = 16, 24, 512


class ChatTask(Task):
    """The chat task; see `prompts` for its messages, `reader` for its answers and `reward` for its reward."""

    name: ClassVar[str] = "chat"
    names_move: ClassVar[bool] = True
    keys: ClassVar[Mapping[str, Key]] = KEYS
    headline: ClassVar[tuple[str, ...]] = tuple(KEYS)
    decision_key: ClassVar[str] = "chat/legal"

    def __init__(self, config: ChatPromptConfig | None = None) -> None:
        """Create the task with the options of its prompts. Completions are read by the prompt alone."""
        self._config = config or ChatPromptConfig()
        query = parse_chat_prompt(chat_prompt(chess.STARTING_FEN, self._config))
        of_answer = BEGUN_TOKENS if query.prefill else ANSWER_TOKENS
        self.max_new_tokens = REASONING_TOKENS if query.reasons else of_answer

    def configured(self, options: ChatPromptConfig) -> "ChatTask":
        return ChatTask(options)

    def owns(self, prompt: str) -> bool:
        return messages_of(prompt) is not None

    def prompt(self, fen: str) -> str:
        return chat_prompt(fen, self._config)

    def query(self, prompt: str) -> ChatPrompt:
        return parse_chat_prompt(prompt)

    def from_position(self, position: Position) -> Example | None:
        """Return the example of a position. Its label is the shortest answer with the best move."""
        board = parse_fen(position.fen)
        if not any(board.legal_moves):
            return None
        prompt = self.prompt(board.fen())
        label = write_answer(self.query(prompt), position.best) if position.best else None
        return Example(self.name, prompt, label, position.source)

    def position(self, example: Example) -> Position:
        query = self.query(example.prompt)
        label = None if example.completion is None else self.truth(query, example.completion).label
        return Position(query.fen, label, example.source)

    def parse(self, completion: Completion, query: ChatPrompt) -> ChatAnswer | ParseFailure:
        answer = read_answer(completion.text, query, completion.finished)
        return answer if isinstance(answer, ParseFailure) or answer.failure is None else answer.failure

    def tier_weights(self, options: ChatRewardConfig) -> Weights:
        return scaled_weights(STRUCTURE_WEIGHTS, PARSE_WEIGHTS, CORRECTNESS_WEIGHTS, options.weights)

    def truth(self, query: ChatPrompt, label: str | None) -> ChatTruth:
        """Return the truth. A label is a move in UCI, or an answer that can be read; see `Task.truth`."""
        if label is None or is_uci(label):
            return truth_of_chat(query, label)
        answer = read_answer(label, query)
        if isinstance(answer, ParseFailure) or not answer.move:
            raise LabelError(f"expected a label that is a move or an answer with one, got {label!r}")
        return truth_of_chat(query, answer.move)

    def score(
        self,
        completion: Completion,
        query: ChatPrompt,
        truth: ChatTruth,
        values: MoveValues | None,
        options: ChatRewardConfig,
    ) -> tuple[dict[str, float], ParseFailure | None]:
        return score_chat(completion.text, query, truth, options, values, completion.finished)

    def move_value(self, move: str, values: MoveValues, options: ChatRewardConfig) -> float:
        return chat_move_value(move, values, options)

    def before_move(self, completion: str, query: ChatPrompt) -> str | None:
        """Return the completion up to the last beginning of an answer in the form that was asked for."""
        opening = AFFIXES[query.form][0].rstrip()
        if query.prefill.endswith(opening):
            return ""
        before, found, _ = completion.rpartition(opening)
        return before + found if found and "<think>" not in before.rpartition("</think>")[2] else None

    def opening(self, query: ChatPrompt) -> str | None:
        if query.reasons:
            return None
        opening = AFFIXES[query.form][0].rstrip()
        return "" if query.prefill.endswith(opening) else opening

    def move_text(self, move: str, query: ChatPrompt) -> str:
        before = AFFIXES[query.form][0]
        if query.notation is Notation.san:
            move = parse_fen(query.fen).san(chess.Move.from_uci(move))
        return before[len(before.rstrip()) :] + move

    def after_move(self, query: ChatPrompt) -> str:
        return AFFIXES[query.form][1]

    def values(self, example: Example, completion: Completion, analysis: Analysis | None) -> dict[str, float]:
        query = self.query(example.prompt)
        values = score_chat_row(completion, query, self.truth(query, example.completion), analysis)
        return {f"{self.name}/{key}": value for key, value in values.items()}

    def draw(self, prompt: str, completion: str) -> Drawing:
        query = self.query(prompt)
        board, text = chess.Board(query.fen), self.move(completion, query)
        moves = [candidate(board, text, best=True)] if text else []
        problem = "" if any(move.legal for move in moves) else ILLEGAL_ANSWER
        return Drawing([position(board, moves)], moves, [], problem)

    def move(self, completion: str, query: ChatPrompt) -> str:
        answer = read_answer(completion, query)
        return "" if isinstance(answer, ParseFailure) else answer.move or answer.text
