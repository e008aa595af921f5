"""Evaluation on held-out data: pure functions that turn completions into a table of metrics with intervals.

Read in this order: `scoring` (one row), `table` (many rows), `keys` (meaning of values), `intervals` (uncertainty).
"""
