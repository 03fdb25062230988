"""QUANT payloads: the dictionaries that turn vectors into codes and codes back into vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
_CHUNK_ROWS = 8192
_COARSE_TRIED = 3


@dataclass(frozen=True, slots=True)
class ScalarQuant:
    """One byte per dimension between a minimum and a maximum."""

    low: Floats
    high: Floats
    tier: int = layout.TIER_COLD
    kind = "scalar"

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return len(self.low)

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return len(self.low)

    def encode(self, vectors: Floats) -> Codes:
        """The code of each vector."""
        share = np.clip((vectors - self.low) / (self.high - self.low), 0, 1)
        return np.asarray(np.rint(share * 255), np.uint8)

    def decode(self, codes: NDArray[Any]) -> Floats:
        """The vectors that codes stand for."""
        _check_codes(self, codes)
        return np.asarray(self.low + codes.astype(np.float32) * ((self.high - self.low) / 255), np.float32)


@dataclass(frozen=True, slots=True)
class BinaryQuant:
    """One bit per dimension: at least the threshold, or below."""

    threshold: Floats
    tier: int = layout.TIER_COLD
    kind = "binary"

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return len(self.threshold)

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return (len(self.threshold) + 7) // 8

    def encode(self, vectors: Floats) -> Codes:
        """The code of each vector."""
        return np.packbits(vectors >= self.threshold, axis=1, bitorder="little")

    def decode(self, codes: NDArray[Any]) -> Floats:
        """The vectors that codes stand for."""
        _check_codes(self, codes)
        bits = np.unpackbits(np.ascontiguousarray(codes), axis=1, bitorder="little", count=self.dim)
        return np.where(bits, self.threshold + 1, self.threshold - 1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ProductQuant:
    """One byte per group of dimensions: the nearest of up to 256 centroids of that group.

    With coarse centroids a code begins with the u16 of one, and the rest stands for what remains.
    """

    dim: int
    codebook: Floats
    """(M, K, sub_dim); M * sub_dim may exceed dim, the rest is zero."""
    coarse: Floats | None = None
    tier: int = layout.TIER_COLD

    @property
    def kind(self) -> str:
        """How the quantisation is called."""
        return "pq" if self.coarse is None else "residual_pq"

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return int(self.codebook.shape[0]) + (0 if self.coarse is None else 2)

    def encode(self, vectors: Floats) -> Codes:
        """The code of each vector: of the nearest coarse centroids the one whose code comes closest."""
        if self.coarse is None:
            return self._product_codes(vectors)
        out = np.empty((len(vectors), self.code_bytes), np.uint8)
        centre = self.coarse.mean(axis=0)  # far from the origin the products would lose their digits
        moved = self.coarse - centre
        norms = np.einsum("ij,ij->i", moved, moved)
        tried = min(_COARSE_TRIED, len(moved))
        for start in range(0, len(vectors), _CHUNK_ROWS):
            piece = vectors[start : start + _CHUNK_ROWS]
            best = np.full(len(piece), np.inf, np.float32)
            scores = norms - 2 * ((piece - centre) @ moved.T)
            near = np.argpartition(scores, tried - 1, axis=1)[:, :tried]
            for centroid in near.T:
                head = centroid.astype("<u2").view(np.uint8).reshape(-1, 2)
                codes = np.concatenate([head, self._product_codes(piece - self.coarse[centroid])], axis=1)
                miss = self.decode(codes) - piece
                away = np.einsum("ij,ij->i", miss, miss)
                closer = np.flatnonzero(away < best)
                out[start + closer], best[closer] = codes[closer], away[closer]
        return out

    def _product_codes(self, vectors: Floats) -> Codes:
        parts, _, sub_dim = self.codebook.shape
        wide = widen(vectors, parts)
        codes = np.empty((len(vectors), parts), np.uint8)
        norms = np.einsum("mkd,mkd->mk", self.codebook, self.codebook)
        for start in range(0, len(wide), _CHUNK_ROWS):
            piece = wide[start : start + _CHUNK_ROWS]
            for part in range(parts):
                sub = piece[:, part * sub_dim : (part + 1) * sub_dim]
                scores = norms[part] - 2 * (sub @ self.codebook[part].T)
                codes[start : start + len(piece), part] = scores.argmin(axis=1)
        return codes

    def decode(self, codes: NDArray[Any]) -> Floats:
        """The vectors that codes stand for."""
        _check_codes(self, codes)
        parts, k, sub_dim = self.codebook.shape
        if codes.size and codes[:, -parts:].max() >= k:
            raise CorruptLayoutError("a code names a centroid that does not exist")
        out = np.empty((len(codes), parts, sub_dim), np.float32)
        for part in range(parts):
            out[:, part] = self.codebook[part][codes[:, part - parts]]
        rest = out.reshape(len(codes), parts * sub_dim)[:, : self.dim]
        if self.coarse is None:
            return rest
        chosen = np.ascontiguousarray(codes[:, :2]).view("<u2")[:, 0]
        if chosen.size and chosen.max() >= len(self.coarse):
            raise CorruptLayoutError("a code names a coarse centroid that does not exist")
        return np.asarray(self.coarse[chosen] + rest, np.float32)


Quantiser = ScalarQuant | BinaryQuant | ProductQuant


def _check_codes(quant: Quantiser, codes: NDArray[Any]) -> None:
    if codes.dtype != np.uint8 or codes.shape[1] != quant.code_bytes:
        raise CorruptLayoutError("the codes are not those of their quantiser")


def widen(vectors: Floats, parts: int) -> Floats:
    """Vectors with zeros up to a multiple of the number of sub-vectors."""
    sub_dim = -(-vectors.shape[1] // parts)
    extra = parts * sub_dim - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, extra))) if extra else np.ascontiguousarray(vectors)


def encode_quant(quant: Quantiser) -> bytes:
    """A QUANT payload."""
    head = layout.QUANT_HEADER.pack(layout.QUANT_KINDS[quant.kind], quant.tier, quant.dim)
    shape = b""
    if isinstance(quant, ScalarQuant):
        body = [quant.low, quant.high]
    elif isinstance(quant, BinaryQuant):
        body = [quant.threshold]
    elif quant.coarse is None:
        body, shape = [quant.codebook], layout.PQ_SHAPE.pack(*quant.codebook.shape)
    else:
        body = [quant.coarse, quant.codebook]
        shape = layout.RESIDUAL_SHAPE.pack(len(quant.coarse), *quant.codebook.shape)
    numbers = b"".join(array.astype("<f4").tobytes() for array in body)
    out = head.ljust(layout.ALIGNMENT, b"\0") + shape + numbers
    return out + padding_to(len(out), layout.ALIGNMENT)


def decode_quant(payload: Buffer, where: str = "") -> Quantiser:
    """The dictionary of a QUANT payload, padded at its end or not."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a QUANT payload has no header", path=where or None)
    number, tier, dim = layout.QUANT_HEADER.unpack_from(view)
    kind = layout.QUANT_NAMES.get(number)
    body = view[layout.ALIGNMENT :]
    if kind is None or dim == 0:
        raise CorruptLayoutError(f"unknown quantisation {number} of {dim} dimensions", path=where or None)
    if kind == "scalar":
        both = _floats(body, 0, 2 * dim, where)
        return ScalarQuant(both[:dim], both[dim:], tier)
    if kind == "binary":
        empty = body.nbytes == 0
        return BinaryQuant(np.zeros(dim, np.float32) if empty else _floats(body, 0, dim, where), tier)
    form = layout.PQ_SHAPE if kind == "pq" else layout.RESIDUAL_SHAPE
    if body.nbytes < form.size:
        raise TruncatedError("a codebook has no shape", path=where or None)
    shape = form.unpack_from(body)
    m, k, sub_dim = shape.m, shape.k, shape.sub_dim
    if m * sub_dim < dim or not 0 < k <= 256 or not sub_dim:
        fact = f"a codebook of {m} x {k} x {sub_dim} for {dim} dimensions"
        raise CorruptLayoutError(fact, path=where or None)
    coarse = _floats(body, form.size, (0 if kind == "pq" else shape.k_coarse) * dim, where)
    book = _floats(body, form.size + coarse.nbytes, m * k * sub_dim, where).reshape(m, k, sub_dim)
    return ProductQuant(dim, book, None if kind == "pq" else coarse.reshape(shape.k_coarse, dim), tier)


def _floats(body: memoryview, start: int, count: int, where: str) -> Floats:
    end = start + 4 * count
    if end > body.nbytes:
        raise TruncatedError("a QUANT payload is cut off", path=where or None)
    values = np.frombuffer(body[start:end], "<f4")
    if not np.isfinite(values).all():
        raise CorruptLayoutError("a quantisation dictionary holds NaN or infinity", path=where or None)
    return values
