"""Files of the runtime that inherit vectors from a parent file beside them: all of them, or an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import shared_golden
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, StoreError, TruncatedError
from warpdata.formats.rvf import container
from warpdata.formats.rvf import layout as records
from warpdata.formats.rvf.container import SegmentOptions
from warpdata.formats.rvf.layout import FILE_IDENTITY, RUNTIME_SEGMENT, SegmentType
from warpdata.formats.rvf.runtime import RuntimeManifest, encode_runtime_manifest, encode_runtime_vec


@pytest.fixture
def child(tmp_path: Path) -> Path:
    path = tmp_path / "child.rvf"
    shutil.copyfile(shared_golden("rvf", "runtime", "node_child_branch.rvf"), path)
    return path


def parent_of(child: Path) -> Path:
    return child.with_name("node_parent.rvf")


def found(path: Path) -> list[int]:
    with wd.VectorStore.open(path) as store:
        return sorted(store.search(np.ones(store.dim, np.float32), k=100)[0].tolist())


def test_it_has_what_its_parent_shows_it(child: Path) -> None:
    shutil.copyfile(shared_golden("rvf", "runtime", "node_parent.rvf"), parent_of(child))
    assert len(found(child)) == 30


def test_without_its_parent(child: Path) -> None:
    with pytest.raises(BlobNotFoundError, match=r"node_parent\.rvf"):
        found(child)
    parent_of(child).mkdir()
    with pytest.raises(StoreError, match="a folder"):
        found(child)


@pytest.mark.parametrize("other", ["node_d8_deleted.rvf", "node_d384_100.rvf", "node_child_branch.rvf"])
def test_a_stranger_is_no_parent(child: Path, other: str) -> None:
    shutil.copyfile(shared_golden("rvf", "runtime", other), parent_of(child))
    with pytest.raises(CorruptLayoutError, match="is not the parent of this file"):
        found(child)


def test_a_parent_that_was_cut_off_hides_nothing(child: Path) -> None:
    """Wherever it is cut: it opens as it was some commits ago, and lacks what came later."""
    whole = shared_golden("rvf", "runtime", "node_parent.rvf").read_bytes()
    for size in range(0, len(whole), 50):
        parent_of(child).write_bytes(whole[:size])
        with pytest.raises((CorruptLayoutError, TruncatedError)):
            found(child)


def shipped(path: Path, dim: int, name: bytes | None, number: int = 1) -> Path:
    """A file of the runtime, of one vector and, where a name is given, of what its parent `number` shows."""
    rows = np.ones((1, dim), np.float32)
    pieces = [(SegmentType.VEC, encode_runtime_vec(np.array([number], np.uint64), rows))]
    own = number if name in (None, path.name.encode()) else number + 1
    if name is not None:
        sizes = 1, 0, 0, 4096, 64, bytes([number]) * 16, bytes(32), 0, 0, len(name), 0
        pieces.append((SegmentType.COW_MAP, records.COW_MAP_HEAD.pack(records.COW_MAP_MAGIC, *sizes) + name))
    content, listed = b"", []
    for segment_id, (kind, payload) in enumerate(pieces, 1):
        listed.append(RUNTIME_SEGMENT(segment_id, len(content), len(payload), kind))
        content += packed(kind, segment_id, payload)
    identity = FILE_IDENTITY(bytes([own]) * 16, bytes(16), bytes(32), 0)
    found = RuntimeManifest(1, dim, 1, 0, "l2", tuple(listed), np.zeros(0, np.uint64), identity)
    path.write_bytes(content + packed(SegmentType.MANIFEST, 9, encode_runtime_manifest(found)))
    return path


def packed(kind: int, segment_id: int, payload: bytes) -> bytes:
    header, stored = container.build(kind, segment_id, payload, SegmentOptions(checksum="crc32c"))
    return container.pack_header(header._replace(content_hash=container.runtime_hash(payload))) + bytes(
        stored
    )


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    with pytest.raises(CorruptLayoutError, match=r"the parent file 'me\.rvf' cannot be reached"):
        found(shipped(tmp_path / "me.rvf", 3, b"me.rvf"))


def test_a_parent_of_other_dimensions(tmp_path: Path) -> None:
    shipped(tmp_path / "p.rvf", 3, None)
    assert found(shipped(tmp_path / "c.rvf", 3, b"p.rvf")) == [1]
    with pytest.raises(CorruptLayoutError, match=r"4 dimensions, those of its parent 'p\.rvf' 3"):
        found(shipped(tmp_path / "c.rvf", 4, b"p.rvf"))
