"""The vectors of the search benchmarks: clustered, of low intrinsic dimension, from a fixed seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def clustered(rows: int, dim: int, *, queries: int, seed: int = 7) -> tuple[Floats, Floats]:
    """Rows and queries of one mixture: clusters that spread in a few directions of their own, plus noise."""
    rng = np.random.default_rng(seed)
    clusters = max(8, rows // 250)
    latent = 12
    centers = rng.normal(size=(clusters, dim)).astype(np.float32)
    spread = (rng.normal(size=(clusters, latent, dim)) / np.sqrt(latent)).astype(np.float32)
    out = np.empty((rows + queries, dim), np.float32)
    owner = rng.integers(0, clusters, len(out))
    for start in range(0, len(out), 8192):
        part = owner[start : start + 8192]
        weights = rng.normal(size=(len(part), latent)).astype(np.float32)
        out[start : start + 8192] = centers[part] + np.einsum("il,ild->id", weights, 0.7 * spread[part])
    out += (0.1 * rng.normal(size=out.shape)).astype(np.float32)
    return out[:rows], out[rows:]


def truth(vectors: Floats, queries: Floats, k: int) -> NDArray[np.int64]:
    """The exact nearest rows of each query (l2)."""
    norms = np.einsum("ij,ij->i", vectors, vectors)
    found = []
    for start in range(0, len(queries), 64):
        scores = norms - 2 * (queries[start : start + 64] @ vectors.T)
        best = np.argpartition(scores, k, axis=1)[:, :k]
        found.append(np.take_along_axis(best, np.take_along_axis(scores, best, 1).argsort(1), 1))
    return np.concatenate(found)


def recall(found: NDArray[np.int64], expected: NDArray[np.int64]) -> float:
    """The share of the expected neighbours that were found."""
    hits = [len(set(a[a >= 0].tolist()) & set(b.tolist())) for a, b in zip(found, expected, strict=True)]
    return sum(hits) / expected.size
