"""Names of datasets and of everything a catalog stores about them."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from warpdata.errors import require_kind
from warpdata.formats.manifest.model import DATASET_ID
from warpdata.timeline.times import parse_time_ns

LATEST = "latest.json"
VERSION_SUFFIXES = (".json", ".sig.json", ".card.md", ".croissant.json")
"""The files of a version in a catalog: the manifest and the files beside it."""

_HASH_PREFIX = re.compile(r"[a-f0-9]{8,64}")
_LATEST_TAG = "latest"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class DatasetName:
    """`ws/name`, with the beginning of a version hash or a tag after an `@`."""

    dataset_id: str
    hash_prefix: str | None = None
    tag: str | None = None

    @property
    def folder(self) -> str:
        """The folder of the dataset in a catalog; its blobs are elsewhere."""
        return f"datasets/{self.dataset_id}/"

    @property
    def latest_key(self) -> str:
        """The pointer to the newest version."""
        return f"{self.folder}{LATEST}"

    def version_key(self, version: str, suffix: str = ".json") -> str:
        """The manifest of a version, or a file beside it."""
        return f"{self.folder}versions/{version}{suffix}"

    @property
    def list_key(self) -> str:
        """The list of versions and tags."""
        return f"{self.folder}versions.json"

    def version_keys(self, version: str) -> list[str]:
        """The manifest of a version, then the files that may be beside it."""
        return [self.version_key(version, suffix) for suffix in VERSION_SUFFIXES]

    def tag_key(self, tag: str) -> str:
        """The pointer of a tag."""
        return f"{self.folder}tags/{tag}.json"

    def __str__(self) -> str:
        suffix = self.hash_prefix or self.tag
        return f"{self.dataset_id}@{suffix}" if suffix else self.dataset_id


def parse_name(text: str) -> DatasetName:
    """The name in `text`, or ValueError with the form of a name."""
    if not isinstance(text, str):
        raise TypeError(f"a dataset has a name like workspace/name, not {text!r}")
    dataset_id, at, suffix = text.partition("@")
    if not DATASET_ID.fullmatch(dataset_id) or (at and not suffix):
        raise ValueError(f"not a dataset name: {text!r}; use workspace/name, with @hash or @tag if you like")
    if not at or suffix == _LATEST_TAG:
        return DatasetName(dataset_id)
    if _HASH_PREFIX.fullmatch(suffix):
        return DatasetName(dataset_id, hash_prefix=suffix)
    return DatasetName(dataset_id, tag=check_tag(suffix))


def is_dataset_name(text: str) -> bool:
    """Whether `text` has the form of a dataset name."""
    return bool(DATASET_ID.fullmatch(text.partition("@")[0]))


def is_hash_prefix(text: object) -> bool:
    """Whether it is the hash of a version, or enough of its beginning."""
    return isinstance(text, str) and bool(_HASH_PREFIX.fullmatch(text))


def check_tag(tag: str) -> str:
    """The tag, or ValueError; a tag cannot look like a hash."""
    require_kind("a tag", tag, str, "a text")
    if tag.lower() == _LATEST_TAG:
        raise ValueError(f"the tag {tag!r} is reserved: @latest is the newest version; publish moves it")
    if not _TAG.fullmatch(tag) or _HASH_PREFIX.fullmatch(tag):
        raise ValueError(f"not a tag: {tag!r}; use letters, digits, . _ -, and not what looks like a hash")
    return tag


def parse_size(text: str | float) -> int:
    """Bytes from a number or a text like "200GB", "10 GiB" or "512k"."""
    size = _written_size(text) if isinstance(text, str) else text
    if not 0 <= size < 1 << 63:
        raise ValueError(f"not a size: {text!r}; write it like 500MB or 10GiB")
    return int(size)


def _written_size(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", text)
    if match is None:
        return -1
    unit: int = (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " ")
    return float(match[1]) * unit


def parse_duration(text: str) -> float:
    """Seconds from a text like "30d", "12h", "90m" or "45s"; a bare number is days."""
    with contextlib.suppress(ValueError):
        if (seconds := parse_time_ns(text, "d") / 1e9) >= 0:
            return seconds
    raise ValueError(f"not a duration: {text!r}; write it like 30d or 12h")
