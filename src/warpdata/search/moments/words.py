"""What an index of trajectories calls its collections, and how near two vectors are in it."""

from __future__ import annotations

CHANNELS = "channels"
"""The note of a file that names the channels of its vectors."""
EPISODES, TIMESTEPS = "traj_episodes", "traj_timesteps"


def similarity(metric: str, distance: float) -> float:
    """A distance as a similarity: larger is nearer."""
    return 1 - distance if metric == "cosine" else -distance
