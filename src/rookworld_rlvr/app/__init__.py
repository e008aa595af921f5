"""The command line: the only floor that knows hydra, and that every other one is wired on."""
