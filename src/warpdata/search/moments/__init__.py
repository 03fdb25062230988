"""Similar moments of episodes: embedders, indexes of trajectories."""
