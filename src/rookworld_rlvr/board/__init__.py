"""Chess rules as pure functions on top of python-chess."""
