"""Single blocks of row segments, read by themselves; each once, checked by its CRC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import Range, retry_damaged
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout, segment, vec
from warpdata.formats.rvf import layout as records
from warpdata.formats.rvf.layout import Row
from warpdata.formats.rvf.reader import check_against_directory
from warpdata.formats.rvf.vec import VecBlock
from warpdata.search.file.content import Content

Place = tuple[int, int]
"""A block: the id of its segment, and its number in it."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """The rows of one block as f32 vectors."""

    ids: NDArray[np.uint64]
    vectors: NDArray[np.float32]


class BlockReader:
    """Blocks of the row segments of one content; what was read stays in memory."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._entries = {entry.segment_id: entry for entry in content.snapshot.segments}
        self._directories: dict[int, list[Row]] = {}
        self._held: dict[Place, RowBlock] = {}
        self.held_bytes = 0
        """How much of the file the blocks in memory are."""

    def rows(self, places: Sequence[Place]) -> list[RowBlock]:
        """The rows of these blocks; those not held yet are read together."""
        missing = [place for place in dict.fromkeys(places) if place not in self._held]
        for place, block in zip(missing, self.read(missing, self._content.code_bytes), strict=True):
            self._held[place] = RowBlock(block.ids, self._content.vectors_of(block))
            self.held_bytes += block.rows.nbytes
        return [self._held[place] for place in places]

    def read(self, places: Sequence[Place], code_bytes: int) -> list[VecBlock]:
        """These blocks as they are stored, read together and checked."""
        found = [self._locate(place) for place in places]
        reader, ranges = self._content.reader, [each[0] for each in found]

        def read() -> list[VecBlock]:
            return [
                vec.decode_block(piece, entry, code_bytes=code_bytes, where=reader.name)
                for piece, (_, entry) in zip(reader.read_many(ranges), found, strict=True)
            ]

        return retry_damaged(reader, read, ranges)

    def vector_count(self, place: Place) -> int:
        """How many vectors a block holds."""
        return self._locate(place)[1].vector_count  # type: ignore[no-any-return]

    def _locate(self, place: Place) -> tuple[Range, Row]:
        segment_id, number = place
        entry = self._entries.get(segment_id)
        if entry is None:
            raise CorruptLayoutError(
                "a block of a segment that does not exist", path=self._content.reader.name
            )
        blocks = self._directory(entry)
        if number >= len(blocks):
            raise CorruptLayoutError("a block that does not exist", path=self._content.reader.name)
        start = entry.file_offset + layout.HEADER_BYTES
        end = vec.block_end(blocks, number, entry.payload_length)
        return (start + blocks[number].block_offset, start + end), blocks[number]

    def _directory(self, entry: Row) -> list[Row]:
        found = self._directories.get(entry.segment_id)
        if found is None:
            where = self._content.reader.name
            size = layout.COUNT_U32.size + entry.block_count * records.BLOCK_ENTRY.size
            size = min(size, entry.payload_length)
            start = entry.file_offset
            place = start, start + layout.HEADER_BYTES + size

            def read() -> list[Row]:
                data = self._content.reader.read(*place)
                check_against_directory(segment.unpack_header(data, where), entry, where)
                return vec.read_directory(data[layout.HEADER_BYTES :], entry.payload_length, where)

            found = retry_damaged(self._content.reader, read, [place])
            self._directories[entry.segment_id] = found
        return found
