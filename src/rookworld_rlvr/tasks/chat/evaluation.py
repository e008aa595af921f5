"""Values of an answer to a chat prompt, and their keys."""

from collections.abc import Mapping
from statistics import fmean

from ...board.fen import parse_fen
from ...board.moves import mating_moves
from ...stockfish.analysis import Analysis
from ...stockfish.move_values import move_values
from ..keys import FRACTION, Key, Scale, higher, lower
from ..types import Completion
from .prompts import ChatPrompt
from .reader import ChatAnswer, read_answer
from .reward import ChatTruth

KEYS: Mapping[str, Key] = {
    "chat/valid": higher(
        "the answer ended by itself, is in the form that the prompt asks for, and is a move and nothing else",
        "above 0.95"),
    "chat/legal": higher("the answer, in any known form, is a legal move"),
    "chat/best_move_accuracy": higher(
        "the answer is the label's best move; without a label, a move with the engine's highest evaluation"),
    "chat/win_probability_loss": lower(
        "win-probability loss of the answer by the engine's evaluations; no legal move loses the whole win probability "
        "of the best move. Only for evaluated positions", scale=FRACTION),
    "chat/loss_above_random": lower(
        "win-probability loss of the answer, less that of a random legal move in the same position",
        "below 0: better than chance", scale=Scale(-1.0, 1.0)),
    "chat/legal_choice_loss": lower(
        "win-probability loss of the likeliest legal move in the form that was asked for. Only for evaluated positions",
        scale=FRACTION),
    "chat/legal_choice_best": higher("the likeliest legal move has the engine's highest evaluation"),
    "chat/mate_in_one": higher("the answer mates; only for positions in which a move mates"),
    "chat/truncated": lower("the completion was cut at the length limit", "near 0"),
}  # fmt: skip


def score_chat_row(
    completion: Completion, query: ChatPrompt, truth: ChatTruth, analysis: Analysis | None
) -> dict[str, float]:
    """Return the row's values by key without the task's name, all but `loss_above_random` in [0, 1]; see `KEYS`.

    The move counts for all of them but `valid`, whatever its form. The set of values depends only on the prompt, the
    label and the analysis.
    """
    answer = read_answer(completion.text, query, completion.finished)
    move = answer.move if isinstance(answer, ChatAnswer) else ""
    valid = isinstance(answer, ChatAnswer) and answer.valid
    values = {"valid": float(valid), "truncated": float(not completion.finished)}
    if truth.legal:
        values["legal"] = float(move in truth.legal)
    evals = dict(analysis.lines) if analysis else {}
    if truth.label:
        values["best_move_accuracy"] = float(move == truth.label)
    elif evals:
        values["best_move_accuracy"] = float(evals.get(move) == max(evals.values()))
    if analysis and evals:
        known = move_values(analysis)
        values["win_probability_loss"] = known.loss(move)
        values["loss_above_random"] = known.loss(move) - fmean(map(known.loss, evals))
    if mates := mating_moves(parse_fen(query.fen).fen()):
        values["mate_in_one"] = float(move in mates)
    return values
