"""Checks of episodes: rules for one episode, and for an episode beside the others of its set."""
