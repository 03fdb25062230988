"""The samples of tar shards: consecutive members of one key, each a field; only headers are read to find them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import run_in_child
from warpdata.convert.place import Place
from warpdata.errors import BadMagicError, CorruptLayoutError, LimitExceededError
from warpdata.formats.tarshard.reader import scan_members

MAX_FIELD_BYTES = 1 << 30
_PACKED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}


@dataclass(frozen=True, slots=True)
class SampleField:
    """The bytes of one field: which shard, where, and whether they are gzip."""

    shard: int
    offset: int
    length: int
    is_gzip: bool = False


@dataclass(frozen=True, slots=True)
class TarSample:
    """One sample: its key, its shard and its fields by name, in their order."""

    key: str
    shard: int
    fields: dict[str, SampleField]


class Shards:
    """Tar files in order; each is scanned once, when its samples are first asked for."""

    def __init__(self, place: Place, names: Sequence[str]) -> None:
        self.place, self.names = place, list(names)
        self._open: dict[int, RangeReader] = {}
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """In a forked child: the files are opened anew."""
        self._open = {}

    def path(self, shard: int) -> str:
        """Where a shard lies."""
        return f"{self.place.name}/{self.names[shard]}" if self.names[shard] else self.place.name

    def reader(self, shard: int) -> RangeReader:
        """The bytes of a shard; a few stay open."""
        found = self._open.get(shard)
        if found is None:
            if len(self._open) >= 16:
                self._open.pop(next(iter(self._open))).close()
            found = self._open[shard] = self.place.open(self.names[shard])
            head = bytes(found.read(0, min(4, found.size)))
            for suffix, magic in _PACKED.items():
                if head.startswith(magic):
                    raise BadMagicError(
                        f"the shard is compressed as a whole ({suffix})", path=self.path(shard),
                        hint="Unpack it first: a compressed archive cannot be read in parts.",
                    )  # fmt: skip
        return found

    @cached_property
    def samples(self) -> list[TarSample]:
        """All samples of all shards, in order."""
        return [sample for shard in range(len(self.names)) for sample in self._scan(shard)]

    def _scan(self, shard: int) -> Iterator[TarSample]:
        key: str | None = None
        fields: dict[str, SampleField] = {}
        for member in scan_members(self.reader(shard)):
            folder, _, base = member.name.rpartition("/")
            stem, dot, extension = base.partition(".")
            if base.startswith((".", "__")) or member.name.startswith("__") or not dot:
                continue
            this = f"{folder}/{stem}" if folder else stem
            if this != key:
                if key is not None:
                    yield TarSample(key, shard, fields)
                key, fields = this, {}
            name = extension.lower()
            is_gzip = name.endswith(".gz")
            name = name.removesuffix(".gz")
            if name in fields:
                raise CorruptLayoutError(
                    f"field {name!r} of sample {this!r} is there twice", path=self.path(shard)
                )
            fields[name] = SampleField(shard, member.offset, member.length, is_gzip)
        if key is not None:
            yield TarSample(key, shard, fields)

    def read(self, field: SampleField) -> bytes:
        """The bytes of a field, unpacked where they are gzip."""
        if field.length > MAX_FIELD_BYTES:
            raise LimitExceededError(f"a field of {field.length} bytes", path=self.path(field.shard))
        data = bytes(self.reader(field.shard).read(field.offset, field.offset + field.length))
        if not field.is_gzip:
            return data
        try:
            stream = zlib.decompressobj(31)
            found = stream.decompress(data, MAX_FIELD_BYTES)
        except zlib.error as error:
            raise CorruptLayoutError(f"a damaged gzip field ({error})", path=self.path(field.shard)) from None
        if not stream.eof:
            raise LimitExceededError("a gzip field that is cut, or too large", path=self.path(field.shard))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shards, (self.place, self.names))
