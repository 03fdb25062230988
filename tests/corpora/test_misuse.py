"""Wrong names, values and files: refused in our words, with the name that was meant."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.errors import PermissionError_, SchemaMismatchError, StoreError, WarpError


@pytest.fixture(name="corpus")
def harvested(tmp_path: Path) -> Path:
    with wd.CorpusWriter(tmp_path / "c", 3, columns={"token_id": "i64"}) as writer:
        writer.append(np.ones((4, 3)), token_id=np.arange(4))
    return tmp_path / "c"


MISSPELT: list[tuple[str, Callable[[Path], Any]]] = [
    ("shard_bytes", lambda c: wd.CorpusWriter(c.parent / "d", 3, shard_byte=5)),
    ("bf16", lambda c: wd.CorpusWriter(c.parent / "d", 3, dtype="bf61")),
    ("i64", lambda c: wd.CorpusWriter(c.parent / "d", 3, columns={"a": "i46"})),
    ("prefetch_bytes", lambda c: wd.MmapShardSource.open_dir(c, prefetch_byte=5)),
    ("float32", lambda c: wd.open_corpus(c, dtype="flaot32")),
    ("batch_rows", lambda c: wd.open_corpus(sorted(c.glob("*.shard")), batch_row=5)),
    ("window_blocks", lambda c: wd.ShuffledRows(wd.open_corpus(c), window_block=5)),
    ("short", lambda c: wd.ShuffledRows(wd.open_corpus(c), tail="shrt")),
    ("token_id", lambda c: wd.SideTable(c).column("tokenid")),
    ("token_id", lambda c: wd.CorpusWriter.reopen(c).append(np.ones((1, 3)), token_di=[1])),
]


@pytest.mark.parametrize(("meant", "use"), MISSPELT)
def test_the_name_that_was_meant_is_suggested(corpus: Path, meant: str, use: Callable[[Path], Any]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError), match=f"Did you mean '{meant}'"):
        use(corpus)


def test_torch_options_are_checked_too(corpus: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match="Did you mean 'seed'"):
        wd.open_corpus(corpus).to_torch(16, sed=3)


def test_a_wrong_kind_is_named(corpus: Path) -> None:
    source = wd.open_corpus(corpus)
    reader = FileRangeReader(next(corpus.glob("*.shard")))
    doors: list[Callable[[Any], Any]] = [
        lambda v: wd.MmapShardSource(source.shards, v),
        lambda v: wd.StoreShardSource(v, [reader]),
        lambda v: wd.StoreShardSource(source.shards, [v]),
        lambda v: wd.StoreShardSource(source.shards, [reader], v),
        lambda v: wd.StoreShardSource.open([v]),
        wd.StoreShardSource.open_folder,
        lambda v: wd.FractionRows(v, 0.5),
        lambda v: wd.RowWarmCache(corpus.parent / "w", model=v, total_rows=3),
        lambda v: wd.RowWarmCache(corpus.parent / "w", model="m", total_rows=3).put(v),
        *(lambda v, n=name: wd.ShuffledRows(source, **{n: v}) for name in ("rank", "world", "batch_size", "seed")),
    ]  # fmt: skip
    for door in doors:
        for value in (1.5, b"x", {}):
            with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
                door(value)
    with pytest.raises(ValueError, match="0 readers of 1 shards"):
        wd.StoreShardSource(source.shards, [])


def test_whole_numbers_of_numpy_are_whole_numbers(corpus: Path) -> None:
    rows = wd.ShuffledRows(
        wd.open_corpus(corpus), batch_size=np.uint64(2**63), rank=np.uint8(1), world=np.int16(2)
    )
    batch = rows.next_batch()
    assert batch is not None
    assert len(batch) == 2


@pytest.mark.parametrize("shard_bytes", [0, -1])
def test_a_shard_has_a_byte(tmp_path: Path, shard_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        wd.CorpusWriter(tmp_path / "c", 3, shard_bytes=shard_bytes)


def test_ids_are_integers(corpus: Path) -> None:
    with pytest.raises(TypeError, match="integers"):
        wd.SideTable(corpus).take([1.7])
    assert len(wd.SideTable(corpus).take([])["token_id"]) == 0
    with pytest.raises(ValueError, match="0 rows or more"):
        wd.RowWarmCache(corpus.parent / "w", model="m", total_rows=-1)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_files_that_may_not_be_read(corpus: Path) -> None:
    shard = next(corpus.glob("*.shard"))
    shard.chmod(0)
    with pytest.raises(PermissionError_):
        wd.open_corpus(corpus)
    corpus.chmod(0o300)
    with pytest.raises(WarpError):
        wd.open_corpus(corpus)


def test_a_folder_where_a_shard_should_be(corpus: Path) -> None:
    (corpus / "corpus.json").unlink()
    (corpus / "x.shard").mkdir()
    with pytest.raises(WarpError):
        wd.open_corpus(corpus)


def test_a_shard_that_became_a_folder(corpus: Path) -> None:
    (corpus / "corpus.json").unlink()
    shard = next(corpus.glob("*.shard"))
    with wd.MmapShardSource.open([shard]) as source:
        shard.unlink()
        shard.mkdir()
        with pytest.raises(WarpError):
            source.next_batch()


def test_a_cache_whose_log_is_a_folder(tmp_path: Path) -> None:
    with wd.RowWarmCache(tmp_path, model="m", total_rows=3) as cache:
        (log,) = cache.folder.glob("log-*")
        folder = cache.folder
    log.unlink()
    (folder / "checkpoint").unlink(missing_ok=True)
    for left in folder.iterdir():
        left.unlink()
    log.mkdir()
    with pytest.raises(StoreError):
        wd.RowWarmCache(tmp_path, model="m", total_rows=3)


class TestTensors:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("stored", ["f32", "bf16"])
    def test_tensors_of_any_kind_are_rows(self, tmp_path: Path, stored: str) -> None:
        plain = self.torch.arange(12.0).reshape(4, 3)
        with wd.CorpusWriter(tmp_path / "c", 3, dtype=stored) as writer:
            writer.append(plain)
            writer.append(plain.clone().requires_grad_())
            writer.append(plain.to(self.torch.bfloat16))
        with wd.open_corpus(tmp_path / "c") as source:
            found = np.concatenate([batch.rows for batch in source])
        np.testing.assert_array_equal(found, np.concatenate([plain.numpy()] * 3))

    def test_a_hook_refuses_what_is_not_of_its_width(self, tmp_path: Path) -> None:
        with wd.CorpusWriter(tmp_path / "c", 3) as writer:
            hook = writer.hook()
            for wrong in (self.torch.ones(2, 6), self.torch.ones(()), {"a": 1}):
                with pytest.raises(SchemaMismatchError, match="width 3"):
                    hook(None, None, wrong)
            hook(None, None, (self.torch.ones(2, 5, 3, requires_grad=True), None))
            assert writer.total_rows == 10
