"""The trainer. Read `step.py` first: one GRPO step from top to bottom."""
