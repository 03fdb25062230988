"""Distances, always smaller is nearer, and the exact nearest vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import nearest as closest_name

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

METRICS = ("l2", "ip", "cosine")
_CHUNK_ROWS = 16_384
_GATHER_SHARE = 4
"""Below a quarter of the rows, copying the allowed ones together pays."""
_SLACK = 8
"""How many more candidates than asked survive the fast distances before the precise ones decide."""
_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e36
"""Outside of these the squares of f32 numbers lose their digits, and f64 takes over."""


def check_metric(metric: str) -> str:
    """The metric, or ValueError."""
    if metric not in METRICS:
        raise ValueError(
            f"unknown metric {metric!r}; use one of {', '.join(METRICS)}.{closest_name(str(metric), METRICS)}"
        )
    return metric


def normalised(vectors: Floats) -> Floats:
    """Vectors of length one; a zero vector stays zero."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    odd = ~((squares > _LEAST_SQUARE) & (squares < _MOST_SQUARE))
    squares[odd] = 1
    out = np.ascontiguousarray(vectors / np.sqrt(squares)[:, None], np.float32)
    if odd.any():
        wide = vectors[odd].astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1)
        lengths[lengths == 0] = 1
        out[odd] = wide / lengths[:, None]
    return out


def is_ordinary(vectors: Floats) -> bool:
    """Whether the squares of these vectors stay within f32."""
    if not vectors.size:
        return True
    largest = max(float(vectors.max()), -float(vectors.min()))
    return largest == 0 or (
        largest * largest > _LEAST_SQUARE and largest**2 * vectors.shape[1] < _MOST_SQUARE
    )


def prepared(vectors: Floats, metric: str) -> Floats:
    """Vectors as the index compares them: of length one for cosine, as they are otherwise."""
    return normalised(vectors) if metric == "cosine" else np.ascontiguousarray(vectors, np.float32)


def pair_distances(query: Floats, vectors: Floats, metric: str) -> Floats:
    """Precise distances of one prepared query to prepared vectors."""
    if metric == "l2":
        difference = vectors - query
        squares: Floats = np.einsum("ij,ij->i", difference, difference)
        return squares
    dots = vectors @ query
    return (1 - dots if metric == "cosine" else -dots).astype(np.float32)


def nearest(
    queries: Floats, vectors: Floats, k: int, metric: str, allowed: NDArray[np.bool_] | None = None
) -> tuple[Rows, Floats]:
    """The k nearest allowed rows of each prepared query, exactly, nearest first; row -1 for none."""
    if allowed is not None and allowed.sum() * _GATHER_SHARE < len(vectors):
        chosen = np.flatnonzero(allowed)
        rows, distances = nearest(queries, vectors[chosen], k, metric)
        return (chosen[rows] if len(chosen) else rows), distances
    count = min(k, len(vectors))
    if count == 0:
        return np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
    keep = min(count + _SLACK, len(vectors)) if metric == "l2" else count
    with np.errstate(over="ignore", invalid="ignore"):
        found = _fast_nearest(queries, vectors, keep, metric, allowed)
    if found is None:
        return _wide_nearest(queries, vectors, count, metric, allowed)
    rows, scores = found
    missing = np.isinf(scores)
    if metric == "l2":
        for index, query in enumerate(queries):
            scores[index] = pair_distances(query, vectors[rows[index]], metric)
    elif metric == "cosine":
        scores += 1
    rows[missing], scores[missing] = -1, np.inf
    order = np.lexsort((rows, scores), axis=1)[:, :count]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)


def _fast_nearest(
    queries: Floats, vectors: Floats, keep: int, metric: str, allowed: NDArray[np.bool_] | None
) -> tuple[Rows, Floats] | None:
    """Candidates by one matrix product per chunk of rows, in bounded memory; None if f32 is too narrow."""
    if not is_ordinary(queries):
        return None
    best_rows = np.zeros((len(queries), 0), np.int64)
    best = np.zeros((len(queries), 0), np.float32)
    chunk = max(keep, _CHUNK_ROWS if len(queries) < 256 else _CHUNK_ROWS // 8)
    for start in range(0, len(vectors), chunk):
        block = vectors[start : start + chunk]
        scores = queries @ block.T
        if metric == "l2":
            squares = np.einsum("ij,ij->i", block, block)
            scores *= -2
            scores += squares
            largest = float(squares.max())
        else:
            np.negative(scores, out=scores)
            largest = max(float(scores.max()), -float(scores.min()))
        if not (_LEAST_SQUARE < largest < _MOST_SQUARE) and not is_ordinary(block):
            return None
        if allowed is not None:
            scores[:, ~allowed[start : start + chunk]] = np.inf
        rows = np.broadcast_to(np.arange(start, start + len(block)), scores.shape)
        best, best_rows = _smallest(
            np.concatenate([best, scores], axis=1), np.concatenate([best_rows, rows], axis=1), keep
        )
    return best_rows, best


def _wide_nearest(
    queries: Floats, vectors: Floats, count: int, metric: str, allowed: NDArray[np.bool_] | None
) -> tuple[Rows, Floats]:
    """The same in f64, for numbers so large or small that f32 cannot tell their distances apart."""
    rows = np.empty((len(queries), count), np.int64)
    distances = np.empty((len(queries), count), np.float32)
    for number, query in enumerate(queries.astype(np.float64)):
        away = np.empty(len(vectors))
        for start in range(0, len(vectors), _CHUNK_ROWS):
            block = vectors[start : start + _CHUNK_ROWS].astype(np.float64)
            far = ((block - query) ** 2).sum(axis=1) if metric == "l2" else -(block @ query)
            away[start : start + len(block)] = far + (metric == "cosine")
        forbidden = np.zeros(len(vectors), bool) if allowed is None else ~allowed
        rows[number] = np.lexsort((away, forbidden))[:count]
        with np.errstate(over="ignore"):
            distances[number] = away[rows[number]]
        missing = forbidden[rows[number]]
        rows[number, missing], distances[number, missing] = -1, np.inf
    return rows, distances


def _smallest(scores: Floats, rows: Rows, keep: int) -> tuple[Floats, Rows]:
    if scores.shape[1] <= keep:
        return scores, rows
    order = np.argpartition(scores, keep - 1, axis=1)[:, :keep]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def merge_nearest(parts: list[tuple[NDArray[np.int64], Floats]], k: int) -> tuple[NDArray[np.int64], Floats]:
    """The k nearest of several results for the same queries; a missing result is id -1 at infinity."""
    ids = np.concatenate([part[0] for part in parts], axis=1)
    distances = np.concatenate([part[1] for part in parts], axis=1)
    order = np.lexsort((ids < 0, distances), axis=1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(distances, order, 1)
