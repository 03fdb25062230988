"""ROS 2 bags as episodes: one bag is one episode. The adapter of PyYAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from warpdata.convert.mcap import reading as mcap
from warpdata.convert.messages.episode import Reading, Recordings
from warpdata.convert.messages.log import MessageLog
from warpdata.convert.messages.topic import TimeKind
from warpdata.convert.place import Place
from warpdata.convert.rosbag2.database import SQLITE_MAGIC, BagLog
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, MissingExtraError

_MAX_METADATA_BYTES = 64 << 20
_SUFFIXES = (".db3", ".db3.zstd")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def matches(place: Place) -> bool:
    """Whether it is a bag with SQLite files, a folder of bags, or one such file."""
    if place.is_file:
        return place.name.endswith(_SUFFIXES) and place.head(4) in (SQLITE_MAGIC[:4], _ZSTD_MAGIC)
    return bool(_list_bags(place))


def read(
    source: Any,
    *,
    time: TimeKind = "log",
    actions: Sequence[str] = (),
    topics: Sequence[str] | None = None,
    recover: bool = False,
) -> Episodes:
    """The recordings of a bag, or of a folder of bags, which may hold SQLite or MCAP files.

    The options are those of `warpdata.convert.mcap.read`. Bags before ROS 2 Iron do not carry the types of their
    messages: `warpdata[ros]` has those that ROS ships. Messages of other types stay bytes.
    """
    reading = Reading.of(time, actions, topics)
    return Episodes(Recordings(Place.of(source), reading, _find_recordings, partial(_open_log, recover)))


def _find_recordings(place: Place) -> dict[str, list[str]]:
    if place.is_file:
        return {PurePosixPath(place.name).name.partition(".")[0]: [""]}
    return {**mcap.group_files(place), **_list_bags(place)}


def _open_log(recover: bool, place: Place, files: list[str]) -> MessageLog:
    """One bag, with its files in the order of metadata.yaml."""
    if files[0].endswith(".mcap") or (place.is_file and mcap.matches(place)):
        return mcap.open_log(recover, place, files)
    folder = files[0].rpartition("/")[0]
    metadata_file = f"{folder}/{mcap.METADATA_FILE}".lstrip("/")
    stated: Mapping[str, Any] = {}
    if not place.is_file and place.exists(metadata_file):
        raw = place.read(metadata_file, max_bytes=_MAX_METADATA_BYTES)
        stated = parse_metadata(raw, f"{place.name}/{metadata_file}")
        files = _order_files(stated.get("relative_file_paths"), files, place.name)
    return BagLog(place, files, stated, f"{place.name}/{folder}".rstrip("/"))


def _order_files(listed: Any, files: Sequence[str], path: str) -> list[str]:
    """Files in the order of the metadata; a missing one is an error."""
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed) or not listed:
        return list(files)
    by_name = {PurePosixPath(file).name.removesuffix(".zstd"): file for file in files}
    names = [PurePosixPath(name).name.removesuffix(".zstd") for name in listed]  # old bags list "folder/file"
    for name in names:
        if name not in by_name:
            raise BlobNotFoundError(f"file of the bag is missing: {name}", path=path)
    return [by_name[name] for name in names]


def parse_metadata(raw: bytes, path: str) -> dict[str, Any]:
    """Information about a bag in metadata.yaml, as JSON values. Aliases, which can grow without bound, are refused."""
    try:
        import yaml
    except ImportError:
        raise MissingExtraError.for_extra("PyYAML", "ros") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = raw.decode()
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, loader)):
            raise ValueError("it has aliases")
        document = json.loads(json.dumps(yaml.load(text, loader), default=str))
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise CorruptLayoutError(f"corrupted metadata of a bag ({error})", path=path) from None
    stated = document.get("rosbag2_bagfile_information") if isinstance(document, dict) else None
    if not isinstance(stated, dict):
        raise CorruptLayoutError("metadata of a bag has no rosbag2_bagfile_information", path=path)
    return stated


def _list_bags(place: Place) -> dict[str, list[str]]:
    """SQLite files by the folder that holds them."""
    bags: dict[str, list[str]] = {}
    for name in place.near():
        if name.endswith(_SUFFIXES):
            owner = name.rpartition("/")[0] or PurePosixPath(place.name).name
            bags.setdefault(owner, []).append(name)
    return bags
