"""The committed state of a file: its segments in order, its root and its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from warpdata.errors import LimitExceededError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.container.layout import DimensionEntry, DirectoryEntry, Tag
from warpdata.formats.rvf.container.manifest import Root, Tlv, first_value
from warpdata.formats.rvf.segments.runtime import RuntimeManifest


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one manifest (with the ones it hangs on) says; it never changes."""

    dialect: str
    """`wire`, or `runtime` for files of shipped programs."""
    epoch: int
    segments: tuple[DirectoryEntry, ...]
    manifest_offset: int
    manifest_id: int
    manifest_hash: bytes
    end: int
    """Where the manifest ends: everything behind it is uncommitted."""
    root: Root | None = None
    records: tuple[Tlv, ...] = ()
    """The Level-1 records of the checkpoint."""
    checkpointed: int = 0
    """How many of the segments the checkpoint lists; the others came after it."""
    checkpoint_end: int = 0
    runtime: RuntimeManifest | None = field(default=None, repr=False)
    newest_records: tuple[Tlv, ...] = ()
    """The Level-1 records of the newest manifest, where it is not the checkpoint itself."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether the newest manifest carries the root itself."""
        return self.checkpoint_end == self.end

    @property
    def next_segment_id(self) -> int:
        """The first id no segment of this file has."""
        return max([self.manifest_id, *(entry.segment_id for entry in self.segments)]) + 1

    @property
    def next_epoch(self) -> int:
        """The epoch of the state after this one."""
        if self.epoch >= layout.MAX_EPOCH:
            raise LimitExceededError(f"the epochs of this file have reached {layout.MAX_EPOCH}")
        return self.epoch + 1

    def record(self, tag: int) -> bytes | None:
        """The value of a Level-1 record."""
        return first_value(self.records, tag)

    @property
    def live_count(self) -> int:
        """How many vectors are not deleted, as the newest manifest says."""
        value = first_value(self.newest_records, Tag.DIMENSION_CATALOG)
        if value is not None and len(value) >= layout.DIMENSION_HEAD.size + layout.DIMENSION_ENTRY.size:
            return DimensionEntry._make(
                layout.DIMENSION_ENTRY.unpack_from(value, layout.DIMENSION_HEAD.size)
            ).vector_count
        return 0 if self.root is None else self.root.total_vector_count

    def of_type(self, seg_type: int) -> list[DirectoryEntry]:
        """The segments of one type, in the order they were written."""
        return [entry for entry in self.segments if entry.seg_type == seg_type]
