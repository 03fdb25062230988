"""Train quantisers, turn vectors into codes and codes back into vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.segments.quant import (
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
    if isinstance(quant, ScalarQuant):
        share = np.clip((vectors - quant.low) / (quant.high - quant.low), 0, 1)
        codes: Codes = np.rint(share * 255).astype(np.uint8)
        return codes
    if isinstance(quant, BinaryQuant):
        return np.packbits(vectors >= quant.threshold, axis=1, bitorder="little")
    if isinstance(quant, ProductQuant):
        return _encode_parts(quant.codebook, vectors)
    pieces = [vectors[start : start + _CHUNK_ROWS] for start in range(0, len(vectors), _CHUNK_ROWS)]
    empty = np.zeros((0, quant.code_bytes), np.uint8)
    return np.concatenate([empty, *(_encode_residual(quant, piece) for piece in pieces)])


def _encode_residual(quant: ResidualQuant, vectors: Floats) -> Codes:
    """Of the nearest coarse centroids the one whose code comes closest: often not the nearest of them."""
    best = np.full(len(vectors), np.inf, np.float32)
    out = np.empty((len(vectors), quant.code_bytes), np.uint8)
    for centroid in ann.nearest_centroids(vectors, quant.coarse, _COARSE_TRIED).T:
        head = centroid.astype("<u2").view(np.uint8).reshape(-1, 2)
        codes = np.concatenate(
            [head, _encode_parts(quant.codebook, vectors - quant.coarse[centroid])], axis=1
        )
        miss = decode(quant, codes) - vectors
        away = np.einsum("ij,ij->i", miss, miss)
        closer = away < best
        out[closer], best[closer] = codes[closer], away[closer]
    return out


def _encode_parts(codebook: Floats, vectors: Floats) -> Codes:
    parts, _, sub_dim = codebook.shape
    wide = _widened(vectors, parts)
    codes = np.empty((len(vectors), parts), np.uint8)
    norms = np.einsum("mkd,mkd->mk", codebook, codebook)
    for start in range(0, len(wide), _CHUNK_ROWS):
        piece = wide[start : start + _CHUNK_ROWS]
        for part in range(parts):
            sub = piece[:, part * sub_dim : (part + 1) * sub_dim]
            scores = norms[part] - 2 * (sub @ codebook[part].T)
            codes[start : start + len(piece), part] = scores.argmin(axis=1)
    return codes


def unsigned(codes: NDArray[Any]) -> Codes:
    """Signed codes as the unsigned ones they stand for: -128 is the smallest value, 127 the largest."""
    shifted: Codes = (codes.view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    return shifted


def decode(quant: Quantiser, codes: NDArray[Any]) -> Floats:
    """The vectors that codes stand for."""
    if codes.dtype != np.uint8 or codes.shape[1] != quant.code_bytes:
        raise CorruptLayoutError("the codes are not those of their quantiser")
    if isinstance(quant, ScalarQuant):
        return (quant.low + codes.astype(np.float32) * ((quant.high - quant.low) / 255)).astype(np.float32)
    if isinstance(quant, BinaryQuant):
        bits = np.unpackbits(np.ascontiguousarray(codes), axis=1, bitorder="little", count=quant.dim)
        return np.where(bits, quant.threshold + 1, quant.threshold - 1).astype(np.float32)
    if isinstance(quant, ProductQuant):
        return _decode_parts(quant.codebook, codes)[:, : quant.dim]
    chosen = np.ascontiguousarray(codes[:, :2]).view("<u2")[:, 0]
    if chosen.size and chosen.max() >= len(quant.coarse):
        raise CorruptLayoutError("a code names a coarse centroid that does not exist")
    found: Floats = quant.coarse[chosen] + _decode_parts(quant.codebook, codes[:, 2:])[:, : quant.dim]
    return found


def _decode_parts(codebook: Floats, codes: NDArray[Any]) -> Floats:
    parts, k, sub_dim = codebook.shape
    if codes.size and codes.max() >= k:
        raise CorruptLayoutError("a code names a centroid that does not exist")
    out = np.empty((len(codes), parts, sub_dim), np.float32)
    for part in range(parts):
        out[:, part] = codebook[part][codes[:, part]]
    return out.reshape(len(codes), parts * sub_dim)
