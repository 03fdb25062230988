"""Report everything that is wrong or odd about a shard, or about a folder with corpus.json."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpdata.errors import WarpError
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, ShardRecord, load_corpus
from warpdata.formats.gamsae.digest import ShardDigest, digest_shard
from warpdata.formats.gamsae.reader import open_shard_info

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a file: `is_damage` tells damage from what is merely odd."""

    path: str
    code: str
    fact: str
    is_damage: bool = True


def shard_paths(folder: str | os.PathLike[str]) -> list[Path]:
    """The shard files of a folder: extension exactly `.shard`, in the order of their names' bytes."""
    names = [name for name in os.listdir(folder) if os.path.splitext(name)[1] == layout.SHARD_SUFFIX]
    return [Path(folder, name) for name in sorted(names, key=os.fsencode)]


def verify_shard(path: str | os.PathLike[str]) -> list[Finding]:
    """What can be said about one shard without corpus.json: its structure, and what readers overlook."""
    name = os.fspath(path)
    try:
        info = open_shard_info(path)
    except WarpError as error:
        return [Finding(name, error.code, str(error))]
    findings = []
    if info.reserved:
        findings.append(Finding(name, "reserved", f"the reserved word is {info.reserved}, not 0", False))
    if info.trailing_bytes:
        fact = f"{info.trailing_bytes} bytes follow the last row"
        findings.append(Finding(name, "trailing", fact, False))
    return findings


def verify_folder(folder: str | os.PathLike[str], progress: Progress | None = None) -> list[Finding]:
    """Every finding about a corpus folder; with corpus.json every byte of every shard is checked."""
    record = load_corpus(folder)
    paths = shard_paths(folder)
    if record is None:
        return [finding for path in paths for finding in verify_shard(path)]
    findings = _names(folder, paths, record)
    for index, shard in enumerate(record.shards):
        path = Path(folder) / shard.name
        if path.exists():
            findings += verify_shard(path)
            findings += _compare(path, shard, record)
        if progress is not None:
            progress(index + 1, len(record.shards))
    return findings


def _names(folder: str | os.PathLike[str], paths: list[Path], record: CorpusRecord) -> list[Finding]:
    listed = {shard.name for shard in record.shards}
    present = {path.name for path in paths}
    missing = [
        Finding(str(Path(folder) / name), "not_found", "a listed shard is missing")
        for name in sorted(listed - present)
    ]
    extra = [
        Finding(str(Path(folder) / name), "unlisted", "corpus.json does not list this shard", False)
        for name in sorted(present - listed)
    ]
    return missing + extra


def _compare(path: Path, shard: ShardRecord, record: CorpusRecord) -> list[Finding]:
    try:
        digest = digest_shard(path, record.run_rows)
    except WarpError:
        return []
    return _shape_findings(path, digest, shard, record) or _byte_findings(path, digest, shard)


def _shape_findings(
    path: Path, digest: ShardDigest, shard: ShardRecord, record: CorpusRecord
) -> list[Finding]:
    info = digest.info
    found = (info.n_rows, info.width, info.dtype.name, info.file_bytes)
    listed = (shard.n_rows, record.width, record.dtype, shard.file_bytes)
    if found == listed:
        return []
    fact = f"corpus.json lists (rows, width, dtype, bytes) {listed}, the file has {found}"
    return [Finding(str(path), "corrupt_layout", fact)]


def _byte_findings(path: Path, digest: ShardDigest, shard: ShardRecord) -> list[Finding]:
    blocks = np.flatnonzero(digest.block_crcs != shard.block_crcs)
    findings = [
        Finding(str(path), "checksum", f"bytes {start} to {start + layout.CHECKSUM_BLOCK_BYTES} were changed")
        for start in (blocks * layout.CHECKSUM_BLOCK_BYTES).tolist()
    ]
    if not findings and digest.sha256 != shard.sha256:
        findings.append(Finding(str(path), "checksum", "the SHA-256 of the file differs"))
    return findings
