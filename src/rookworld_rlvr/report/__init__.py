"""A run as a page, and what came of it in sentences."""
