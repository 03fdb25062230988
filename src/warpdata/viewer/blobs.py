"""Where a browser finds the records of a published episode: in its blob, by block and row or by packet of a video."""

from __future__ import annotations

import base64
import os
from typing import Any
from urllib.parse import parse_qsl, quote

import numpy as np
from numpy.typing import NDArray

from warpdata.catalog.dataset import Dataset
from warpdata.episodes.sources.packed import ShardVideo
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.formats.episodedir.frame_index import plan_of
from warpdata.formats.manifest.model import blob_key
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import BlockRows
from warpdata.stores.address import split_address
from warpdata.timeline.signal import Signal
from warpdata.viewer.framing import web_codec

AWS_DOMAIN = "amazonaws.com"
DEFAULT_REGION = "us-east-1"


class Blobs:
    """The blobs that one episode of a site refers to."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def rows(self, signal: Signal) -> dict[str, Any] | None:
        """The blocks whose rows are the records of a signal; None where they are no rows of a blob."""
        parts = _row_parts(signal)
        if parts is None or signal.meta.is_object:
            return None
        return self._place(parts, [len(signal), *signal.meta.shape])

    def times(self, signal: Signal) -> dict[str, Any] | None:
        """The block of the times of a signal."""
        part = signal.times_rows if isinstance(signal, BlockSignal) else None
        place = None if part is None else self._place([part], [len(signal)])
        return None if place is None else {**place, "is_time": True}

    def _place(self, parts: list[BlockRows], shape: list[int]) -> dict[str, Any] | None:
        numbers = {self._number(part.shard) for part in parts}
        if len(numbers) != 1 or None in numbers:
            return None
        listed = [[part.block, part.length] for part in parts]
        return {"blob": numbers.pop(), "parts": listed, "dtype": parts[0].spec.dtype.name, "shape": shape}

    def video(self, signal: Signal) -> tuple[dict[str, Any], NDArray[np.float64]] | None:
        """The block of a video with how it is decoded, and its packets; None where no browser could read or decode it.

        Of each packet: offset, size, checksum, the record it shows, and the packet that its decoding begins at.
        """
        if not isinstance(signal, ShardVideo):
            return None
        index, number = signal.frame_index(), self._number(signal.shard)
        codec = None if index.stream is None else web_codec(index.stream)
        if number is None or codec is None or index.stream is None or index.offset is None:
            return None
        plan = plan_of(index)
        if plan.crc32c is None:
            return None
        record = np.full(len(plan), -1, np.int64)
        record[signal.frame_numbers(np.arange(len(signal)))] = np.arange(len(signal))
        columns: list[NDArray[Any]] = [
            plan.offset,
            plan.size,
            plan.crc32c,
            record[plan.frame],
            plan.start[plan.frame],
        ]
        about = {
            "blob": number,
            "block": signal.video_block,
            "codec": codec.name,
            "description": base64.b64encode(codec.description).decode(),
            "coded": [index.stream.coded_width, index.stream.coded_height],
        }
        return about, np.stack(columns, axis=1).astype(np.float64)

    def _number(self, shard: ShardReader) -> int | None:
        """Number of the blob of a shard; None outside of the blob area of its catalog."""
        address = getattr(shard.range_reader, "address", None)
        key = getattr(address, "key", None)
        if address is None or key != blob_key(address.sha256):
            return None
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)


def _row_parts(signal: Signal) -> list[BlockRows] | None:
    parts = signal.parts if isinstance(signal, BlockSignal) else ()
    blocks = [part for part in parts if isinstance(part, BlockRows)]
    return blocks if blocks and len(blocks) == len(parts) else None


def data_address(dataset: Dataset, site: str) -> str | None:
    """Where a browser finds the blobs of a dataset: relative to the site in a folder, else by HTTP; None: nowhere."""
    address = dataset.catalog.address.rstrip("/")
    scheme, has_scheme, rest = address.partition("://")
    if not has_scheme or scheme == "file":
        folder = os.path.abspath(rest if has_scheme else address)
        return quote(os.path.relpath(folder, site)) + "/"
    if scheme in ("http", "https"):
        return address + "/"
    bucket, _, prefix = rest.partition("/")
    prefix = quote(f"{prefix}/") if prefix else ""
    if scheme == "gs":
        return f"https://storage.googleapis.com/{bucket}/{prefix}"
    if scheme != "s3":
        return None
    options, query = dataset.access.options.store, dict(parse_qsl(split_address(dataset.catalog.given).query))
    if endpoint := query.get("endpoint", options.s3_endpoint):
        return f"{endpoint.rstrip('/')}/{bucket}/{prefix}"
    region = query.get("region", options.s3_region) or DEFAULT_REGION
    return f"https://{bucket}.s3.{region}.{AWS_DOMAIN}/{prefix}"
