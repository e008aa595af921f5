"""Reinforcement learning with verifiable rewards (RLVR) for chess language models."""

__version__ = "0.1.0"
