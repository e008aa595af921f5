"""Data of `rookworld data`: rows by an engine, rows of a model's games, and evaluations of existing rows."""
