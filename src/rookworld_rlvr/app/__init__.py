"""The command line: the only package that knows hydra; it wires the others together."""
