"""Faults, guards, recovery, and the reference model."""
