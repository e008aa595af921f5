"""Stockfish: a UCI process, one engine, several of them, and their analyses on disk."""
