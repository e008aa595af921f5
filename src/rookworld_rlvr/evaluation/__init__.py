"""Evaluation on held-out data: pure functions that turn completions into a table of metrics with intervals.

Read in this order: `scoring` (one row), `table` (many rows), `keys` (meaning of values), `intervals` (uncertainty).
"""

from .intervals import mean_interval, wilson_interval
from .scoring import MoveEvaluator, score_environment_row, score_policy_row
from .table import Gain, Measure, Row, paired_gain, score_examples, summarise, to_json

__all__ = [
    "MoveEvaluator",
    "Gain",
    "Measure",
    "Row",
    "score_examples",
    "score_environment_row",
    "score_policy_row",
    "mean_interval",
    "paired_gain",
    "summarise",
    "to_json",
    "wilson_interval",
]
