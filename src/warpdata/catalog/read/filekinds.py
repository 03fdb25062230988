"""The kind of a file by its first bytes, of a folder by the names in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader, retry_damaged
from warpdata.errors import BadMagicError, WarpError
from warpdata.formats.bf16dir.layout import MANIFEST_NAME
from warpdata.formats.episodedir import layout as episodedir
from warpdata.formats.gamsae.layout import CORPUS_JSON, SHARD_MAGIC, SHARD_SUFFIX, is_shard_name
from warpdata.formats.journal.layout import MAGIC as JOURNAL_MAGIC
from warpdata.formats.rvf.layout import SEGMENT_MAGIC
from warpdata.formats.wshard.layout import MAGIC as WSHARD_MAGIC
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST, ROLE_EPISODE

_SHARD_ROLES = {ROLE_CHUNK_LIST: "chunk-list", ROLE_EPISODE: "episode"}
_ROLE_AT = 5
_KINDS = {JOURNAL_MAGIC: "journal", SEGMENT_MAGIC: "vectors", SHARD_MAGIC: "rows"}


SUPPORTED = (
    "recordings (a root, an episode directory, a .wshard, a chunk list, a folder of .wshard files), "
    "activation corpora, vector files and published datasets"
)
"""What an address may name, for messages."""

_OF_A_ROOT = {episodedir.LISTING_FILE, episodedir.FACTS_FILE, episodedir.EDITS_FILE}
_OURS = (".wshard", ".rvf", SHARD_SUFFIX)
_OF_A_DIRECTORY = {episodedir.META_FILE, episodedir.STATIC_FILE, episodedir.RECORDING_FOLDER}


def file_kind(source: str | os.PathLike[str] | RangeReader) -> str:
    """`episode`, `chunk-list`, `shard`, `journal`, `vectors` or `rows`; BadMagicError for anything else."""
    if isinstance(source, str | os.PathLike):
        with FileRangeReader(source) as reader:
            return _kind_of(reader)
    return retry_damaged(source, lambda: _kind_of(source), [(0, min(8, source.size))])


def _kind_of(source: RangeReader) -> str:
    start = bytes(source.read(0, min(8, source.size)))
    if start.startswith(WSHARD_MAGIC):
        return _SHARD_ROLES.get(start[_ROLE_AT] if len(start) > _ROLE_AT else ROLE_EPISODE, "shard")
    for magic, kind in _KINDS.items():
        if start.startswith(magic):
            return kind
    raise BadMagicError("no file format that warp knows", path=source.name, hint=f"It knows {SUPPORTED}.")


def folder_kind(names: Collection[str], path: str) -> str:
    """`directory` (one episode), `recordings`, `shards` or `corpus`, from the names in a folder.

    An empty folder is a root without recordings; BadMagicError for anything else.
    """
    known = set(names)
    if known & _OF_A_DIRECTORY:
        return "directory"
    if any(map(_is_number, known)) or known <= _OF_A_ROOT:
        return "recordings"
    if any(name.endswith(".wshard") for name in known):
        return "shards"
    if known & {CORPUS_JSON, MANIFEST_NAME} or any(map(is_shard_name, known)):
        return "corpus"
    raise BadMagicError("a folder that holds nothing warp knows", path=path, hint=f"It knows {SUPPORTED}.")


def things_in(folder: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Everything of ours in a folder of this disk and below, by path: what holds several episodes counts as one."""
    seen = above | {os.path.realpath(folder)}  # links may lead back
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        yield folder  # reading it gives the reason
        return
    kind = None
    with contextlib.suppress(BadMagicError):
        kind = "catalog" if is_catalog(folder) else folder_kind(names, folder)
    if kind == "recordings" and not any(map(_is_number, names)):
        kind = None
    if kind is not None:
        yield folder
    if kind in ("catalog", "corpus", "directory"):
        return
    for name in names:
        path = os.path.join(folder, name)
        is_part = _is_number(name) if kind == "recordings" else kind == "shards" and name.endswith(".wshard")
        if is_part or name.startswith("."):
            continue
        if os.path.isdir(path):
            if os.path.realpath(path) not in seen:
                yield from things_in(path, seen)
        elif os.path.isfile(path) and is_ours(path):
            yield path


def is_catalog(folder: str) -> bool:
    """Whether a folder of this disk is a catalog of published datasets."""
    return all(os.path.isdir(os.path.join(folder, name)) for name in ("blobs/sha256", "datasets"))


def is_ours(path: str) -> bool:
    """Whether a file is of a format of ours, by its first bytes; or by its name, in case those are damaged."""
    try:
        file_kind(path)
    except BadMagicError:
        return path.endswith(_OURS)
    except WarpError:
        return True  # reading it gives the reason
    return True


def _is_number(name: str) -> bool:
    return len(name) == episodedir.DIGITS and name.isdigit()
