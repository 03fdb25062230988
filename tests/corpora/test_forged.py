"""Corpora of which one statement is false, its checksum made right again, and files that change behind a reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
    StoreError,
    UnsupportedVersionError,
    WarpError,
    WidthMismatchError,
)
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus import verify_shard
from warpdata.formats.gamsae.shard import encode_shard_bytes, pack_header

ROWS, WIDTH = 40, 3


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "c"
    with wd.CorpusWriter(folder, WIDTH, columns={"t": "i64"}, shard_bytes=20 * WIDTH * 4) as writer:
        for start in range(0, ROWS, 20):
            writer.append(np.arange(start, start + 20)[:, None] * np.ones(WIDTH), t=np.arange(20))
    return folder


def said(folder: Path, **changes: Any) -> None:
    """Let corpus.json say something else, with the checksum that goes with it."""
    path = folder / layout.CORPUS_JSON
    body = {**json.loads(path.read_bytes()), **changes}
    body.pop("crc32c")
    path.write_bytes(dump_json({**body, "crc32c": f"{crc32c(dump_json(body)):08x}"}))


def listed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """Change what is said about the first shard."""

    def forge(folder: Path) -> None:
        shards = json.loads((folder / layout.CORPUS_JSON).read_bytes())["shards"]
        said(folder, shards=[change(shards[0]), *shards[1:]])

    return forge


def read(folder: Path) -> None:
    with wd.open_corpus(folder) as source:
        assert sum(len(batch) for batch in source) == ROWS


def reopen(folder: Path) -> None:
    wd.CorpusWriter.reopen(folder).close()


CORRUPT, LIMIT = CorruptLayoutError, LimitExceededError
FORGERIES: dict[str, tuple[Callable[[Path], None], type[WarpError], str]] = {
    "another format": (lambda c: said(c, format="x"), CORRUPT, "does not describe a corpus"),
    "a later version": (lambda c: said(c, version=9), UnsupportedVersionError, "of version 9"),
    "blocks of another size": (lambda c: said(c, block_bytes=5), CORRUPT, "blocks of 5 bytes are not known"),
    "runs without end": (lambda c: said(c, run_rows=2**63), LIMIT, "runs of 9223372036854775808 rows"),
    "runs of no rows": (lambda c: said(c, run_rows=0), CORRUPT, "0 is no count"),
    "rows too wide": (lambda c: said(c, width=2**40), LIMIT, "rows of 1099511627776 columns"),
    "a dtype that is none": (lambda c: said(c, dtype="i8"), CORRUPT, "cannot be stored as 'i8'"),
    "a sum that is none": (lambda c: said(c, total_rows=7), CORRUPT, "do not add up to total_rows"),
    "columns that are none": (lambda c: said(c, columns={"t": "i65"}), CORRUPT, "i65"),
    "a shard elsewhere": (listed(lambda s: {**s, "name": "../x.shard"}), CORRUPT, "no name of a shard in this"),
    "checksums of less": (listed(lambda s: {**s, "runs_crc32c": ""}), CORRUPT, "do not cover it"),
    "no shards": (lambda c: said(c, shards=None), CORRUPT, "not a corpus description"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_false_corpus_json_is_refused_by_reader_and_writer(corpus: Path, name: str) -> None:
    forge, kind, words = FORGERIES[name]
    forge(corpus)
    for use in (read, reopen):
        with pytest.raises(kind, match=words) as refused:
            use(corpus)
        assert "corpus.json" in str(refused.value)


@pytest.mark.parametrize("wrong", [{}, {"rows": "x"}, {"rows": 40, "mean": [1.0]}, {"rows": -1}])
def test_false_statistics_stop_a_writer_and_no_reader(corpus: Path, wrong: dict[str, Any]) -> None:
    said(corpus, statistics={"x": 1, **wrong})
    read(corpus)
    with pytest.raises(CorruptLayoutError, match="statistics"):
        reopen(corpus)


def test_a_frame_of_another_schema_ends_the_journal(tmp_path: Path) -> None:
    """Side columns of other sizes than the corpus has were never acknowledged by a writer of it."""
    folder = tmp_path / "c"
    writer = wd.CorpusWriter(folder, WIDTH, columns={"t": "i64"})
    writer.append(np.ones((4, WIDTH)), t=[1, 2, 3, 4])
    writer.abandon()
    said(folder, columns={"t": "i32"})
    with wd.CorpusWriter.reopen(folder) as again:
        assert again.total_rows == 0


def test_shards_that_do_not_belong_together(corpus: Path) -> None:
    other = corpus.parent / "other.shard"
    for rows, words in (
        (encode_shard_bytes(np.ones((2, WIDTH)), dtype="bf16"), "holds bf16, expected f32"),
        (encode_shard_bytes(np.ones((2, WIDTH + 1))), "width p=4, expected p=3"),
    ):
        other.write_bytes(rows)
        with pytest.raises((CorruptLayoutError, WidthMismatchError), match=words):
            wd.MmapShardSource.open([next(corpus.glob("*.shard")), other])


def test_verify_of_one_shard_looks_beside_it(corpus: Path) -> None:
    shard = next(corpus.glob("*.shard"))
    assert verify_shard(shard) == []
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert [found.code for found in verify_shard(shard)] == ["checksum"]
    shard.write_bytes(content[:20])
    assert [found.code for found in verify_shard(shard)] == ["truncated"]
    (corpus / layout.CORPUS_JSON).write_bytes(b"{")
    assert [Path(found.part).name for found in verify_shard(shard)] == [shard.name, "corpus.json"]
    stranger = corpus.parent / "alone.shard"
    stranger.write_bytes(encode_shard_bytes(np.ones((2, WIDTH))))
    assert verify_shard(stranger) == []


def test_a_shard_that_goes_while_it_is_read(corpus: Path) -> None:
    with wd.open_corpus(corpus, prefetch_bytes=1) as source:
        for shard in corpus.glob("*.shard"):
            shard.rename(corpus.parent / shard.name)
        with pytest.raises(BlobNotFoundError, match="no such file"):
            for _ in source:
                pass
    first = corpus.parent / min(each.name for each in corpus.parent.glob("*.shard"))
    with wd.MmapShardSource.open([first]) as source:
        first.unlink()
        first.symlink_to(first)  # a circle
        with pytest.raises(StoreError, match="cannot open"):
            source.next_batch()


def test_side_columns_that_were_damaged(corpus: Path) -> None:
    path = corpus / layout.ROWS_PARQUET
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[4:200] = bytes(196)
    path.write_bytes(broken)
    with pytest.raises(CorruptLayoutError, match="side columns cannot be read"):
        wd.SideTable(corpus).column("t")
    writer = wd.CorpusWriter.reopen(corpus)
    writer.append(np.ones((1, WIDTH)), t=[1])
    with pytest.raises(CorruptLayoutError, match="side columns cannot be read"):
        writer.close()
    path.write_bytes(whole[:-4])
    with pytest.raises(CorruptLayoutError, match="side columns cannot be read"):
        wd.SideTable(corpus)


def test_rows_that_are_no_matrix_of_numbers(tmp_path: Path) -> None:
    for rows in ([[1.0, 2.0], [3.0]], np.ones(3), np.array([["a", "b", "c"]])):
        with pytest.raises(SchemaMismatchError, match="rows"):
            encode_shard_bytes(rows)
    with pytest.raises(ValueError, match="f64"):
        pack_header(1, 1, "f64")


def test_options_that_exclude_each_other(corpus: Path) -> None:
    with pytest.raises(ValueError, match="always copies"):
        wd.StoreShardSource.open_dir(corpus, copy=False)


def test_a_fraction_comes_in_whole_batches(corpus: Path) -> None:
    source = wd.open_corpus(corpus, batch_rows=7)
    wanted = [row for row in range(ROWS) if wd.row_in_fraction([row], 0.6)[0]]
    for _ in range(2):
        batches = list(wd.FractionRows(source, 0.6))
        assert [len(batch) for batch in batches[:-1]] == [7] * (len(batches) - 1)
        assert np.concatenate([batch.row_ids for batch in batches]).tolist() == wanted
        assert np.concatenate([batch.rows for batch in batches])[:, 0].tolist() == wanted
