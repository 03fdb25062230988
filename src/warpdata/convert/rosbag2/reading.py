"""Open ROS 2 bags as episodes: one bag is one episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from warpdata.bytekit.lazy import cached_property
from warpdata.convert.mcap import reading as mcap
from warpdata.convert.messages.episode import MessageSource, Reading
from warpdata.convert.messages.topic import TimeKind
from warpdata.convert.place import Place
from warpdata.convert.rosbag2.database import SQLITE_MAGIC, BagLog, is_database
from warpdata.convert.rosbag2.metadata import parse_metadata
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.errors import BlobNotFoundError, CorruptLayoutError
from warpdata.timeline.episode import Episode

_MAX_METADATA_BYTES = 64 << 20


def matches(place: Place) -> bool:
    """Whether it is a bag with SQLite files, a folder of bags, or one such file."""
    if place.is_file:
        return is_database(place.name) and place.head(len(SQLITE_MAGIC))[:4] in (
            SQLITE_MAGIC[:4],
            b"\x28\xb5\x2f\xfd",
        )
    return bool(_bags(place))


def read(
    source: Any,
    *,
    time: TimeKind = "log",
    actions: Sequence[str] = (),
    topics: Sequence[str] | None = None,
    recover: bool = False,
) -> Episodes:
    """The recordings of a bag, or of a folder of bags; a bag of MCAP files is read by `warpdata.convert.mcap`.

    The options are those of `warpdata.convert.mcap.read`. Bags before ROS 2 Iron do not carry the types of their
    messages: `warpdata[ros]` has those that ROS ships. What nothing defines is kept as it is.
    """
    place = Place.of(source)
    if not matches(place) and mcap.matches(place):
        return mcap.read(place, time=time, actions=actions, topics=topics, recover=recover)
    return Episodes(BagEpisodes(place, Reading.of(time, actions, topics)))


class BagEpisodes(EpisodesSource):
    """The bags below a place."""

    def __init__(self, place: Place, reading: Reading) -> None:
        self._place, self._reading = place, reading
        if not place.is_file and not _bags(place):
            raise BlobNotFoundError("no bag is in this folder", path=place.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (BagEpisodes, (self._place, self._reading))

    @property
    def name(self) -> str:
        """Where it lies."""
        return self._place.name

    @cached_property
    def _found(self) -> dict[str, list[str]]:
        if self._place.is_file:
            return {PurePosixPath(self._place.name).name.partition(".")[0]: [""]}
        return _bags(self._place)

    @property
    def ids(self) -> Sequence[str]:
        """The names of the bags."""
        return list(self._found)

    def open(self, position: int) -> Episode:
        """The bag at a position."""
        name = self.ids[position]
        files = self._found[name]
        told: Mapping[str, Any] = {}
        folder = files[0].rpartition("/")[0] if files[0] else ""
        about = f"{folder}/{mcap.METADATA_FILE}" if folder else mcap.METADATA_FILE
        if not self._place.is_file and self._place.exists(about):
            told = self._metadata(about)
            files = self._ordered(folder, told, files)
        where = self._place.name if self._place.is_file or not folder else f"{self._place.name}/{folder}"
        return Episode(MessageSource(name, BagLog(self._place, files, told, where), self._reading))

    def _metadata(self, name: str) -> Mapping[str, Any]:
        raw = self._place.read(name, max_bytes=_MAX_METADATA_BYTES)
        path = f"{self._place.name}/{name}"
        try:
            return parse_metadata(raw.decode(), path)
        except UnicodeDecodeError:
            raise CorruptLayoutError("the metadata of the bag is no text", path=path) from None

    def _ordered(self, folder: str, told: Mapping[str, Any], files: Sequence[str]) -> list[str]:
        """The files in the order the metadata names them; one that it names and is missing is an error."""
        listed = told.get("relative_file_paths")
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed) or not listed:
            return list(files)
        found = []
        for each in listed:
            plain = PurePosixPath(each).name  # older bags name them from the folder above
            name = f"{folder}/{plain}" if folder else plain
            packed = f"{name}.zstd"
            if name not in files and packed in files:
                name = packed
            if name not in files:
                raise BlobNotFoundError(
                    f"the bag names a file that is missing: {plain}", path=self._place.name
                )
            found.append(name)
        return found


def _bags(place: Place) -> dict[str, list[str]]:
    """The folders with SQLite files, and the files of each."""
    found: dict[str, list[str]] = {}
    for name in place.near():
        folder = name.rpartition("/")[0]
        if is_database(name):
            owner = folder or PurePosixPath(place.name).name
            found.setdefault(owner, []).append(name)
    return found
