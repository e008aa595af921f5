"""`rookworld data`: new rows by an engine, by games of a model, and verdicts on rows that are there."""
