"""Playing the model: what move it makes in a position, and how chess programs talk to it."""
