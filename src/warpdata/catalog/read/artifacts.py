"""Members of an artifact by name: found in few reads, fetched together, checked one by one."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import decode, zstd_frame_size
from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, RangeReader, coalesce
from warpdata.bytekit.process.forks import cached_property
from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import Access, Catalog
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, LimitExceededError
from warpdata.formats.manifest.model import VECTOR_KIND, ArtifactPart, BlobRef, PartedShards, vector_files
from warpdata.formats.tarshard.member_index import Member, MemberIndex
from warpdata.stores.blobs import BlobReader
from warpdata.stores.prefetch import SequentialReader, SequentialReads

_GAP_BYTES = 128 << 10
_MAX_FRAME_BYTES = 1 << 30


class Artifact:
    """Raw payload of a dataset: members inside tar shards, or shards that are members themselves."""

    def __init__(self, name: str, part: ArtifactPart, access: Access, catalog: Catalog) -> None:
        self.name = name
        self.part = part
        self.kind = part.kind
        self._access = access
        self._catalog = catalog

    @cached_property
    def _prefetch(self) -> SequentialReads | None:
        """Sequential prefetch from shard to shard; not in a long list, of which every part would be read."""
        if isinstance(self.part.shards, PartedShards):
            return None
        return SequentialReads(self.shard_reader, [shard.byte_size for shard in self.part.shards])

    @cached_property
    def _by_name(self) -> dict[str | None, int]:
        return {shard.name: number for number, shard in enumerate(self.part.shards)}

    def __repr__(self) -> str:
        return f"<Artifact {self.name!r}: {self.kind}, {len(self)} members>"

    def __len__(self) -> int:
        return self.part.member_count

    def members(self, prefix: str = "") -> Iterator[str]:
        """Names of members that begin with `prefix`, sorted."""
        if self.part.is_tar:  # by bytes, as in each index
            yield from heapq.merge(*(index.names(prefix) for index in self.indexes), key=str.encode)
        else:
            names = (shard.name for shard in self.part.shards)
            yield from sorted(n for n in names if n is not None and n.startswith(prefix))

    def has(self, names: Sequence[str]) -> list[bool]:
        """Which of these names are members."""
        return [member is not None for member in self._look_up(names)]

    def find(self, names: Sequence[str]) -> list[Member]:
        """The places of members; BlobNotFoundError for an unknown name."""
        members = []
        for name, member in zip(names, self._look_up(names), strict=True):
            if member is None:
                raise BlobNotFoundError(f"artifact {self.name!r} has no member {name!r}")
            members.append(self.check_place(member) if self.part.is_tar else member)
        return members

    def shards_of(self, names: Sequence[str]) -> list[BlobRef]:
        """The shards that are these members; BlobNotFoundError for an unknown name."""
        return [self.part.shards[member.shard] for member in self.find(names)]

    def _look_up(self, names: Sequence[str]) -> Sequence[Member | None]:
        members: list[Member | None] = [None] * len(names)
        if self.part.is_tar:  # the largest index first, then the others for names that are still missing
            for index in sorted(self.indexes, key=len, reverse=True):
                missing = [at for at, member in enumerate(members) if member is None]
                if not missing:
                    break
                for at, member in zip(missing, index.find([names[at] for at in missing]), strict=True):
                    members[at] = member
            return members
        shards = self.part.shards
        if isinstance(shards, PartedShards):
            places = shards.places(names)
        else:
            numbers = [self._by_name.get(name) for name in names]
            places = [None if number is None else (number, shards[number]) for number in numbers]
        return [
            None if place is None else Member(name, place[0], 0, place[1].byte_size, -1)
            for name, place in zip(names, places, strict=True)
        ]

    def read(self, members: Sequence[Member]) -> list[memoryview]:
        """The bytes of members, near ones in one read, all shards at the same time."""
        order = sorted(range(len(members)), key=lambda position: members[position].shard)
        groups = itertools.groupby([members[position] for position in order], key=lambda member: member.shard)
        tasks = [(shard, list(inside)) for shard, inside in groups]
        if members and self._prefetch is not None and self._is_prefetched(members[0].shard):
            self._prefetch.note([(member.shard, member.read_range) for member in members])
        is_here = all(self.shard_reader(s).has([m.read_range for m in inside]) for s, inside in tasks)
        results = map_in_threads(lambda task: self._read_shard(*task), tasks, 1 if is_here else MAX_PARALLEL)
        views = dict(zip(order, itertools.chain.from_iterable(results), strict=True))
        return [views[position] for position in range(len(members))]

    def _read_shard(self, number: int, members: Sequence[Member]) -> list[memoryview]:
        """Members of one shard, decompressed and checked."""
        reader = self.shard_reader(number)
        ranges = [member.read_range for member in members]
        views: list[memoryview | None] = [None] * len(members)
        if self._prefetch is not None:
            views = self._prefetch.take(number, ranges)
        missing = [i for i, view in enumerate(views) if view is None]
        spans = coalesce([ranges[i] for i in missing], max_gap_bytes=_GAP_BYTES)
        for span, data in zip(spans, reader.read_many([(s.start, s.end) for s in spans]), strict=True):
            for at in span.members:
                start, end = ranges[missing[at]]
                views[missing[at]] = data[start - span.start : end - span.start]
        self._access.bring_whole([reader])
        contents = []
        for member, view in zip(members, views, strict=True):
            assert view is not None
            data = view
            if member.frame_bytes:
                size = zstd_frame_size(view)
                if size is None or size > _MAX_FRAME_BYTES:
                    fact = f"member {member.name!r} is in a frame of unknown size"
                    raise LimitExceededError(fact, path=reader.name)
                data = memoryview(decode("zstd", view, size))
                data = data[member.inner_offset : member.inner_offset + member.length]
            if data.nbytes != member.length or (member.crc32c >= 0 and crc32c(data) != member.crc32c):
                raise ChecksumError(f"member {member.name!r} is not as it was published", path=reader.name)
            contents.append(data)
        return contents

    def reader_of(self, member: Member) -> RangeReader:
        """Ranges of one member: of its own shard, or of its bytes in a tar file."""
        if self.part.is_tar:
            return BytesRangeReader(self.read([member])[0], member.name)
        return self.shard_reader(member.shard)

    def member_reader(self, name: str) -> RangeReader:
        """Ranges of a member by name; of a vector file in parts, of all of them."""
        parts = vector_files(self.part.shards).get(name, []) if self.kind == VECTOR_KIND else []
        if len(parts) > 1:
            readers = [self.shard_reader(number) for number in parts]
            return JoinedRangeReader(readers, f"artifact {self.name!r} {name}")
        return self.reader_of(self.find([name])[0])

    def shard_reader(self, number: int) -> BlobReader:
        """The range reader of one shard."""
        shard = self.part.shards[number]
        label = f"artifact {self.name!r} shard {shard.name or number}"
        return self._access.reader(self._catalog, shard, label)

    def streamed_reader(self, number: int) -> RangeReader:
        """The range reader of one shard for reading in order."""
        reader = self.shard_reader(number)
        if self._prefetch is None or not self._is_prefetched(number):
            return reader
        return SequentialReader(self._prefetch, number, reader)

    def _is_prefetched(self, number: int) -> bool:
        return self._access.reads_ahead and not self.shard_reader(number).is_local

    def close(self) -> None:
        """Stop reading ahead."""
        if "_prefetch" in self.__dict__ and self._prefetch is not None:
            self._prefetch.close()

    def check_place(self, member: Member) -> Member:
        """The member, or CorruptLayoutError if it is outside its shard."""
        is_shard = 0 <= member.shard < len(self.part.shards)
        if not is_shard or member.read_range[1] > self.part.shards[member.shard].byte_size:
            raise CorruptLayoutError(f"member {member.name!r} is outside its shard", path=self.name)
        return member

    @cached_property
    def indexes(self) -> list[MemberIndex]:
        """The member indexes of a tar kind."""
        label = f"member index of artifact {self.name!r}"
        return [
            MemberIndex(self._access.reader(self._catalog, ref, label), ref.bucket_count, ref.member_count)
            for ref in self.part.indexes
        ]
