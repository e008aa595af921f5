"""Evaluation metrics with their units, meanings and healthy values. The generated documentation lists them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvaluationMetric:
    """Meaning of one key of an evaluation."""

    unit: str
    meaning: str
    healthy: str
    """Value or trend to expect of a model that plays well."""


_Table = dict[str, EvaluationMetric]


def _fractions(suite: str, meanings: dict[str, tuple[str, str]]) -> _Table:
    return {f"{suite}/{name}": EvaluationMetric("fraction", *text) for name, text in meanings.items()}


_POLICY = _fractions("policy", {
    "valid": ("the strict parser reads the completion", "above 0.95"),
    "legal_best_move": ("the `B:` move is legal", "rises"),
    "legal_candidates": ("distinct legal candidates, divided by five or by the number of legal moves if that is less",
                         "rises"),
    "best_move_accuracy": ("the `B:` move is a candidate with the label's highest eval; all ties count", "rises"),
    "top5_accuracy": ("the `B:` move is one of the label's candidates", "rises"),
    "top5_overlap": ("share of the label's candidates among the completion's", "rises"),
    "mate_in_one": ("the `B:` move mates; only for positions in which a move mates", "rises"),
    "win_probability_loss": ("win-probability loss of the `B:` move by the engine's evaluations; an illegal move loses "
                             "the whole win probability of the best move. Only for evaluated positions", "falls"),
    "eval_error": ("mean distance over five candidates between the win probability of `E:` and the engine's; an "
                   "illegal, repeated or missing candidate counts 1", "falls"),
})  # fmt: skip

_TRANSITION = {
    "valid": ("the strict parser reads the completion", "above 0.95"),
    "next_state_accuracy": ("the next FEN is the true one, character by character", "rises"),
    "next_state_nls": ("normalised Levenshtein similarity of the two FENs; a copy of the old state also scores high",
                       "above 0.95"),
    "reward_accuracy": ("the reward is the true one", "rises"),
    "terminated_accuracy": ("the terminated flag is the true one", "near 1"),
    "truncated_accuracy": ("the truncated flag is the true one", "near 1"),
    "fen_strict": ("the first field is the true FEN, character by character, whatever follows it",
                   "near `next_state_accuracy`"),
    "fen_lenient": ("the first field parses and is the true position, counters aside", "at or above `fen_strict`"),
    "fen_error_placement": ("the piece placement differs as text or is missing", "near 0"),
    "fen_error_turn": ("the side to move differs or is missing", "near 0"),
    "fen_error_castling": ("the castling rights differ or are missing", "near 0"),
    "fen_error_en_passant": ("the en-passant square differs or is missing", "near 0"),
    "fen_error_halfmove_clock": ("the half-move clock differs or is missing", "near 0"),
    "fen_error_fullmove_number": ("the full-move number differs or is missing", "near 0"),
}  # fmt: skip
_REWARD_ERROR = EvaluationMetric("reward", "absolute error of the reward, at most 2", "near 0")
_CONSTANT = "rises; a constant guess has 0"
_RECALLS = {
    "recall_legal": ("`reward_accuracy` on examples whose true reward is 0.001: a legal move", "near 1"),
    "recall_win": ("`reward_accuracy` on examples whose true reward is 1.0: the move wins the game", _CONSTANT),
    "recall_draw": ("`reward_accuracy` on examples whose true reward is 0.5: the move draws the game", _CONSTANT),
    "recall_illegal": ("`reward_accuracy` on examples whose true reward is -1.0: an illegal move", _CONSTANT),
    "recall_terminated": ("`terminated_accuracy` on examples whose move ends the game", _CONSTANT),
    "recall_truncated": ("`truncated_accuracy` on examples whose move is illegal", _CONSTANT),
}
_MOVES = _fractions("mate_in_one", {
    "accuracy": ("the move mates", "rises"),
    "exact": ("the move is the file's", "at or below `mate_in_one/accuracy`"),
    "legal": ("the move is legal", "near 1"),
})  # fmt: skip

_GAMES = {
    "selfplay/legal_halfmoves": EvaluationMetric(
        "plies", "legal plies of a game before an illegal one or the end; also by colour and phase", "rises"),
    "selfplay/illegal_rate": EvaluationMetric(
        "fraction", "illegal plies over all plies tried; `n` counts plies; also by colour and phase", "falls"),
    "selfplay/ended": EvaluationMetric(
        "fraction", "games by their end: `…/checkmate`, `…/illegal_move` and so on, `…/cut` at the ply limit; "
        "`…/illegal_move/<slice>` by colour and phase", "fewer end by an illegal move"),
}  # fmt: skip


def _match(suite: str) -> _Table:
    return {
        f"{suite}/score": EvaluationMetric(
            "points", "mean of a pair's two games, 1 for a win and ½ for a draw; games at the ply limit are "
            "adjudicated; also `…/white` and `…/black`, by the model's colour", "rises"),
        f"{suite}/elo": EvaluationMetric(
            "Elo", "difference to the opponent that follows from the score; infinite if all games were won or lost",
            "rises"),
        f"{suite}/normalised_elo": EvaluationMetric(
            "Elo", "the lead over the standard deviation of a game, so that draws do not change its error", "rises"),
        f"{suite}/rules_score": EvaluationMetric(
            "points", f"`{suite}/score` with all games at the ply limit drawn", "rises"),
    } | _fractions(suite, {
        "won": ("games won", "rises"),
        "drawn": ("games drawn, by rule or by adjudication", "–"),
        "lost": ("games lost", "falls"),
        "ended": ("games by their end: `…/checkmate`, `…/stalemate` and so on, `…/adjudicated_engine` and "
                  "`…/adjudicated_material` at the ply limit", "more end by mate"),
    })  # fmt: skip


_MATCHES = _match("engine_match") | _match("match") | _fractions("engine_match", {
    "illegal": ("games lost by an illegal move of the model", "near 0"),
}) | _fractions("match", {
    "illegal": ("moves of the model whose first completion was illegal; with `match.illegal=loses`, games lost by one",
                "near 0"),
    "replaced": ("moves of the model that stayed illegal and were replaced by a random one", "near 0"),
    "opponent_illegal": ("`match/illegal` of the opponent", "–"),
    "opponent_replaced": ("`match/replaced` of the opponent", "–"),
})  # fmt: skip


def _label_loss(task: str) -> _Table:
    return {
        f"label_loss/{task}": EvaluationMetric(
            "nats per example", "cross-entropy of the label and its end of text; a rise is forgetting", "falls"),
        f"label_loss/{task}_per_token": EvaluationMetric(
            "nats per token", "mean over examples of the same per token of the model's own tokenizer", "falls"),
    }  # fmt: skip


EVALUATION_METRICS: _Table = {
    **_POLICY,
    **_fractions("environment", _TRANSITION),
    "environment/reward_mae": _REWARD_ERROR,
    **_fractions("environment", _RECALLS),
    **_MOVES,
    **_GAMES,
    **_MATCHES,
    **_label_loss("policy"),
    **_label_loss("environment"),
    **_fractions(
        "conversion",
        {
            "won": (
                "won positions in which the player mates within 50 moves; also `…/<advantage>_<defender>`",
                "rises",
            ),
            "ended": ("games by their end: `…/checkmate`, `…/stalemate` and so on, `…/cut` after 50 moves", "–"),
        },
    ),
}
"""The metrics of all suites by key. A key with a longer name, such as a slice, has the meaning of its prefix."""
