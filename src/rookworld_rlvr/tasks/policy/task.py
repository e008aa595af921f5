"""The policy task `P:`: candidates, evals and the best move of a position."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import ClassVar

import chess

from ...board.drawing import Drawing, candidate, position
from ...board.fen import parse_fen
from ...board.moves import is_legal_uci
from ...stockfish.analysis import Analysis
from ...stockfish.move_values import MoveValues
from ..keys import Key
from ..task import Task, Weights, scaled_weights
from ..types import Completion, Example, ParseFailure, PolicyCompletion, PolicyPrompt, Position
from .audit import PolicyAudit, corrected_policy
from .evaluation import KEYS, score_engine_loss, score_policy_row
from .reward import (
    CORRECTNESS_WEIGHTS,
    PARSE_WEIGHTS,
    STRUCTURE_WEIGHTS,
    PolicyRewardConfig,
    PolicyTruth,
    best_move_value,
    policy_components,
    truth_of_policy,
)
from .text import (
    FIRST_MARKER,
    PREFIX,
    legal_candidates,
    parse_policy,
    parse_policy_prompt,
    policy_fields,
    render_policy,
    render_policy_prompt,
    split_policy,
)

ILLEGAL_BEST = "illegal best move"


class PolicyTask(Task):
    """The policy task; see `text` for its format, `reward` for its reward."""

    name: ClassVar[str] = "policy"
    prefix: ClassVar[str] = PREFIX
    names_move: ClassVar[bool] = True
    keys: ClassVar[Mapping[str, Key]] = KEYS
    headline: ClassVar[tuple[str, ...]] = (
        "policy/valid",
        "policy/legal_best_move",
        "policy/legal_candidates",
        "policy/best_move_accuracy",
        "policy/top5_accuracy",
        "policy/mate_in_one",
        "policy/win_probability_loss",
        "policy/legal_choice_loss",
        "policy/legal_choice_best",
    )
    decision_key: ClassVar[str] = "policy/legal_best_move"

    def prompt(self, fen: str) -> str:
        return render_policy_prompt(fen)

    def query(self, prompt: str) -> PolicyPrompt:
        return parse_policy_prompt(prompt)

    def split(self, line: str) -> tuple[str, str | None]:
        return split_policy(line)

    def from_position(self, position: Position) -> Example:
        return Example(self.name, PREFIX + position.fen, None, position.source)

    def position(self, example: Example) -> Position:
        label = None if example.completion is None else parse_policy(example.completion)
        best = label.best if isinstance(label, PolicyCompletion) else None
        return Position(self.query(example.prompt).fen, best, example.source)

    def parse(self, completion: Completion, query: PolicyPrompt) -> PolicyCompletion | ParseFailure:
        return parse_policy(completion.text)

    def tier_weights(self, options: PolicyRewardConfig) -> Weights:
        return scaled_weights(STRUCTURE_WEIGHTS, PARSE_WEIGHTS, CORRECTNESS_WEIGHTS, options.weights)

    def truth(self, query: PolicyPrompt, label: str | None) -> PolicyTruth:
        return truth_of_policy(query, label)

    def components(
        self, completion: Completion, truth: PolicyTruth, values: MoveValues | None, options: PolicyRewardConfig
    ) -> dict[str, float]:
        return policy_components(completion.text, truth, options, values)

    def move_value(self, move: str, values: MoveValues, options: PolicyRewardConfig) -> float:
        return best_move_value(move, values, options)

    def before_move(self, completion: str, query: PolicyPrompt) -> str | None:
        begun = completion.partition(FIRST_MARKER)[0] + FIRST_MARKER
        return begun if begun.strip() == FIRST_MARKER and completion.startswith(begun) else None

    def opening(self, query: PolicyPrompt) -> str:
        return render_policy(PolicyCompletion((), (), ""), query.fen).partition(FIRST_MARKER)[0] + FIRST_MARKER

    def move_text(self, move: str, query: PolicyPrompt) -> str:
        return f" {move}"

    def values(self, example: Example, completion: Completion, analysis: Analysis | None) -> dict[str, float]:
        values, fen = score_policy_row(example, completion.text), parse_policy_prompt(example.prompt).fen
        if analysis is not None:
            values |= score_engine_loss(completion.text, analysis)
        color = chess.COLOR_NAMES[parse_fen(fen).turn]
        keys = ((f"{self.name}/{name}", value) for name, value in values.items())
        return {name: value for key, value in keys for name in (key, f"{key}/{color}")}

    def audit(self) -> PolicyAudit:
        return PolicyAudit()

    def corrected(self, example: Example, query: PolicyPrompt, label: PolicyCompletion) -> Example | ParseFailure:
        return corrected_policy(example, query.fen, label)

    def draw(self, prompt: str, completion: str) -> Drawing:
        board = chess.Board(parse_policy_prompt(prompt).fen)
        written = policy_fields(completion)
        best = written.best[0] if written.best else ""
        named = list(zip_longest(written.moves, written.evals[: len(written.moves)], fillvalue=""))
        if best and best not in written.moves:
            named.append((best, ""))
        moves = [
            candidate(board, text, eval=pawns, best=text == best, repeated=text in written.moves[:place])
            for place, (text, pawns) in enumerate(named)
        ]
        problem = "" if is_legal_uci(board, best) else ILLEGAL_BEST
        return Drawing([position(board, moves)], moves, [], problem)

    def move(self, completion: str, query: PolicyPrompt) -> str:
        """Return the words after `B:`, separated by single blanks, even if the rest is malformed."""
        return " ".join(policy_fields(completion).best)

    def candidates(self, completion: str, query: PolicyPrompt) -> Mapping[str, float]:
        parsed = parse_policy(completion)
        return legal_candidates(chess.Board(query.fen), parsed) if isinstance(parsed, PolicyCompletion) else {}
