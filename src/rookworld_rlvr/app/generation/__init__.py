"""Data generation of `rookworld data`: new rows, rows of given games, and move evaluations of existing rows."""
