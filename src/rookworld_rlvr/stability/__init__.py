"""Faults, guards, recovery, the controllers of KL and entropy, and the reference model."""
