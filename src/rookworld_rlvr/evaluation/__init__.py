"""Held-out metrics under the field's names: pure functions from texts to a table with intervals.

Read in this order: `policy`, `environment` and `engine_loss` (one row), `table` (many), `intervals` (how sure).
"""

from .engine_loss import VerdictMeasure
from .environment import judge_environment_row
from .intervals import mean_interval, wilson_interval
from .policy import judge_policy_row
from .table import Gain, Measure, Row, judge, paired_gain, summarise, to_json

__all__ = [
    "VerdictMeasure",
    "Gain",
    "Measure",
    "Row",
    "judge",
    "judge_environment_row",
    "judge_policy_row",
    "mean_interval",
    "paired_gain",
    "summarise",
    "to_json",
    "wilson_interval",
]
