"""The command line. It connects the other packages, and is the only one that imports hydra."""
