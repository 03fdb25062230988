"""References from a table into an artifact: files, pictures, sound and video that read when asked."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import PartRangeReader, RangeFile
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.catalog.read import media
from warpdata.catalog.read.artifact_contents import episode_of
from warpdata.catalog.read.artifacts import Artifact
from warpdata.errors import DatasetError, require_kind
from warpdata.formats.tarshard.member_index import Member
from warpdata.stores.pagecache import PageCache
from warpdata.timeline.episode import Episode

_AHEAD_BYTES = 64 << 20
_AHEAD_REFS = 256
_STREAM_BYTES = 16 << 20
"""Larger files are streamed by range; smaller ones are read whole, so that their checksum is looked at."""

_BUFFER_BYTES = 64 << 10

ArtifactOpener = Callable[[str], tuple[Artifact, PageCache | None]]


class RefGroup:
    """References that came in one batch: the first read brings the following ones along."""

    def __init__(
        self, artifact: Artifact, cache: PageCache | None, places: Sequence[str | Member], recipe: str = ""
    ) -> None:
        self.artifact = artifact
        self.cache = cache
        self.recipe = recipe
        """How the dataset is opened again in another process."""
        self._places = list(places)
        self._data: dict[int, memoryview] = {}
        self._given: set[int] = set()
        self._lock = ThreadLock()

    @cached_property
    def origin(self) -> tuple[str, str]:
        """The version of a dataset and the artifact that these are files of."""
        return (json.loads(self.recipe)["dataset"]["name"] if self.recipe else "", self.artifact.name)

    def name(self, position: int) -> str:
        """The member's name."""
        place = self._places[position]
        return place if isinstance(place, str) else place.name

    def place(self, position: int) -> str | Member:
        """Where the member lies, or only its name as long as nobody looked it up."""
        return self._places[position]

    def member(self, position: int) -> Member:
        """Where the member lies."""
        self._locate(range(position, position + 1))
        place = self._places[position]
        assert isinstance(place, Member)
        return place

    def read(self, position: int) -> memoryview:
        """The bytes of one reference, and of those after it, up to a bound on memory."""
        with self._lock:
            if position not in self._data:
                self._fetch(position)
            self._given.add(position)
            return self._data.pop(position)

    def read_all(self) -> list[memoryview]:
        """The bytes of all references, fetched together."""
        self._locate(range(len(self._places)))
        return self.artifact.read([place for place in self._places if isinstance(place, Member)])

    def _locate(self, positions: Sequence[int]) -> None:
        """Look up the names among these places, all at once."""
        named = [i for i in positions if isinstance(self._places[i], str)]
        found = self.artifact.find([str(self._places[i]) for i in named]) if named else []
        for i, member in zip(named, found, strict=True):
            self._places[i] = member

    def _fetch(self, position: int) -> None:
        """Fetch this one and those after it that nobody has had yet, so that each is fetched once in any order."""
        stop = min(position + _AHEAD_REFS, len(self._places))
        taken = self._given.union(self._data)
        ahead = [position, *(i for i in range(position + 1, stop) if i not in taken)]
        self._locate(ahead)
        size = sum(view.nbytes for view in self._data.values())
        wanted: list[tuple[int, Member]] = []
        for i in ahead:
            place = self._places[i]
            assert isinstance(place, Member)
            size += place.length
            if wanted and size > _AHEAD_BYTES:
                break
            wanted.append((i, place))
        if size > _AHEAD_BYTES:
            self._data.clear()
        found = self.artifact.read([member for _, member in wanted])
        self._data |= {i: view for (i, _), view in zip(wanted, found, strict=True)}


class FileRef:
    """One raw file of a dataset; nothing is read before it is asked for."""

    def __init__(self, group: RefGroup, position: int) -> None:
        require_kind("a reference", group, RefGroup, "made by a table or by Dataset.ref, of a RefGroup")
        self._group = group
        self._position = position

    @property
    def name(self) -> str:
        """The member's name in its artifact."""
        return self._group.name(self._position)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._group.member(self._position).length

    def read_bytes(self) -> bytes:
        """The whole file."""
        return bytes(self._group.read(self._position))

    def open(self) -> io.BufferedReader:
        """The file as a seekable stream that reads ranges as they are asked for."""
        member = self._group.member(self._position)
        if member.frame_bytes or member.length <= _STREAM_BYTES:
            return io.BufferedReader(io.BytesIO(self.read_bytes()))
        shard = self._group.artifact.streamed_reader(member.shard)
        part = PartRangeReader(shard, member.offset, member.length, self.name)
        return io.BufferedReader(RangeFile(part), _BUFFER_BYTES)

    def local_path(self) -> Path:
        """A file on this disk with these bytes, downloaded if need be."""
        cache = self._group.cache
        member = self._group.member(self._position)
        artifact = self._group.artifact
        if not artifact.part.is_tar:
            path = artifact.shard_reader(member.shard).load_whole()
            if path is not None:
                return path
        if cache is None:
            hint = "Use open() or read_bytes(), or open the dataset in another mode."
            raise DatasetError(f"{self.name!r} has no file here, and mode='remote' writes none", hint=hint)
        shard = artifact.part.shards[member.shard].hash
        suffix = os.path.splitext(self.name)[1]
        name = f"{shard}-{member.offset}-{member.inner_offset}-{member.length}{suffix}"
        path = cache.member_path(name)
        return path if path.exists() else cache.keep_member(name, self._group.read(self._position))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _ref_again, (type(self), self._group.recipe, self._group.place(self._position))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileRef):
            return NotImplemented
        return (self.name, self._group.origin) == (other.name, other._group.origin)

    def __hash__(self) -> int:
        return hash((self.name, self._group.origin))


class ImageRef(FileRef):
    """A picture."""

    def as_pil(self) -> Any:
        """The decoded Pillow image."""
        return media.decode_pil(self.read_bytes(), self.name)

    def as_numpy(self) -> NDArray[Any]:
        """The pixels, (height, width) or (height, width, channels)."""
        return np.asarray(self.as_pil())


class AudioRef(FileRef):
    """Sound."""

    def as_array(self) -> NDArray[np.float32]:
        """The samples as float32, (frames,) or (frames, channels)."""
        return media.decode_audio(self.read_bytes(), self.name)[0]

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return media.decode_audio(self.read_bytes(), self.name)[1]


class VideoRef(FileRef):
    """Video."""

    def frame(self, time_s: float) -> NDArray[np.uint8]:
        """The frame shown at `time_s` seconds as (height, width, 3) RGB."""
        with self.open() as file:
            return media.decode_video_frame(file, time_s, self.name)


class EpisodeFileRef(FileRef):
    """A recorded episode: `open()` reads its header, and its blocks as they are asked for."""

    def open(self) -> Episode:  # type: ignore[override]
        """The episode in time, lazily; `.tensors` is the same by step."""
        return episode_of(self._group.artifact, self._group.member(self._position))


REF_CLASSES: dict[str, type[FileRef]] = {
    "file": FileRef,
    "image": ImageRef,
    "audio": AudioRef,
    "video": VideoRef,
    "episode": EpisodeFileRef,
}


def read_refs(refs: Sequence[FileRef]) -> list[bytes]:
    """The bytes of many references, fetched together whatever batch they came in."""
    by_artifact: dict[int, list[int]] = {}
    for i, ref in enumerate(refs):
        require_kind("each of them", ref, FileRef, "a reference")
        by_artifact.setdefault(id(ref._group.artifact), []).append(i)
    out: list[bytes] = [b""] * len(refs)
    for positions in by_artifact.values():
        artifact = refs[positions[0]]._group.artifact
        places = [refs[i]._group.place(refs[i]._position) for i in positions]
        group = RefGroup(artifact, None, places)
        for i, view in zip(positions, group.read_all(), strict=True):
            out[i] = bytes(view)
    return out


@lru_cache(maxsize=8)
def reopened(recipe: str) -> ArtifactOpener:
    """The artifacts of the dataset a recipe describes."""
    from warpdata.catalog.dataset import reopened_artifacts  # which needs this module first

    found: ArtifactOpener = reopened_artifacts(recipe)
    return found


def _ref_again(kind: type[FileRef], recipe: str, place: str | Member) -> FileRef:
    """A reference that came from another process."""
    artifact, cache = reopened(recipe)(json.loads(recipe)["artifact"])
    return kind(RefGroup(artifact, cache, [place], recipe), 0)
