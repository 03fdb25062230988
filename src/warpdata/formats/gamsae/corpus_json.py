"""corpus.json: what a folder of shards holds, how to check it, and where it came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    UnsupportedVersionError,
)
from warpdata.formats.gamsae import layout

Crcs = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class ShardRecord:
    """One shard as corpus.json knows it."""

    name: str
    n_rows: int
    file_bytes: int
    sha256: str
    block_crcs: Crcs
    run_crcs: Crcs


@dataclass(frozen=True, slots=True, eq=False)
class CorpusRecord:
    """The contents of one corpus.json."""

    width: int
    dtype: str
    run_rows: int
    shards: tuple[ShardRecord, ...] = ()
    is_complete: bool = True
    columns: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] | None = None
    harvest: Mapping[str, Any] = field(default_factory=dict)
    """Options of the writer (`shard_bytes`, `sync_appends`), which apply again when it is reopened."""

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.n_rows for shard in self.shards)


def pack_corpus(record: CorpusRecord) -> bytes:
    """The bytes of corpus.json."""
    body = {
        "format": layout.CORPUS_FORMAT,
        "version": layout.CORPUS_VERSION,
        "is_complete": record.is_complete,
        "width": record.width,
        "dtype": record.dtype,
        "total_rows": record.total_rows,
        "block_bytes": layout.CHECKSUM_BLOCK_BYTES,
        "run_rows": record.run_rows,
        "columns": dict(record.columns),
        "provenance": dict(record.provenance),
        "statistics": None if record.statistics is None else dict(record.statistics),
        "shards": [_pack_shard(shard) for shard in record.shards],
    }
    if record.harvest:
        body["harvest"] = dict(record.harvest)
    return dump_json({**body, "crc32c": f"{crc32c(dump_json(body)):08x}"})


def parse_corpus(data: bytes, name: str = layout.CORPUS_JSON) -> CorpusRecord:
    """Read corpus.json from untrusted bytes."""
    try:
        body = parse_json_object(data, max_bytes=layout.MAX_CORPUS_JSON_BYTES)
        _check_identity(body)
        return _record(body)
    except FormatError as error:
        raise type(error)(f"{error.message}", path=name) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptLayoutError(f"not a corpus description ({error!r})", path=name) from None


def load_corpus(folder: str | os.PathLike[str]) -> CorpusRecord | None:
    """The corpus.json of a folder, or None where there is none."""
    path = os.path.join(folder, layout.CORPUS_JSON)
    if not os.path.isfile(path):
        return None
    with FileRangeReader(path) as reader:
        return parse_corpus(bytes(reader.read(0, reader.size)), path)


def save_corpus(folder: str | os.PathLike[str], record: CorpusRecord, *, durable: bool = True) -> None:
    """Replace the corpus.json of a folder, atomically."""
    write_file(Path(folder) / layout.CORPUS_JSON, pack_corpus(record), durable=durable)


def _check_identity(body: dict[str, Any]) -> None:
    if body.get("format") != layout.CORPUS_FORMAT:
        raise CorruptLayoutError("this JSON does not describe a corpus")
    stored = body.pop("crc32c", None)
    if stored != f"{crc32c(dump_json(body)):08x}":
        raise ChecksumError("corpus.json does not match its own checksum")
    if body["version"] != layout.CORPUS_VERSION:
        raise UnsupportedVersionError(f"corpus.json is of version {body['version']}")
    if body["block_bytes"] != layout.CHECKSUM_BLOCK_BYTES:
        raise CorruptLayoutError(f"checksums of blocks of {body['block_bytes']} bytes are not known")


def _record(body: dict[str, Any]) -> CorpusRecord:
    run_rows = _count(body["run_rows"], at_least=1)
    if run_rows > layout.MAX_TOTAL_ROWS:
        raise LimitExceededError(f"runs of {run_rows} rows")
    record = CorpusRecord(
        width=_count(body["width"]),
        dtype=_stored_dtype(body["dtype"]),
        run_rows=run_rows,
        shards=tuple(_parse_shard(shard, run_rows) for shard in body["shards"]),
        is_complete=bool(body["is_complete"]),
        columns={str(key): dtype_named(value).name for key, value in body["columns"].items()},
        provenance=dict(body["provenance"]),
        statistics=None if body["statistics"] is None else dict(body["statistics"]),
        harvest=dict(body.get("harvest", {})),
    )
    if record.width * dtype_named(record.dtype).itemsize > layout.MAX_ROW_BYTES:
        raise LimitExceededError(f"rows of {record.width} columns")
    if record.total_rows != body["total_rows"]:
        raise CorruptLayoutError("the rows of the shards do not add up to total_rows")
    return record


def _stored_dtype(name: str) -> str:
    if name not in layout.DTYPE_TAGS:
        raise CorruptLayoutError(f"rows cannot be stored as {name!r}")
    return name


def _pack_shard(shard: ShardRecord) -> dict[str, Any]:
    return {
        "name": shard.name,
        "rows": shard.n_rows,
        "bytes": shard.file_bytes,
        "sha256": shard.sha256,
        "blocks_crc32c": shard.block_crcs.astype(">u4").tobytes().hex(),
        "runs_crc32c": shard.run_crcs.astype(">u4").tobytes().hex(),
    }


def _parse_shard(body: dict[str, Any], run_rows: int) -> ShardRecord:
    name, rows, size = str(body["name"]), _count(body["rows"]), _count(body["bytes"])
    if name != os.path.basename(name) or not name.endswith(layout.SHARD_SUFFIX):
        raise CorruptLayoutError(f"{name!r} is no name of a shard in this folder")
    blocks, runs = _crcs(body["blocks_crc32c"]), _crcs(body["runs_crc32c"])
    if len(blocks) != -(-size // layout.CHECKSUM_BLOCK_BYTES) or len(runs) != -(-rows // run_rows):
        raise CorruptLayoutError(f"the checksums of {name} do not cover it")
    return ShardRecord(name, rows, size, str(body["sha256"]), blocks, runs)


def _crcs(text: str) -> Crcs:
    return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)


def _count(value: object, at_least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= layout.U64_MAX:
        raise CorruptLayoutError(f"{value!r} is no count")
    return value
