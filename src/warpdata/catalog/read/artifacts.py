"""Members of an artifact by name: looked up in few reads, fetched together, checked one by one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import decode, zstd_frame_size
from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, Range, RangeReader, coalesce
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import Access, Catalog
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, LimitExceededError
from warpdata.formats.manifest.model import VECTOR_KIND, ArtifactPart, BlobRef, LongList
from warpdata.formats.manifest.parts import PartedShards
from warpdata.formats.manifest.vector_files import vector_files
from warpdata.formats.tarshard.member_index import Member, MemberIndex
from warpdata.stores.blobs import AnyBlobReader, LocalBlobReader
from warpdata.stores.prefetch import SequentialReader, SequentialReads

_GAP_BYTES = 32 << 10
_MAX_FRAME_BYTES = 1 << 30


class Artifact:
    """Raw payload of a dataset: members inside tar shards, or shards that are members themselves."""

    def __init__(self, name: str, part: ArtifactPart, access: Access, catalog: Catalog) -> None:
        self.name = name
        self.part = part
        self._access = access
        self._catalog = catalog
        self._lock = ThreadLock()
        self._indexes: list[MemberIndex] | None = None

    @cached_property
    def _following(self) -> SequentialReads | None:
        """Reads on from shard to shard; not in a long list, whose every part would have to be known."""
        if isinstance(self.part.shards, LongList):
            return None
        return SequentialReads(self.shard_reader, [shard.byte_size for shard in self.part.shards])

    @cached_property
    def _by_name(self) -> dict[str | None, int]:
        return {shard.name: number for number, shard in enumerate(self.part.shards)}

    @property
    def kind(self) -> str:
        """What the shards are."""
        return self.part.kind

    def __repr__(self) -> str:
        return f"<Artifact {self.name!r}: {self.kind}, {len(self)} members>"

    def __len__(self) -> int:
        return self.part.member_count

    def members(self, prefix: str = "") -> Iterator[str]:
        """Names of members that begin with `prefix`, sorted."""
        if self.part.is_tar:
            # By bytes, as each index has them.
            yield from heapq.merge(*(each.names(prefix) for each in self.member_indexes()), key=str.encode)
        else:
            names = (shard.name for shard in self.part.shards)
            yield from sorted(n for n in names if n is not None and n.startswith(prefix))

    def has(self, names: Sequence[str]) -> list[bool]:
        """Which of these members there are."""
        return [member is not None for member in self._looked_up(names)]

    def find(self, names: Sequence[str]) -> list[Member]:
        """Where members lie; a name that is not here is BlobNotFoundError."""
        found = self._looked_up(names)
        for name, member in zip(names, found, strict=True):
            if member is None:
                raise self._absent(name)
        members = [member for member in found if member is not None]
        return [self._checked_place(member) for member in members] if self.part.is_tar else members

    def shards_of(self, names: Sequence[str]) -> list[BlobRef]:
        """The shards that are these members; a name that is not here is BlobNotFoundError."""
        found = self._placed(names)
        for name, place in zip(names, found, strict=True):
            if place is None:
                raise self._absent(name)
        return [place[1] for place in found if place is not None]

    def _absent(self, name: str) -> BlobNotFoundError:
        return BlobNotFoundError(f"artifact {self.name!r} has no member {name!r}")

    def _placed(self, names: Sequence[str]) -> Sequence[tuple[int, BlobRef] | None]:
        """Where shards that are members themselves stand."""
        shards = self.part.shards
        if isinstance(shards, PartedShards):
            return shards.places(names)
        numbers = [self._by_name.get(name) for name in names]
        return [None if number is None else (number, shards[number]) for number in numbers]

    def _looked_up(self, names: Sequence[str]) -> Sequence[Member | None]:
        if self.part.is_tar:
            return _in_any(self.member_indexes(), names)
        return [
            None if place is None else Member(name, place[0], 0, place[1].byte_size, -1)
            for name, place in zip(names, self._placed(names), strict=True)
        ]

    def read(self, members: Sequence[Member]) -> list[memoryview]:
        """The bytes of members, near ones in one read, all shards at the same time."""
        by_shard: dict[int, list[int]] = defaultdict(list)
        for position, member in enumerate(members):
            by_shard[member.shard].append(position)
        tasks = [(shard, [members[i] for i in positions]) for shard, positions in sorted(by_shard.items())]
        if members and self._following is not None and self._follows(members[0].shard):
            self._following.note([(member.shard, member.read_range) for member in members])
        workers = 1 if self._is_here(tasks) else MAX_PARALLEL
        results = map_in_threads(lambda task: self._read_shard(*task), tasks, workers)
        out: list[memoryview] = [memoryview(b"")] * len(members)
        for (_, positions), views in zip(sorted(by_shard.items()), results, strict=True):
            for position, view in zip(positions, views, strict=True):
                out[position] = view
        return out

    def read_names(self, names: Sequence[str]) -> list[memoryview]:
        """The bytes of members by name."""
        return self.read(self.find(names))

    def reader_of(self, member: Member) -> RangeReader:
        """Ranges of one member: of its own shard where it is one, else of its bytes."""
        if self.part.is_tar:
            return BytesRangeReader(self.read([member])[0], member.name)
        return self.shard_reader(member.shard)

    def member_reader(self, name: str) -> RangeReader:
        """Ranges of a member by name; of a vector file that lies in parts, of all of them."""
        parts = vector_files(self.part.shards).get(name, []) if self.kind == VECTOR_KIND else []
        if len(parts) > 1:
            return JoinedRangeReader(
                [self.shard_reader(at) for at in parts], f"artifact {self.name!r} {name}"
            )
        return self.reader_of(self.find([name])[0])

    def vector_reader(self) -> RangeReader:
        """Ranges of the vector file, or of the first of them."""
        return self.member_reader(next(iter(vector_files(self.part.shards))))

    def shard_reader(self, number: int) -> AnyBlobReader:
        """The range reader of one shard."""
        shard = self.part.shards[number]
        label = f"artifact {self.name!r} shard {shard.name or number}"
        return self._access.reader(self._catalog, shard, label)

    def close(self) -> None:
        """Stop reading ahead."""
        if "_following" in self.__dict__ and self._following is not None:
            self._following.close()

    def streamed_reader(self, number: int) -> RangeReader:
        """The range reader of one shard for whoever goes through it in order."""
        reader = self.shard_reader(number)
        if self._following is None or not self._follows(number):
            return reader
        return SequentialReader(self._following, number, reader)

    def _follows(self, number: int) -> bool:
        """Whether it is worth while to read on behind whoever reads this shard."""
        is_far = not isinstance(self.shard_reader(number), LocalBlobReader)
        return is_far and self._access.reads_ahead

    def _is_here(self, tasks: Sequence[tuple[int, list[Member]]]) -> bool:
        """Whether nothing has to be waited for: then threads would only cost."""
        return all(
            self.shard_reader(shard).has([member.read_range for member in members])
            for shard, members in tasks
        )

    def _read_shard(self, number: int, members: Sequence[Member]) -> list[memoryview]:
        reader = self.shard_reader(number)
        ranges = [member.read_range for member in members]
        found: list[memoryview | None] = [None] * len(members)
        if self._following is not None:
            found = self._following.take(number, ranges)
        absent = [i for i, view in enumerate(found) if view is None]
        for i, view in zip(absent, _near_together(reader, [members[i] for i in absent]), strict=True):
            found[i] = view
        self._access.bring_whole([reader])
        return [
            self._content(member, view, reader)
            for member, view in zip(members, found, strict=True)
            if view is not None
        ]

    def _content(self, member: Member, data: memoryview, reader: AnyBlobReader) -> memoryview:
        """A member out of what was read: unpacked if need be, and checked."""
        if member.frame_bytes:
            size = zstd_frame_size(data)
            if size is None or size > _MAX_FRAME_BYTES:
                raise LimitExceededError(
                    f"member {member.name!r} lies in a frame of unknown size", path=reader.name
                )
            raw = memoryview(decode("zstd", data, size))
            data = raw[member.inner_offset : member.inner_offset + member.length]
        if data.nbytes != member.length or (member.crc32c >= 0 and crc32c(data) != member.crc32c):
            raise ChecksumError(f"member {member.name!r} is not as it was published", path=reader.name)
        return data

    def _checked_place(self, member: Member) -> Member:
        good = 0 <= member.shard < len(self.part.shards)
        if not good or member.read_range[1] > self.part.shards[member.shard].byte_size:
            raise CorruptLayoutError(f"member {member.name!r} lies outside its shard", path=self.name)
        return member

    def member_indexes(self) -> list[MemberIndex]:
        """The member indexes of a tar kind."""
        with self._lock:
            if self._indexes is None:
                label = f"member index of artifact {self.name!r}"
                self._indexes = [
                    MemberIndex(
                        self._access.reader(self._catalog, ref, label), ref.bucket_count, ref.member_count
                    )
                    for ref in self.part.indexes
                ]
            return self._indexes


def _in_any(indexes: Sequence[MemberIndex], names: Sequence[str]) -> list[Member | None]:
    """Where each name lies: each index is asked for those that were not in the others, the largest first."""
    found: list[Member | None] = [None] * len(names)
    for index in sorted(indexes, key=len, reverse=True):
        absent = [at for at, member in enumerate(found) if member is None]
        if not absent:
            break
        for at, member in zip(absent, index.find([names[at] for at in absent]), strict=True):
            found[at] = member
    return found


def _near_together(reader: AnyBlobReader, members: Sequence[Member]) -> list[memoryview]:
    """The bytes that hold members, near ones in one read."""
    ranges: list[Range] = [member.read_range for member in members]
    spans = coalesce(ranges, max_gap_bytes=_GAP_BYTES)
    out: list[memoryview] = [memoryview(b"")] * len(members)
    for span, data in zip(spans, reader.read_many([(s.start, s.end) for s in spans]), strict=True):
        for i in span.members:
            start, end = ranges[i]
            out[i] = data[start - span.start : end - span.start]
    return out


def range_member(artifact: Artifact, shard: int, offset: int, length: int, crc: int | None) -> Member:
    """The member a (shard, offset, length) reference stands for."""
    name = f"{shard}:{offset}+{length}"
    if min(shard, offset, length) < 0:
        raise CorruptLayoutError(f"no such reference: {name}", path=artifact.name)
    return artifact._checked_place(Member(name, shard, offset, length, -1 if crc is None else crc))
