"""Recipe of the model that ships: data by Stockfish, training from nothing, export and evaluation."""
