"""QUANT payloads: the dictionaries that turn codes back into vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records

if TYPE_CHECKING:
    from typing_extensions import Buffer

Floats = NDArray[np.float32]


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


@dataclass(frozen=True, slots=True)
class ProductQuant:
    """One byte per group of dimensions: the nearest of up to 256 centroids of that group."""

    dim: int
    codebook: Floats
    """(M, K, sub_dim); M * sub_dim may exceed dim, the rest is zero."""
    tier: int = layout.TIER_COLD
    kind = "pq"

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return int(self.codebook.shape[0])


@dataclass(frozen=True, slots=True)
class ResidualQuant:
    """A coarse centroid, and a product code of what remains. The code begins with the centroid's u16."""

    dim: int
    coarse: Floats
    codebook: Floats
    tier: int = layout.TIER_COLD
    kind = "residual_pq"

    @property
    def code_bytes(self) -> int:
        """Bytes of a code."""
        return 2 + int(self.codebook.shape[0])


Quantiser = ScalarQuant | BinaryQuant | ProductQuant | ResidualQuant


def encode_quant(quant: Quantiser) -> bytes:
    """A QUANT payload."""
    head = records.QUANT_HEADER.pack(records.QUANT_KINDS[quant.kind], quant.tier, quant.dim)
    body = _body(quant)
    out = head.ljust(layout.ALIGNMENT, b"\0") + body
    return out + padding_to(len(out), layout.ALIGNMENT)


def _body(quant: Quantiser) -> bytes:
    if isinstance(quant, ScalarQuant):
        return quant.low.astype("<f4").tobytes() + quant.high.astype("<f4").tobytes()
    if isinstance(quant, BinaryQuant):
        return quant.threshold.astype("<f4").tobytes()
    if isinstance(quant, ProductQuant):
        return records.PQ_SHAPE.pack(*quant.codebook.shape) + quant.codebook.astype("<f4").tobytes()
    shape = records.RESIDUAL_SHAPE.pack(len(quant.coarse), *quant.codebook.shape)
    return shape + quant.coarse.astype("<f4").tobytes() + quant.codebook.astype("<f4").tobytes()


def decode_quant(payload: Buffer, where: str = "") -> Quantiser:
    """The dictionary of a QUANT payload, padded at its end or not."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a QUANT payload has no header", path=where or None)
    number, tier, dim = records.QUANT_HEADER.unpack_from(view)
    kind = records.QUANT_NAMES.get(number)
    body = view[layout.ALIGNMENT :]
    if kind is None or dim == 0:
        raise CorruptLayoutError(f"unknown quantisation {number} of {dim} dimensions", path=where or None)
    if kind == "scalar":
        both = _floats(body, 0, 2 * dim, where)
        return ScalarQuant(both[:dim], both[dim:], tier)
    if kind == "binary":
        empty = body.nbytes == 0
        return BinaryQuant(np.zeros(dim, np.float32) if empty else _floats(body, 0, dim, where), tier)
    if kind == "pq":
        return ProductQuant(
            dim, _codebook(body, records.PQ_SHAPE.size, _pq_shape(body, dim, where), where), tier
        )
    return _decode_residual(body, dim, tier, where)


def _pq_shape(body: memoryview, dim: int, where: str) -> tuple[int, int, int]:
    if body.nbytes < records.PQ_SHAPE.size:
        raise TruncatedError("a codebook has no shape", path=where or None)
    return _checked_shape(records.PQ_SHAPE.unpack_from(body), dim, where)


def _checked_shape(shape: tuple[int, ...], dim: int, where: str) -> tuple[int, int, int]:
    m, k, sub_dim = shape
    if m * sub_dim < dim or not 0 < k <= 256 or not sub_dim:
        raise CorruptLayoutError(
            f"a codebook of {m} x {k} x {sub_dim} for {dim} dimensions", path=where or None
        )
    return m, k, sub_dim


def _codebook(body: memoryview, start: int, shape: tuple[int, int, int], where: str) -> Floats:
    return _floats(body, start, shape[0] * shape[1] * shape[2], where).reshape(shape)


def _decode_residual(body: memoryview, dim: int, tier: int, where: str) -> ResidualQuant:
    if body.nbytes < records.RESIDUAL_SHAPE.size:
        raise TruncatedError("a codebook has no shape", path=where or None)
    k_coarse, *shape = records.RESIDUAL_SHAPE.unpack_from(body)
    coarse = _floats(body, records.RESIDUAL_SHAPE.size, k_coarse * dim, where).reshape(k_coarse, dim)
    start = records.RESIDUAL_SHAPE.size + coarse.nbytes
    return ResidualQuant(
        dim, coarse, _codebook(body, start, _checked_shape(tuple(shape), dim, where), where), tier
    )


def _floats(body: memoryview, start: int, count: int, where: str) -> Floats:
    end = start + 4 * count
    if end > body.nbytes:
        raise TruncatedError("a QUANT payload is cut off", path=where or None)
    values = np.frombuffer(body[start:end], "<f4")
    if not np.isfinite(values).all():
        raise CorruptLayoutError("a quantisation dictionary holds NaN or infinity", path=where or None)
    return values
