"""Faults, guards, recovery, the controller of the KL penalty, and the reference model."""
