"""The trainer. Read `step.py` first: it has one GRPO step from beginning to end."""
