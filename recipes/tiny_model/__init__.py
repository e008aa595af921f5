"""Recipe of the model that ships: data from Stockfish, training from scratch, export and evaluation."""
