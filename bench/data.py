"""The data of the benchmarks: one episode, the same for every format."""

from __future__ import annotations

import numpy as np

import warpdata as wd


def frames(steps: int, height: int = 84, width: int = 84) -> np.ndarray:
    """A textured scene that moves, with coarse sensor noise: zstd shrinks it to about a third."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0:width]
    texture = np.kron(rng.integers(0, 60, (height // 6 + 1, width // 6 + 1, 3)), np.ones((6, 6, 1), int))
    texture = texture[:height, :width]
    out = np.empty((steps, height, width, 3), np.uint8)
    for step in range(steps):
        wave = 90 + 60 * np.sin(x / 9 + step / 10) + 40 * np.cos(y / 7 - step / 17)
        speckle = rng.random((height, width, 1)) < 0.02
        scene = wave[..., None] // 4 * 4 + np.roll(texture, step // 3, 1) + 9 * speckle
        out[step] = np.clip(scene, 0, 255)
    return out


def episode(steps: int) -> wd.WShardEpisode:
    """`steps` of 84×84×3 bytes and two f32[7]."""
    rng = np.random.default_rng(1)
    made = wd.WShardEpisode(id="bench", length=steps)
    made.observations["rgb"] = frames(steps)
    made.observations["state"] = rng.normal(size=(steps, 7)).astype(np.float32)
    made.actions["ctrl"] = rng.normal(size=(steps, 7)).astype(np.float32)
    made.rewards = rng.normal(size=steps).astype(np.float32)
    made.terminations = np.zeros(steps, bool)
    return made
