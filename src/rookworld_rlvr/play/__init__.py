"""Play against the model: the choice of its move in a position, the UCI engine, and the play page."""
