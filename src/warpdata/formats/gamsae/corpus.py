"""corpus.json: the shards of a folder with their checksums, and checks of shards against it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    FileFinding,
    FormatError,
    LimitExceededError,
    UnsupportedVersionError,
    WarpError,
)
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.shard import ShardInfo, read_shard_info

Crcs = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class ShardRecord:
    """The entry of one shard in corpus.json."""

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
        "shards": [
            {
                "name": shard.name,
                "rows": shard.n_rows,
                "bytes": shard.file_bytes,
                "sha256": shard.sha256,
                "blocks_crc32c": shard.block_crcs.astype(">u4").tobytes().hex(),
                "runs_crc32c": shard.run_crcs.astype(">u4").tobytes().hex(),
            }
            for shard in record.shards
        ],
    }
    if record.harvest:
        body["harvest"] = dict(record.harvest)
    return dump_json({**body, "crc32c": f"{crc32c(dump_json(body)):08x}"})


def parse_corpus(data: bytes, name: str = layout.CORPUS_JSON) -> CorpusRecord:
    """Read corpus.json from untrusted bytes."""
    try:
        body = parse_json_object(data, max_bytes=layout.MAX_CORPUS_JSON_BYTES)
        _check_identity(body)
        run_rows = _count(body["run_rows"], at_least=1)
        if run_rows > layout.MAX_TOTAL_ROWS:
            raise LimitExceededError(f"runs of {run_rows} rows")
        if body["dtype"] not in layout.DTYPE_TAGS:
            raise CorruptLayoutError(f"rows cannot be stored as {body['dtype']!r}")
        record = CorpusRecord(
            width=_count(body["width"]),
            dtype=body["dtype"],
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
    except FormatError as error:
        raise type(error)(f"{error.message}", path=name) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptLayoutError(f"not a corpus description ({error!r})", path=name) from None


def load_corpus(folder: str | os.PathLike[str]) -> CorpusRecord | None:
    """The corpus.json of a folder, or None if there is no such file."""
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
    if body.pop("crc32c", None) != f"{crc32c(dump_json(body)):08x}":
        raise ChecksumError("corpus.json does not match its own checksum")
    if body["version"] != layout.CORPUS_VERSION:
        raise UnsupportedVersionError(f"corpus.json is of version {body['version']}")
    if body["block_bytes"] != layout.CHECKSUM_BLOCK_BYTES:
        raise CorruptLayoutError(f"checksums of blocks of {body['block_bytes']} bytes are not known")


def _parse_shard(body: dict[str, Any], run_rows: int) -> ShardRecord:
    name, rows, size = str(body["name"]), _count(body["rows"]), _count(body["bytes"])
    if name != os.path.basename(name) or not name.endswith(layout.SHARD_SUFFIX):
        raise CorruptLayoutError(f"{name!r} is no name of a shard in this folder")
    blocks, runs = (
        np.frombuffer(bytes.fromhex(body[key]), ">u4").astype(np.uint32)
        for key in ("blocks_crc32c", "runs_crc32c")
    )
    if len(blocks) != -(-size // layout.CHECKSUM_BLOCK_BYTES) or len(runs) != -(-rows // run_rows):
        raise CorruptLayoutError(f"the checksums of {name} do not cover it")
    return ShardRecord(name, rows, size, str(body["sha256"]), blocks, runs)


def _count(value: object, at_least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= layout.U64_MAX:
        raise CorruptLayoutError(f"{value!r} is no count")
    return value


def digest_shard(reader: RangeReader, run_rows: int) -> tuple[ShardInfo, ShardRecord]:
    """Read a shard once: its header, and its entry in corpus.json."""
    info = read_shard_info(reader)
    sha, blocks = RunningSha256(), []
    run_crcs = np.zeros(-(-info.n_rows // run_rows), np.uint32)
    run_bytes = max(1, run_rows * info.row_bytes)
    first, last = info.data_offset, info.data_offset + info.payload_bytes
    for start in range(0, reader.size, layout.CHECKSUM_BLOCK_BYTES):
        piece = reader.read(start, min(start + layout.CHECKSUM_BLOCK_BYTES, reader.size))
        sha.update(piece)
        blocks.append(crc32c(piece))
        position, stop = max(start, first), min(start + piece.nbytes, last)
        while position < stop:
            run, within = divmod(position - first, run_bytes)
            until = min(stop, position + run_bytes - within)
            run_crcs[run] = crc32c(piece[position - start : until - start], int(run_crcs[run]))
            position = until
    name = os.path.basename(info.name)
    block_crcs = np.array(blocks, np.uint32)
    return info, ShardRecord(name, info.n_rows, info.file_bytes, sha.hexdigest(), block_crcs, run_crcs)


def sort_shard_names(names: Iterable[str]) -> list[str]:
    """The shards among some file names, in the order of their bytes."""
    return sorted(filter(layout.is_shard_name, names), key=os.fsencode)


def verify_reader(
    reader: RangeReader, shard: ShardRecord | None = None, record: CorpusRecord | None = None
) -> list[FileFinding]:
    """Every finding about a shard; with its entry in corpus.json every byte is checked."""
    name, findings = reader.name, []
    try:
        digest = None
        if shard is None or record is None:
            info = read_shard_info(reader)
        else:
            info, digest = digest_shard(reader, record.run_rows)
    except FormatError as error:
        return [FileFinding.of(error, name)]
    if info.reserved:
        fact = f"the reserved word is {info.reserved}, not 0"
        findings.append(FileFinding("reserved", fact, name, is_damage=False))
    if info.trailing_bytes:
        fact = f"{info.trailing_bytes} bytes follow the last row"
        findings.append(FileFinding("trailing", fact, name, is_damage=False))
    if digest is None or shard is None or record is None:
        return findings
    actual = (info.n_rows, info.width, info.dtype.name, info.file_bytes)
    listed = (shard.n_rows, record.width, record.dtype, shard.file_bytes)
    if actual != listed:
        fact = f"corpus.json lists (rows, width, dtype, bytes) {listed}, the file has {actual}"
        return [*findings, FileFinding("corrupt_layout", fact, name)]
    changed = np.flatnonzero(digest.block_crcs != shard.block_crcs) * layout.CHECKSUM_BLOCK_BYTES
    findings += [
        FileFinding("checksum", f"bytes {start} to {start + layout.CHECKSUM_BLOCK_BYTES} were changed", name)
        for start in changed.tolist()
    ]
    if not len(changed) and digest.sha256 != shard.sha256:
        findings.append(FileFinding("checksum", "the SHA-256 of the file differs", name))
    return findings


def _verify_file(
    path: str | os.PathLike[str], shard: ShardRecord | None, record: CorpusRecord | None
) -> list[FileFinding]:
    try:
        with FileRangeReader(path) as reader:
            return verify_reader(reader, shard, record)
    except WarpError as error:
        return [FileFinding.of(error, os.fspath(path))]


def verify_shard(path: str | os.PathLike[str]) -> list[FileFinding]:
    """Every finding about one shard file; if a corpus.json beside it lists it, every byte is checked."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        record = load_corpus(folder)
    except WarpError as error:
        beside = FileFinding.of(error, os.path.join(folder, layout.CORPUS_JSON))
        return [*_verify_file(path, None, None), beside]
    entries = {} if record is None else {shard.name: shard for shard in record.shards}
    return _verify_file(path, entries.get(name), record)


def verify_folder(
    folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> list[FileFinding]:
    """Every finding about a corpus folder; with corpus.json every byte of every shard is checked."""
    record, names = load_corpus(folder), sort_shard_names(os.listdir(folder))
    if record is None:
        return [finding for name in names for finding in _verify_file(Path(folder, name), None, None)]
    listed = {shard.name for shard in record.shards}
    findings = [
        FileFinding("not_found", "a listed shard is missing", str(Path(folder) / name))
        for name in sorted(listed - set(names))
    ]
    fact = "corpus.json does not list this shard"
    findings += [
        FileFinding("unlisted", fact, str(Path(folder) / name), is_damage=False)
        for name in sorted(set(names) - listed)
    ]
    for index, shard in enumerate(record.shards):
        if shard.name in names:
            findings += _verify_file(Path(folder) / shard.name, shard, record)
        if progress is not None:
            progress(index + 1, len(record.shards))
    return findings
