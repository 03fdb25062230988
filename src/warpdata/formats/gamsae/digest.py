"""The checksums of one shard file, computed in one pass over it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import Crcs, ShardRecord
from warpdata.formats.gamsae.reader import ShardInfo, read_shard_info


@dataclass(frozen=True, slots=True, eq=False)
class ShardDigest:
    """What the bytes of a shard file sum to."""

    info: ShardInfo
    sha256: str
    block_crcs: Crcs
    run_crcs: Crcs

    def record(self) -> ShardRecord:
        """The entry of corpus.json for this shard."""
        info = self.info
        name = os.path.basename(info.name)
        return ShardRecord(name, info.n_rows, info.file_bytes, self.sha256, self.block_crcs, self.run_crcs)


def digest_shard(path: str | os.PathLike[str], run_rows: int) -> ShardDigest:
    """Read a shard file once and compute its entry in corpus.json."""
    with FileRangeReader(path) as reader:
        return digest_reader(reader, run_rows)


def digest_reader(reader: RangeReader, run_rows: int) -> ShardDigest:
    """The same for a shard behind a range reader."""
    info = read_shard_info(reader)
    sha, blocks = RunningSha256(), []
    runs = _RunCrcs(info, run_rows)
    for start in range(0, reader.size, layout.CHECKSUM_BLOCK_BYTES):
        piece = reader.read(start, min(start + layout.CHECKSUM_BLOCK_BYTES, reader.size))
        sha.update(piece)
        blocks.append(crc32c(piece))
        runs.update(start, piece)
    return ShardDigest(info, sha.hexdigest(), np.array(blocks, np.uint32), runs.finished())


class _RunCrcs:
    """CRC32C of each run of rows, from pieces of the file that come in order."""

    def __init__(self, info: ShardInfo, run_rows: int) -> None:
        self._crcs = np.zeros(-(-info.n_rows // run_rows) if info.row_bytes else 0, np.uint32)
        self._empty = np.zeros(-(-info.n_rows // run_rows) if not info.row_bytes else 0, np.uint32)
        self._start = info.data_offset
        self._end = info.data_offset + info.payload_bytes
        self._run_bytes = max(1, run_rows * info.row_bytes)

    def update(self, offset: int, piece: memoryview) -> None:
        """Add the bytes of the file from `offset` on."""
        position = max(offset, self._start)
        stop = min(offset + piece.nbytes, self._end)
        while position < stop:
            run, within = divmod(position - self._start, self._run_bytes)
            until = min(stop, position + self._run_bytes - within)
            self._crcs[run] = crc32c(piece[position - offset : until - offset], int(self._crcs[run]))
            position = until

    def finished(self) -> Crcs:
        """One checksum per run; rows of no bytes sum to nothing."""
        return self._crcs if len(self._crcs) else self._empty
