"""Train quantisers, turn vectors into codes and codes back into vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.rvf.quant import (
    BinaryQuant,
    ProductQuant,
    Quantiser,
    ResidualQuant,
    ScalarQuant,
)
from warpdata.search.query import ann

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

CODE_DTYPES = {"scalar": "u8", "pq": "pq", "binary": "binary", "residual_pq": "pq"}
PRODUCTS = ("pq", "residual_pq")
FOREIGN_DTYPES = {
    "scalar": ("u8", "i8"), "pq": ("pq", "custom"), "binary": ("binary",), "residual_pq": ("pq", "custom"),
}  # fmt: skip
"""Which rows of another program's file are codes of a dictionary of this kind."""
_CHUNK_ROWS = 8192
_COARSE_TRIED = 3


def train(kind: str, vectors: Floats, code_bytes: int) -> Quantiser:
    """A quantiser fitted to these vectors; `code_bytes` sets the length of product codes."""
    if kind == "scalar":
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        return ScalarQuant(low, np.where(high > low, high, low + 1).astype(np.float32))
    if kind == "binary":
        return BinaryQuant(np.median(vectors, axis=0).astype(np.float32))
    dim = vectors.shape[1]
    parts = _parts(dim, code_bytes)
    if kind == "pq":
        return ProductQuant(dim, ann.train_codebook(_widened(vectors, parts), parts))
    centroids = ann.cluster(vectors, _coarse_count(len(vectors)), rounds=25)
    residual = vectors - centroids[ann.assign(vectors, centroids)]
    return ResidualQuant(dim, centroids, ann.train_codebook(_widened(residual, parts), parts))


def _coarse_count(rows: int) -> int:
    return int(min(4096, max(1, round(1.25 * rows**0.5))))


def _parts(dim: int, code_bytes: int) -> int:
    """How many sub-vectors of equal length: as many as a code may have bytes, or fewer that cover it all."""
    sub_dim = -(-dim // code_bytes)
    return -(-dim // sub_dim)


def _widened(vectors: Floats, parts: int) -> Floats:
    """Vectors with zeros up to a multiple of the number of sub-vectors."""
    sub_dim = -(-vectors.shape[1] // parts)
    extra = parts * sub_dim - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, extra))) if extra else np.ascontiguousarray(vectors)


def encode(quant: Quantiser, vectors: Floats) -> Codes:
    """The code of each vector."""
    return quant.encode(vectors)


def unsigned(codes: NDArray[Any]) -> Codes:
    """Signed codes as the unsigned ones they stand for: -128 is the smallest value, 127 the largest."""
    shifted: Codes = (codes.view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    return shifted


def decode(quant: Quantiser, codes: NDArray[Any]) -> Floats:
    """The vectors that codes stand for."""
    return quant.decode(codes)
