"""Sampling: prompts become groups of scored completions, and those become a batch to train on."""
