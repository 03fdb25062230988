"""Headers and descriptions with any number in any place: an error of ours, or rows that the files have bytes for."""

from __future__ import annotations

import contextlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.jsontext import dump_json
from warpdata.corpora.shuffled import ShuffledRows
from warpdata.corpora.source import MmapShardSource, StoreShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.errors import LimitExceededError, WarpError
from warpdata.formats.bf16dir import layout as bf16
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus import verify_folder
from warpdata.formats.gamsae.shard import encode_shard_bytes

QUIET = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=enough_examples(60),
    deadline=None,
)
NUMBERS = st.sampled_from(
    [
        0,
        1,
        2,
        3,
        5,
        12,
        255,
        2**16,
        2**20,
        2**20 + 1,
        2**31,
        2**32,
        2**40,
        2**62 - 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
    ]
)
ODD = NUMBERS | st.sampled_from(
    [-1, 1.5, None, True, "3", [], {}, "f32", "bf16", "../x.shard", "a.shard", ""]
)
MEMORY_BYTES = 64 << 20


def survives(folder: Path) -> None:
    """Use the folder in every way: only errors of ours, and no more rows or memory than the files account for."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    files = len(list(folder.iterdir()))
    tracemalloc.start()
    try:
        for use in (_read(MmapShardSource), _read(StoreShardSource), _shuffle, _verify, _reopen):
            with contextlib.suppress(WarpError):
                rows = use(folder)
                assert rows <= size + files * layout.MAX_EMPTY_ROWS
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def _read(kind: Any) -> Callable[[Path], int]:
    def read(folder: Path) -> int:
        with kind.open_dir(folder, batch_rows=1 << 18) as source:
            rows = sum(len(batch) for batch in source)
            assert rows == source.total_rows
            return rows

    return read


def _shuffle(folder: Path) -> int:
    with MmapShardSource.open_dir(folder) as source, ShuffledRows(source, batch_size=1 << 16) as rows:
        batch = rows.next_batch()
        return 0 if batch is None else len(batch)


def _verify(folder: Path) -> int:
    return len(verify_folder(folder))


def _reopen(folder: Path) -> int:
    writer = CorpusWriter.reopen(folder)
    rows = writer.total_rows
    writer.abandon()
    return rows


@QUIET
@given(n_rows=NUMBERS, width=NUMBERS, tag=st.integers(0, 4), tail=st.sampled_from([0, 1, 24, 96]))
def test_any_shard_header(
    tmp_path_factory: pytest.TempPathFactory, n_rows: int, width: int, tag: int, tail: int
) -> None:
    folder = tmp_path_factory.mktemp("h")
    head = layout.SHARD_HEADER.pack(layout.SHARD_MAGIC, n_rows, width, tag, 0)
    (folder / "a.shard").write_bytes(head + bytes(tail))
    survives(folder)


@pytest.fixture(name="corpus", scope="module")
def harvested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete corpus, and beside it one whose harvest was killed."""
    folder = tmp_path_factory.mktemp("good") / "corpus"
    with CorpusWriter(folder, 3, columns={"n": "i32"}, shard_bytes=48) as writer:
        writer.append(np.arange(30.0).reshape(10, 3), n=np.arange(10))
    return folder


def places(value: Any) -> list[tuple[Any, ...]]:
    """Where every number, text and list of a JSON value is."""
    if isinstance(value, dict):
        return [(key, *rest) for key, inner in value.items() for rest in ((), *places(inner))]
    if isinstance(value, list):
        return [(index, *rest) for index, inner in enumerate(value) for rest in ((), *places(inner))]
    return []


def changed(body: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        body = body[key]
    body[place[-1]] = value


@QUIET
@given(data=st.data(), changes=st.integers(1, 3))
def test_any_corpus_json(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: st.DataObject, changes: int
) -> None:
    folder = tmp_path_factory.mktemp("j") / "c"
    shutil.copytree(corpus, folder)
    body = json.loads((folder / layout.CORPUS_JSON).read_text())
    body.pop("crc32c")
    for _ in range(changes):
        changed(body, data.draw(st.sampled_from(places(body))), data.draw(ODD))
    body["crc32c"] = f"{crc32c(dump_json(body)):08x}"
    (folder / layout.CORPUS_JSON).write_bytes(dump_json(body))
    survives(folder)


@QUIET
@given(data=st.data(), changes=st.integers(1, 3))
def test_any_bf16_manifest(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, changes: int
) -> None:
    folder = tmp_path_factory.mktemp("b")
    (folder / "shard_00000.bf16").write_bytes(bytes(24))
    body: dict[str, Any] = {
        "format": bf16.FORMAT, "format_version": 1, "dtype": bf16.DTYPE, "byte_order": bf16.BYTE_ORDER,
        "d_model": 3, "total_tokens": 4, "shards": [{"file": "shard_00000.bf16", "rows": 4, "bytes": 24}],
    }  # fmt: skip
    for _ in range(changes):
        changed(body, data.draw(st.sampled_from(places(body))), data.draw(ODD))
    (folder / bf16.MANIFEST_NAME).write_bytes(json.dumps(body).encode())
    survives(folder)


@QUIET
@given(n_rows=NUMBERS, side_bytes=NUMBERS)
def test_any_journal_frame(tmp_path_factory: pytest.TempPathFactory, n_rows: int, side_bytes: int) -> None:
    folder = tmp_path_factory.mktemp("f") / "c"
    writer = CorpusWriter(folder, 3)
    writer.append(np.ones((4, 3)))
    writer.abandon()
    (journal,) = folder.glob("*.journal")
    good = journal.read_bytes()
    frame = layout.JournalFrame(layout.JOURNAL_MAGIC, n_rows, side_bytes, 0, 0, 0)
    signed = frame._replace(frame_crc32c=crc32c(layout.JOURNAL_FRAME.pack(*frame)))
    journal.write_bytes(good + layout.JOURNAL_FRAME.pack(*signed))
    survives(folder)


def test_rows_without_bytes_are_bounded(tmp_path: Path) -> None:
    """No file has bytes for them, so nothing but this limit stands between a header and days of reading."""
    path = tmp_path / "a.shard"
    path.write_bytes(layout.SHARD_HEADER.pack(layout.SHARD_MAGIC, 2**40, 0, 0, 0))
    with pytest.raises(LimitExceededError, match="without a column"):
        MmapShardSource.open_dir(tmp_path)
    assert [each.code for each in verify_folder(tmp_path)] == ["limit_exceeded"]
    path.write_bytes(encode_shard_bytes(np.empty((5, 0))))
    with MmapShardSource.open_dir(tmp_path) as source:
        assert [len(batch) for batch in source] == [5]
