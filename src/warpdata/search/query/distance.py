"""Distances (smaller is nearer) and exact nearest-neighbour search with an error bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

_CHUNK_ROWS = 16_384
_QUERIES_AT_ONCE = 256
_GATHER_SHARE = 4
"""Below a quarter of the rows, copying the allowed ones together pays."""
_MAX_CANDIDATES = 1 << 16
"""A query with more candidates than this keeps only the k best of them before the next chunk."""
_CENTRE_SAMPLE = 256
_SPACE_SAMPLE = 4096
_CONCENTRATED = 0.01
_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e36
"""Outside of this range the squares of f32 numbers lose digits, and f64 takes over."""


def normalised(vectors: Floats) -> Floats:
    """Vectors of length one; a zero vector stays zero."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    odd = ~((squares > _LEAST_SQUARE) & (squares < _MOST_SQUARE))
    squares[odd] = 1
    out = np.ascontiguousarray(vectors / np.sqrt(squares)[:, None], np.float32)
    if odd.any():
        out[odd] = _units(vectors[odd].astype(np.float64))
    return out


def _units(vectors: Doubles) -> Doubles:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def is_ordinary(vectors: Floats) -> bool:
    """Whether the squares of these vectors stay within f32."""
    if not vectors.size:
        return True
    largest = max(float(vectors.max()), -float(vectors.min()))
    return largest == 0 or (
        largest * largest > _LEAST_SQUARE and largest**2 * vectors.shape[1] < _MOST_SQUARE
    )


def has_ordinary_squares(queries: Floats) -> bool:
    """Whether the square of each query stays within f32; false for zero vectors."""
    if len(queries) == 1:
        return _LEAST_SQUARE < float(np.vdot(queries, queries)) < _MOST_SQUARE
    squares = np.einsum("ij,ij->i", queries, queries)
    return bool(squares.min() > _LEAST_SQUARE and squares.max() < _MOST_SQUARE)


def prepared(vectors: Floats, metric: str) -> Floats:
    """Vectors as an index compares them: of length one for cosine, unchanged otherwise."""
    return normalised(vectors) if metric == "cosine" else np.ascontiguousarray(vectors, np.float32)


@dataclass(frozen=True, slots=True)
class WalkSpace:
    """Where a graph compares vectors: by distance or by inner product, for cosine with unit vectors.

    Unit vectors of data far from the origin nearly coincide; they are compared around their centre, in which f32 has
    digits for their differences.
    """

    metric: str
    by_distance: bool
    """Whether scores are squared distances; otherwise they are inner products."""
    centre: Doubles | None = None

    @classmethod
    def of(cls, vectors: Floats, metric: str) -> WalkSpace:
        """The space for these vectors; among vectors without direction, cosines are inner products."""
        if metric != "cosine" or not vectors[vectors[:, 0] == 0].any(axis=1).all():
            return cls(metric, metric == "l2")
        sample = vectors[:: max(1, len(vectors) // _SPACE_SAMPLE)].astype(np.float64)
        centre = _units(sample).mean(axis=0)
        return cls(metric, True, centre if 1 - centre @ centre < _CONCENTRATED else None)

    def place(self, vectors: Floats) -> Floats:
        """Vectors as the graph has them."""
        if self.centre is None:
            return prepared(vectors, self.metric)
        out = np.empty(vectors.shape, np.float32)
        for start in range(0, len(vectors), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            out[part] = _units(vectors[part].astype(np.float64)) - self.centre
        return out

    def distances(self, scores: Floats) -> Floats:
        """Scores of a walk as distances of the metric."""
        if self.metric == "cosine":
            return scores * np.float32(0.5) if self.by_distance else 1 - scores
        return scores if self.by_distance else -scores


def distances(query: Floats, vectors: Floats, metric: str) -> Doubles:
    """Distances of one query to vectors, computed in f64 from differences."""
    wide, point = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "ip":
        return -np.asarray(wide @ point)
    if metric == "cosine":
        wide, point = _units(wide), _units(point)
    away = wide - point
    squares: Doubles = np.einsum("ij,ij->i", away, away)
    if metric == "l2":
        return squares
    has_direction = wide.any(axis=1) & point.any()
    return np.where(has_direction, squares / 2, 1.0)


def nearest(
    queries: Floats,
    vectors: Floats,
    k: int,
    metric: str,
    allowed: Mask | None = None,
    units: Floats | None = None,
) -> tuple[Rows, Doubles]:
    """The k nearest allowed rows of each query, exactly and nearest first; row -1 at infinity where there are fewer.

    A matrix product gives a score with an error bound for every row. Rows that the bound cannot exclude are
    compared in f64. Equal distances are ordered by row. `units` are the vectors normalised by `normalised`.
    """
    if allowed is not None and allowed.sum() * _GATHER_SHARE < len(vectors):
        chosen = np.flatnonzero(allowed)
        rows, away = nearest(
            queries, vectors[chosen], k, metric, None, None if units is None else units[chosen]
        )
        return (np.where(rows < 0, -1, chosen[rows]) if len(chosen) else rows), away
    count = min(k, len(vectors))
    rows = np.full((len(queries), count), -1, np.int64)
    away = np.full((len(queries), count), np.inf)
    if count:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            part = slice(start, start + _QUERIES_AT_ONCE)
            _nearest_part(queries[part], vectors, metric, allowed, units, rows[part], away[part])
    return rows, away


def _nearest_part(
    queries: Floats,
    vectors: Floats,
    metric: str,
    allowed: Mask | None,
    units: Floats | None,
    rows: Rows,
    away: Doubles,
) -> None:
    """Fill rows and distances of some queries, chunk by chunk in bounded memory."""
    scorer = _Scorer(queries, vectors, metric)
    pools = [_Pool(query, vectors, rows.shape[1], metric) for query in queries]
    for start in range(0, len(vectors), _CHUNK_ROWS):
        stop = start + _CHUNK_ROWS
        scores = scorer.score(vectors[start:stop], None if units is None else units[start:stop])
        may = None if allowed is None else allowed[start:stop]
        for number, pool in enumerate(pools):
            pool.add(start, scores, number, may)
    for number, pool in enumerate(pools):
        best, far = pool.best()
        rows[number, : len(best)], away[number, : len(best)] = best, far


class _Scores(NamedTuple):
    """Bounds of the scores of a chunk: `products[q] + lower - lengths[q] * slope`, and the same with `upper +`."""

    products: NDArray[Any]
    lower: NDArray[Any]
    upper: NDArray[Any]
    slope: NDArray[Any]
    lengths: NDArray[Any]


class _Scorer:
    """Scores of rows for some queries, by one matrix product per chunk, with error bounds.

    The score of l2 is `|a|^2 - 2 a.b` for vector a and query b, both minus a centre near the data; one query is its
    own centre. Cosine compares unit vectors like l2. Inner products need the centre in the vectors only. The bounds
    hold for any order of summation: a sum of n products rounded to u has an error below `n u / (1 - n u)` times the
    sum of their sizes.
    """

    def __init__(self, queries: Floats, vectors: Floats, metric: str) -> None:
        self._metric = metric
        sample = vectors[:: max(1, len(vectors) // _CENTRE_SAMPLE)]
        if metric == "cosine":
            queries, sample = normalised(queries), normalised(sample)
        self._queries = queries
        self._centre = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
        if len(queries) == 1 and metric != "ip":
            self._centre = queries[0]
        self._is_narrow = is_ordinary(queries)

    def score(self, block: Floats, units: Floats | None) -> _Scores:
        """The scores of a chunk in f32, or in f64 where squares leave the range of f32."""
        if self._metric == "cosine":
            block = normalised(block) if units is None else units
        with np.errstate(over="ignore", invalid="ignore"):
            moved = block - self._centre
            squares = np.einsum("ij,ij->i", moved, moved)
        if self._is_narrow and _LEAST_SQUARE < float(squares.max()) < _MOST_SQUARE:
            return self._bounded(block, moved, squares)
        wide = block.astype(np.float64) - self._centre
        return self._bounded(block, wide, np.einsum("ij,ij->i", wide, wide))

    def _bounded(self, block: Floats, moved: NDArray[Any], squares: NDArray[Any]) -> _Scores:
        dtype = moved.dtype
        points = self._queries.astype(dtype)
        points = points if self._metric == "ip" else points - self._centre
        lengths, sizes = np.linalg.norm(points, axis=1), np.sqrt(squares)
        rounding, terms = float(np.finfo(dtype).eps), block.shape[1] + 8
        summing = 1.1 * terms * rounding / (1 - terms * rounding)
        of_units = (block.shape[1] / 2 + 4) * float(np.finfo(np.float32).eps)
        own = of_units if self._metric == "cosine" else 0.0
        inexact = own + 1.1 * rounding * sizes
        least = 8 * block.shape[1] * float(np.finfo(dtype).tiny)
        if self._metric == "ip":
            slope = summing * sizes + inexact + rounding * sizes
            return _Scores(
                -(points @ moved.T), np.full_like(sizes, -least), np.full_like(sizes, least), slope, lengths
            )
        both = 2 * (inexact + sizes)
        fixed = 1.1 * (summing * squares + 2 * sizes * inexact + inexact**2 + own * both) + least
        slope = 1.1 * (2 * summing * sizes + 2 * inexact + rounding * both)
        lower, upper = squares - fixed, squares + fixed
        if self._metric == "cosine":  # a vector without direction has distance 1 from everything
            missing = ~block.any(axis=1)
            lower[missing], upper[missing] = -np.inf, np.inf
        return _Scores(-2 * (points @ moved.T), lower, upper, slope, lengths)


class _Pool:
    """Rows that may be among the k nearest of one query."""

    def __init__(self, query: Floats, vectors: Floats, k: int, metric: str) -> None:
        self._query, self._vectors, self._k, self._metric = query, vectors, k, metric
        self._rows: Rows = np.zeros(0, np.int64)
        self._lower, self._upper = np.zeros(0), np.zeros(0)
        self._limit = np.inf
        """At least k rows are known to score at most this."""

    def add(self, start: int, scores: _Scores, number: int, may: Mask | None) -> None:
        """Take the rows of a chunk that their bounds do not exclude."""
        spread = scores.slope * scores.lengths[number]
        lower = scores.products[number] + scores.lower - spread
        close = lower <= self._limit
        rows = np.flatnonzero(close if may is None else close & may)
        if not len(rows):
            return
        upper = scores.products[number][rows] + scores.upper[rows] + spread[rows]
        self._rows = np.concatenate([self._rows, rows + start])
        self._lower = np.concatenate([self._lower, lower[rows]])
        self._upper = np.concatenate([self._upper, upper])
        if len(self._rows) > self._k:
            self._limit = min(self._limit, float(np.partition(self._upper, self._k - 1)[self._k - 1]))
            self._keep(self._lower <= self._limit)
        if len(self._rows) > max(_MAX_CANDIDATES, 2 * self._k):
            best, _ = self.best()
            self._keep(np.isin(self._rows, best))

    def _keep(self, kept: Mask) -> None:
        self._rows, self._lower, self._upper = self._rows[kept], self._lower[kept], self._upper[kept]

    def best(self) -> tuple[Rows, Doubles]:
        """The k nearest of the rows kept so far, and their distances."""
        pieces = [self._rows[at : at + _CHUNK_ROWS] for at in range(0, len(self._rows), _CHUNK_ROWS)]
        far = [distances(self._query, self._vectors[piece], self._metric) for piece in pieces]
        away = np.concatenate([np.zeros(0), *far])
        order = np.lexsort((self._rows, away))[: self._k]
        return self._rows[order], away[order]


def merge_nearest(parts: list[tuple[Rows, NDArray[Any]]], k: int) -> tuple[Rows, NDArray[Any]]:
    """The k nearest of several results for the same queries; a missing result is id -1 at infinity."""
    ids = np.concatenate([part[0] for part in parts], axis=1)
    away = np.concatenate([part[1] for part in parts], axis=1)
    order = np.lexsort((ids < 0, away), axis=1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(away, order, 1)
