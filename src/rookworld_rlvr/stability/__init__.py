"""What keeps a run alive: faults, guards and the ladder that answers them, the controllers of KL and entropy."""
