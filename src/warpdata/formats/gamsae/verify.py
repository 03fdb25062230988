"""Report everything that is wrong or odd about a shard, or about a folder with corpus.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import FileFinding, FormatError, WarpError
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, ShardRecord, load_corpus
from warpdata.formats.gamsae.digest import ShardDigest, digest_reader, digest_shard
from warpdata.formats.gamsae.reader import ShardInfo, open_shard_info, read_shard_info

Progress = Callable[[int, int], None]


def shard_paths(folder: str | os.PathLike[str]) -> list[Path]:
    """The shard files of a folder: extension exactly `.shard`, in the order of their names' bytes."""
    return [Path(folder, name) for name in sort_shard_names(os.listdir(folder))]


def sort_shard_names(names: Iterable[str]) -> list[str]:
    """Those of some names that are shards, in the order of their bytes."""
    return sorted(filter(layout.is_shard_name, names), key=os.fsencode)


def verify_shard(path: str | os.PathLike[str]) -> list[FileFinding]:
    """Every finding about one shard; where the corpus.json beside it lists it, every byte is checked."""
    folder, name = os.path.split(os.path.abspath(path))
    findings = _structure(path)
    try:
        record = load_corpus(folder)
    except WarpError as error:
        return [*findings, FileFinding.of(error, os.path.join(folder, layout.CORPUS_JSON))]
    for shard in () if record is None else record.shards:
        if shard.name == name and record is not None:
            findings += _compare(Path(path), shard, record)
    return findings


def _structure(path: str | os.PathLike[str]) -> list[FileFinding]:
    """Findings about one shard without corpus.json: its structure, and what readers overlook."""
    try:
        return _oddities(open_shard_info(path))
    except WarpError as error:
        return [FileFinding.of(error, os.fspath(path))]


def verify_reader(
    reader: RangeReader, shard: ShardRecord | None, record: CorpusRecord | None
) -> list[FileFinding]:
    """Every finding about a shard behind a range reader; with its record every byte is checked."""
    try:
        if shard is None or record is None:
            return _oddities(read_shard_info(reader))
        digest = digest_reader(reader, record.run_rows)
    except FormatError as error:
        return [FileFinding.of(error, reader.name)]
    return _oddities(digest.info) + _differences(reader.name, digest, shard, record)


def _oddities(info: ShardInfo) -> list[FileFinding]:
    name, findings = info.name, []
    if info.reserved:
        findings.append(
            FileFinding("reserved", f"the reserved word is {info.reserved}, not 0", name, is_damage=False)
        )
    if info.trailing_bytes:
        fact = f"{info.trailing_bytes} bytes follow the last row"
        findings.append(FileFinding("trailing", fact, name, is_damage=False))
    return findings


def verify_folder(folder: str | os.PathLike[str], progress: Progress | None = None) -> list[FileFinding]:
    """Every finding about a corpus folder; with corpus.json every byte of every shard is checked."""
    record = load_corpus(folder)
    paths = shard_paths(folder)
    if record is None:
        return [finding for path in paths for finding in _structure(path)]
    findings = _names(folder, paths, record)
    for index, shard in enumerate(record.shards):
        path = Path(folder) / shard.name
        if path.exists():
            findings += _structure(path)
            findings += _compare(path, shard, record)
        if progress is not None:
            progress(index + 1, len(record.shards))
    return findings


def _names(folder: str | os.PathLike[str], paths: list[Path], record: CorpusRecord) -> list[FileFinding]:
    listed = {shard.name for shard in record.shards}
    present = {path.name for path in paths}
    missing = [
        FileFinding("not_found", "a listed shard is missing", str(Path(folder) / name))
        for name in sorted(listed - present)
    ]
    extra = [
        FileFinding(
            "unlisted", "corpus.json does not list this shard", str(Path(folder) / name), is_damage=False
        )
        for name in sorted(present - listed)
    ]
    return missing + extra


def _compare(path: Path, shard: ShardRecord, record: CorpusRecord) -> list[FileFinding]:
    try:
        digest = digest_shard(path, record.run_rows)
    except WarpError:
        return []
    return _differences(str(path), digest, shard, record)


def _differences(
    name: str, digest: ShardDigest, shard: ShardRecord, record: CorpusRecord
) -> list[FileFinding]:
    return _shape_findings(name, digest, shard, record) or _byte_findings(name, digest, shard)


def _shape_findings(
    name: str, digest: ShardDigest, shard: ShardRecord, record: CorpusRecord
) -> list[FileFinding]:
    info = digest.info
    found = (info.n_rows, info.width, info.dtype.name, info.file_bytes)
    listed = (shard.n_rows, record.width, record.dtype, shard.file_bytes)
    if found == listed:
        return []
    fact = f"corpus.json lists (rows, width, dtype, bytes) {listed}, the file has {found}"
    return [FileFinding("corrupt_layout", fact, name)]


def _byte_findings(name: str, digest: ShardDigest, shard: ShardRecord) -> list[FileFinding]:
    blocks = np.flatnonzero(digest.block_crcs != shard.block_crcs)
    findings = [
        FileFinding("checksum", f"bytes {start} to {start + layout.CHECKSUM_BLOCK_BYTES} were changed", name)
        for start in (blocks * layout.CHECKSUM_BLOCK_BYTES).tolist()
    ]
    if not findings and digest.sha256 != shard.sha256:
        findings.append(FileFinding("checksum", "the SHA-256 of the file differs", name))
    return findings
