"""Options of an evaluation: one name for each value in `rookworld train` and in `rookworld evaluate`."""

from dataclasses import dataclass
from enum import StrEnum


class Decoding(StrEnum):
    """Way in which a model chooses a move."""

    auto = "auto"
    """`legal` in matches and won positions if the model can, otherwise `text`."""
    legal = "legal"
    """The likeliest legal move, see `legal_choice`."""
    text = "text"
    """The move that it writes, which may be illegal."""


@dataclass(slots=True)
class EvaluationBaseConfig:
    """Options that `train` and `evaluate` share."""

    rows: int = 2048
    """Number of held-out rows per task that are evaluated, counted from the first."""
    mates: str = ""
    """File of mates in one, which the suite mate_in_one needs: JSON lines with `fen` and `best`, or BIG-bench's
    task.json. A training run evaluates those that it does not train on, before and after training. Empty: none."""
    match_pairs: int = 32
    """Number of openings of the match. Each is played with both colours."""
    match_plies: int = 60
    """Number of plies after the opening at which a game of the match ends and is adjudicated, by Stockfish if it is
    installed and otherwise by material."""
    decoding: Decoding = Decoding.auto
    """How a model chooses its moves: `legal`, the likeliest legal move, or `text`, the move that it writes. `auto` is
    `legal` in matches and won positions, if the task's completions begin with the move, and `text` in puzzles and in
    games that count illegal moves. Held-out rows have both, see `policy/legal_choice_loss`, except with `text`."""

    def __post_init__(self) -> None:
        if self.match_pairs < 0 or self.match_plies < 1:
            raise ValueError(
                "evaluation: expected match_pairs from 0 and match_plies from 1, "
                f"got {self.match_pairs} and {self.match_plies}"
            )


@dataclass(slots=True)
class EvaluationConfig(EvaluationBaseConfig):
    """Options of the evaluation before and after training, of the match at the end, and of the learning curve.

    With 0 rows there is no evaluation, and no sampled rows, mates in one or match. With 0 match_pairs there is no match
    against the starting model.
    """

    sampled_rows: int = 256
    """Number of held-out rows per task, counted from the first, that are also sampled 8 times each, at the training
    temperature. 0: none."""
    curve_every: int = 25
    """Number of steps between validations, which give the learning curve and decide which checkpoint is the best. The
    start and the last step have one too. 0: none; training itself does not change."""
    curve_rows: int = 128
    """Number of training rows per task that are held back for validation, at most a tenth of the task's rows."""

    def __post_init__(self) -> None:
        EvaluationBaseConfig.__post_init__(self)
        if self.rows < 0 or self.sampled_rows < 0:
            raise ValueError(
                f"evaluation: expected rows and sampled_rows from 0 up, got {self.rows} and {self.sampled_rows}"
            )
        if self.curve_every < 0 or self.curve_rows < 1:
            raise ValueError(
                "evaluation: expected curve_every from 0 and curve_rows from 1, "
                f"got {self.curve_every} and {self.curve_rows}"
            )


@dataclass(slots=True)
class SuitesConfig(EvaluationBaseConfig):
    """Options of the suites of `rookworld evaluate`."""

    rows: int = 2048
    """Number of held-out rows per task that are evaluated, counted from the first; also the largest number of puzzles,
    and of games of llm_chess and acpl."""
    match_pairs: int = 100
    """Number of openings of the match. Each is played with both colours."""
    match_plies: int = 200
    """Number of plies after the opening at which a game of the match ends and is adjudicated, by Stockfish if it is
    installed and otherwise by material."""
    nodes: int = 0
    """Nodes per position that the engine searches for policy/win_probability_loss and for acpl. 0: use the file
    `move_evals`, and 20,000 nodes for acpl."""
    puzzles: str = ""
    """File of puzzles, which the suite puzzles needs: Lichess's CSV file, decompressed. Empty: none."""

    def __post_init__(self) -> None:
        EvaluationBaseConfig.__post_init__(self)
        if self.rows < 1:
            raise ValueError(f"evaluation.rows: expected 1 or more, got {self.rows}")
        if self.nodes < 0:
            raise ValueError(f"evaluation.nodes: expected 0 or more, got {self.nodes}")
