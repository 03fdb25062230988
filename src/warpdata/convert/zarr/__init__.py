"""Zarr replay buffers of diffusion policy and UMI, in a folder or a `.zarr.zip`, in and out."""

from __future__ import annotations

from warpdata.convert.zarr.reading import matches, read
from warpdata.convert.zarr.writing import write

__all__ = ["matches", "read", "write"]
