"""Stores taken apart, changed and put together again with every hash made right."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.formats.rvf import container, layout
from warpdata.formats.rvf.container import Root, SegmentOptions, Tlv
from warpdata.formats.rvf.graph import Adjacency, decode_graph, decode_layer_a, encode_graph, encode_layer_a
from warpdata.formats.rvf.layout import DIRECTORY_ENTRY, OVERLAY_CHAIN, SegmentType, Tag
from warpdata.formats.rvf.quant import decode_quant
from warpdata.formats.rvf.reader import open_snapshot, read_segment
from warpdata.formats.rvf.vec import VecBlock, decode_vec, encode_vec
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender


@dataclass
class Part:
    """One segment: what the directory says of it, and its payload."""

    entry: Any
    payload: bytes

    @property
    def number(self) -> int:
        """Its id."""
        return self.entry.segment_id


@dataclass
class Parts:
    """Everything a committed state is made of."""

    segments: list[Part]
    root: Root
    records: list[Tlv]

    @classmethod
    def of(cls, content: bytes) -> Parts:
        reader = BytesRangeReader(content)
        snapshot = open_snapshot(reader)
        assert snapshot.root is not None
        found = [Part(entry, bytes(read_segment(reader, entry))) for entry in snapshot.segments]
        kept = [each for each in snapshot.records if each[0] not in (Tag.SEGMENT_DIR, Tag.OVERLAY_CHAIN)]
        return cls(found, snapshot.root, kept)

    def written(self) -> bytes:
        """A file of these parts."""
        with tempfile.TemporaryFile() as file:
            appender = SegmentAppender(file.fileno(), "forged", None, durable=False)
            entries = []
            for part in self.segments:
                entry = part.entry
                appender.next_id = entry.segment_id
                packing = layout.COMPRESSION_NAMES[entry.compression]
                options = SegmentOptions(flags=entry.flags, compression=packing)
                entries.append(
                    appender.append(
                        NewSegment(entry.seg_type, part.payload, options, entry.block_count, entry.tier)
                    )
                )
            appender.commit_checkpoint(entries, self.root, self.records)
            file.seek(0)
            return file.read()

    def kind(self, kind: int) -> list[Part]:
        """The segments of a type."""
        return [part for part in self.segments if part.entry.seg_type == kind]

    def one(self, kind: int) -> Part:
        """The only segment of a type."""
        (found,) = self.kind(kind)
        return found

    def add(self, kind: int, payload: bytes, block_count: int = 0) -> Part:
        """One more segment behind the others."""
        number = 1 + max(part.number for part in self.segments)
        entry = DIRECTORY_ENTRY(number, kind, 1, 0, 0, 0, len(payload), 0, 0, 0, block_count, b"")
        self.segments.append(Part(entry, payload))
        return self.segments[-1]

    # -- the parts of an index that our writer made --------------------------------------------------

    def record(self, tag: int, change: Callable[[bytes], bytes]) -> None:
        """Change a record of the manifest."""
        assert any(each == tag for each, _ in self.records)
        self.records = [(each, change(value) if each == tag else value) for each, value in self.records]

    def profile(self, **fields: Any) -> None:
        """Change the profile of the store; a field that is None goes."""

        def changed(value: bytes) -> bytes:
            said = {**json.loads(value), **fields}
            return json.dumps({name: each for name, each in said.items() if each is not None}).encode()

        self.record(Tag.PROFILE_CONFIG, changed)

    def index(self, layer: int) -> Part:
        """The segment of a layer of the index."""
        return next(part for part in self.kind(SegmentType.INDEX) if part.payload[1] == layer)

    def map(self) -> Any:
        """The partition map."""
        return decode_layer_a(self.index(0).payload)[0].partitions.copy()

    def layer_a(self, **fields: Any) -> None:
        """Change layer A; `header` changes fields of its header."""
        part = self.index(0)
        layer = decode_layer_a(part.payload)[0]
        header = layer.header._replace(**fields.pop("header", {}))
        part.payload = encode_layer_a(replace(layer, header=header, **fields))[0]

    def partitions(self, cell: int, **fields: int) -> None:
        """Change one row of the partition map."""
        found = self.map()
        for name, value in fields.items():
            found[name][cell] = value
        self.layer_a(partitions=found)

    def lists(self, layer: int) -> Adjacency:
        """The neighbour lists of layer B or C."""
        return decode_graph(self.index(layer).payload).adjacency

    def graph(self, layer: int, header: Mapping[str, int] | None = None, **fields: Any) -> None:
        """Change the header and the lists of layer B or C."""
        part = self.index(layer)
        found = decode_graph(part.payload)
        part.payload = encode_graph(
            found.header._replace(**(header or {})), replace(found.adjacency, **fields)
        )

    def blocks(self, part: Part, change: Callable[[int, VecBlock], VecBlock]) -> None:
        """Change blocks of vectors or codes, each with its number."""
        size = max(
            (decode_quant(each.payload).code_bytes for each in self.kind(SegmentType.QUANT)), default=0
        )
        found = decode_vec(part.payload, code_bytes=size)
        part.payload = bytes(encode_vec([change(number, block) for number, block in enumerate(found)]))


def with_small_manifest(content: bytes, kind: int, payload: bytes) -> bytes:
    """The file after one more segment and a manifest that lists it alone."""
    snapshot = open_snapshot(BytesRangeReader(content))
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        appender = SegmentAppender(file.fileno(), "forged", snapshot, durable=False)
        entry = appender.append(NewSegment(kind, payload))
        link = snapshot.manifest_offset, snapshot.manifest_id, snapshot.manifest_hash
        chain = container.pack_chain(OVERLAY_CHAIN(snapshot.epoch + 1, 1, *link))
        appender._commit(container.pack_tlvs([chain, container.pack_directory([entry])]), 0)
        file.seek(0)
        return file.read()
