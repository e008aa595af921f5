"""UCI engines: a process, one engine, several of them, and their verdicts on disk."""
