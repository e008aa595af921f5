"""Stockfish: a UCI process, an engine, a pool of engines, and a cache of their analyses on disk."""
