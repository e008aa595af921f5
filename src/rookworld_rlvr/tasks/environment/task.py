"""The environment task `A:`: next state, reward and flags of a move."""

from collections.abc import Mapping
from typing import ClassVar

import chess

from ...board.drawing import Board, Drawing, arrows, candidate
from ...board.transition import Transition
from ...stockfish.analysis import Analysis
from ...stockfish.move_values import MoveValues
from ..keys import Key
from ..task import Task, Weights, scaled_weights
from ..types import Completion, EnvironmentPrompt, Example, ParseFailure
from .audit import EnvironmentAudit, corrected_environment
from .comparison import compare_next_state
from .evaluation import KEYS, illegal_kind_of, score_environment_row, score_next_fen
from .reward import (
    CORRECTNESS_WEIGHTS,
    PARSE_WEIGHTS,
    STRUCTURE_WEIGHTS,
    EnvironmentRewardConfig,
    EnvironmentTruth,
    environment_components,
    truth_of_environment,
)
from .text import PREFIX, parse_environment, parse_environment_prompt, split_environment

WRONG = "wrong prediction"


class EnvironmentTask(Task):
    """The environment task; see `text` for its format, `reward` for its reward."""

    name: ClassVar[str] = "environment"
    prefix: ClassVar[str] = PREFIX
    # A prompt also needs a move.
    from_positions: ClassVar[bool] = False
    keys: ClassVar[Mapping[str, Key]] = KEYS
    headline: ClassVar[tuple[str, ...]] = (
        "environment/valid",
        "environment/next_state_accuracy",
        "environment/reward_accuracy",
        "environment/recall_legal",
        "environment/recall_illegal",
        "environment/recall_win",
        "environment/recall_draw",
        "environment/recall_terminated",
    )
    decision_key: ClassVar[str] = "environment/next_state_accuracy"

    def query(self, prompt: str) -> EnvironmentPrompt:
        return parse_environment_prompt(prompt)

    def split(self, line: str) -> tuple[str, str | None]:
        return split_environment(line)

    def position(self, example: Example) -> None:
        """Return None: a row shares no position, because its position may be impossible or the game over."""
        return None

    def parse(self, completion: Completion, query: EnvironmentPrompt) -> Transition | ParseFailure:
        return parse_environment(completion.text)

    def tier_weights(self, options: EnvironmentRewardConfig) -> Weights:
        return scaled_weights(STRUCTURE_WEIGHTS, PARSE_WEIGHTS, CORRECTNESS_WEIGHTS, options.weights)

    def truth(self, query: EnvironmentPrompt, label: str | None) -> EnvironmentTruth:
        return truth_of_environment(query, label)

    def components(
        self,
        completion: Completion,
        truth: EnvironmentTruth,
        values: MoveValues | None,
        options: EnvironmentRewardConfig,
    ) -> dict[str, float]:
        return environment_components(completion.text, truth)

    def values(self, example: Example, completion: Completion, analysis: Analysis | None) -> dict[str, float]:
        return {f"{self.name}/{key}": value for key, value in score_environment_row(example, completion.text).items()}

    def details(self, example: Example, completion: Completion) -> dict[str, float]:
        """Return the values of the next FEN alone, and the recall of illegal moves under the kind of the move."""
        values = {f"{self.name}/{key}": value for key, value in score_next_fen(example, completion.text).items()}
        recall = score_environment_row(example, completion.text).get("recall_illegal")
        if recall is None:
            return values
        return values | {f"{self.name}/recall_illegal/{illegal_kind_of(example.prompt)}": recall}

    def audit(self) -> EnvironmentAudit:
        return EnvironmentAudit()

    def corrected(self, example: Example, query: EnvironmentPrompt, label: Transition) -> Example | ParseFailure:
        return corrected_environment(example, query, label)

    def draw(self, prompt: str, completion: str) -> Drawing:
        query = parse_environment_prompt(prompt)
        board = chess.Board(query.fen)
        comparison = compare_next_state(query, completion)
        boards = [Board(f"move: {query.uci}", board, board.turn, arrows(candidate(board, query.uci)))]
        if comparison.predicted is not None:
            boards.append(
                Board("board that the model predicts", comparison.predicted, board.turn, wrong=comparison.squares)
            )
        boards.append(Board("true next board", comparison.expected, board.turn))
        return Drawing(boards, [], comparison.wrong, WRONG if comparison.wrong else "")
