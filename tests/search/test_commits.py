"""Every commit ends with the root, lists all that counts, stays small, and can be gone back to."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import FormatError
from warpdata.formats.rvf.layout import LOG_COMMITS
from warpdata.search.file.writing import MERGED_AT_ONCE, count_to_merge
from warpdata.search.store import VectorStore

DIM = 4


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def strictly_read(content: bytes) -> tuple[int, dict[int, int]]:
    """What the document's reader finds: the root in the last 4096 bytes, its records, the segments they list."""
    root = content[-4096:]
    assert root[:4] == b"0MVR"
    assert int.from_bytes(root[4092:], "little") == crc32c(root[:4092])
    offset, length, total = struct.unpack_from("<QQQ", root, 8)
    types: dict[int, int] = {}
    position = offset
    while position < offset + length:
        tag, size, _ = struct.unpack_from("<HIH", content, position)
        value = content[position + 8 : position + 8 + size]
        position += 8 + -(-size // 8) * 8
        for entry in struct.iter_unpack("<QBBHIQQQHHI16s", value) if tag == 1 else ():
            assert content[entry[5] : entry[5] + 4] == b"SFVR"
            assert content[entry[5] + 5] == entry[1]
            types[entry[1]] = types.get(entry[1], 0) + _vectors(content, entry)
    return total, types


def _vectors(content: bytes, entry: tuple[Any, ...]) -> int:
    if entry[1] != 1:
        return 1
    start = entry[5] + 64
    (blocks,) = struct.unpack_from("<I", content, start)
    return sum(struct.unpack_from("<II", content, start + 4 + 12 * n)[1] for n in range(blocks))


def test_a_strict_reader_finds_everything_once_the_writer_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "s.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        assert strictly_read(path.read_bytes()) == (0, {})
        store.add(rows(3), metadata={"n": range(3)})
    assert strictly_read(path.read_bytes()) == (3, {1: 3, 7: 1})
    for number in range(40):
        with VectorStore.open(path, mode="a") as store:
            store.add(rows(1))
        total, found = strictly_read(path.read_bytes())
        assert (total, found[1]) == (number + 4, number + 4)
    with VectorStore.open(path, mode="a") as store:
        store.delete([1])
    total, found = strictly_read(path.read_bytes())
    assert (total, found[4]) == (42, 1)
    with VectorStore.open(path, mode="a") as store:
        store.update([2], [{"n": 7}])
    assert strictly_read(path.read_bytes())[0] == 42


def test_a_strict_reader_finds_a_root_behind_many_commits(tmp_path: Path) -> None:
    """While a writer is open, other programs see the state of the last root; our readers see every commit."""
    path, roots = tmp_path / "s.rvf", 0
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        for number in range(3 * LOG_COMMITS):
            store.add(rows(1))
            content = path.read_bytes()
            if content[-4096:-4092] == b"0MVR":
                roots += 1
                assert strictly_read(content)[0] == number + 1
            if number % 50 == 0:
                assert len(VectorStore.open(path)) == number + 1
        assert roots == 2
        store.copy_to(tmp_path / "copy.rvf")
        assert strictly_read((tmp_path / "copy.rvf").read_bytes())[0] == 3 * LOG_COMMITS


def test_a_file_of_the_first_release_gets_its_root_with_the_next_commit(tmp_path: Path) -> None:
    old = Path(__file__).parent.parent / "compat" / "rvf" / "0.1" / "plain.rvf"
    path = tmp_path / "old.rvf"
    path.write_bytes(old.read_bytes())
    assert path.read_bytes()[-4096:][:4] != b"0MVR"
    with VectorStore.open(path, mode="a") as store:
        before, kept = store.ids.tolist(), store.metadata(store.ids)
        assert len(store.epochs()) > 3
        key = int(store.add(np.ones((1, 6)))[0])
    assert strictly_read(path.read_bytes())[0] == len(before) + 1
    with VectorStore.open(path) as again:
        assert again.ids.tolist() == [*before, key]
        assert again.metadata(before) == kept


def test_the_state_of_each_epoch_is_still_there(tmp_path: Path) -> None:
    path = tmp_path / "e.rvf"
    states: dict[int, Any] = {}

    def note(store: VectorStore) -> None:
        ids = store.ids
        states[store.stats()["epoch"]] = (ids.tolist(), store.get(ids).tobytes(), store.metadata(ids))

    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(rows(5), metadata={"n": range(5)})
        note(store)
        for number in range(60):
            store.add(rows(2, number), ids=[number % 7, 100 + number], metadata=[{"n": number}, {}])
            note(store)
            if number % 5 == 0:
                store.delete([number % 7])
                note(store)
            if number % 9 == 0:
                store.update([100 + number], [{"n": -number}])
                note(store)
        assert store.epochs() == [1, *states]
        for epoch, expected in states.items():
            with store.at(epoch) as then:
                ids = then.ids
                assert (ids.tolist(), then.get(ids).tobytes(), then.metadata(ids)) == expected
                assert then.stats()["epoch"] == epoch
        with pytest.raises(ValueError, match="no state of epoch 999"):
            store.at(999)
        store.compact()
        with pytest.raises(ValueError, match="rewriting a file"):
            store.at(2)
        assert store.epochs() == [store.stats()["epoch"]]
    reader = VectorStore.open(BytesRangeReader(path.read_bytes()))
    assert reader.at(reader.stats()["epoch"]).ids.tolist() == reader.ids.tolist()


def test_states_of_a_reader_whose_file_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.rvf"
    x = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    with VectorStore.create(path, dim=4) as writer:
        writer.add(x[:20])
        writer.add(x[20:])
        with VectorStore.open(path) as reader:
            writer.delete(range(10))
            writer.build_index("hnsw")
            assert reader.epochs() == [1, 2, 3]
            with reader.snapshot() as now, reader.at(2) as before:
                assert now.get([30]).tolist() == x[30:31].tolist()
                assert (len(now), len(before), before.search(x[5], 1)[0].tolist()) == (40, 20, [5])
            assert reader.search(x[3], 1)[0].tolist() == [3]
            assert reader.refresh()
            assert len(reader) == 30


def test_a_damaged_state_before_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "d.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(rows(1))
        place = store._content.snapshot.manifest_offset
        store.add(rows(1))
    content = bytearray(path.read_bytes())
    content[place + 70] ^= 1
    store = VectorStore.open(BytesRangeReader(bytes(content)))
    assert len(store) == 2
    with pytest.raises(FormatError):
        store.epochs()


def test_many_commits_list_few_segments(tmp_path: Path) -> None:
    """Adds, replacements, deletions and updates, one by one, against a dict."""
    rng = np.random.default_rng(4)
    truth: dict[int, bytes] = {}
    with VectorStore.create(tmp_path / "m.rvf", dim=DIM, durable=False) as store:
        for number in range(700):
            key = int(rng.integers(0, 300)) * (1 if number % 3 else 2**50)
            if number % 4 == 3 and truth:
                gone = sorted(truth)[int(rng.integers(len(truth)))]
                store.delete([gone])
                del truth[gone]
            else:
                row = rows(1, number)
                store.add(row, ids=[key], metadata=[{"n": number}])
                truth[key] = row.tobytes()
            snapshot = store._content.snapshot
            assert len(snapshot.segments) - len(snapshot.logged) < 120
        assert (tmp_path / "m.rvf").stat().st_size < 700 * 1_600
    with VectorStore.open(tmp_path / "m.rvf") as again:
        ids = again.ids
        assert ids.tolist() == sorted(truth)
        assert [row.tobytes() for row in again.get(ids)] == [truth[key] for key in ids.tolist()]
        assert again.verify() == []


def test_many_deletions_are_not_repeated_by_every_commit(tmp_path: Path) -> None:
    path = tmp_path / "x.rvf"
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        ids = np.arange(20_000) * 70_001
        store.add(rows(20_000), ids=ids)
        for start in range(0, 18_000, 900):
            store.delete(ids[start : start + 900])
        before = path.stat().st_size
        for _ in range(30):
            store.add(rows(1))
        assert path.stat().st_size - before < 30 * 10_000
    with VectorStore.open(path, mode="a") as again:
        assert len(again) == 2030
        again.add(rows(1), ids=[int(ids[5])])
        assert int(ids[5]) in again.ids
    with VectorStore.open(path) as again:
        assert int(ids[5]) in again.ids
        assert int(ids[6]) not in again.ids


def test_what_is_merged() -> None:
    small, large, count = 500, 1 << 26, MERGED_AT_ONCE
    assert count_to_merge([]) == 0
    assert count_to_merge([small] * (count - 1)) == 0
    assert count_to_merge([large, *[small] * count]) == count
    assert count_to_merge([*[small] * count, large]) == 0


def test_rows_that_are_merged_at_once_are_written_once(tmp_path: Path) -> None:
    """The newest row of an id counts, also where it comes with the commit that merges it with the older ones."""
    truth = {}
    with VectorStore.create(tmp_path / "m.rvf", dim=DIM, durable=False) as store:
        for step, row in enumerate(rows(60)):
            key = step % 7
            before = len(store.segments())
            store.add(row, ids=[key])
            if len(store.segments()) < before:
                assert sum(each["type"] == "VEC" for each in store.segments()) == 1
            truth[key] = row.tobytes()
            with VectorStore.open(tmp_path / "m.rvf") as again:
                assert {int(key): again.get([key])[0].tobytes() for key in again.ids} == truth
        # Many small ones before a large one become one, and it stays as it is.
        store.delete([0])
        del truth[0]
        store.add(rows(20_000), ids=np.arange(100, 20_100))
        assert store.get([3])[0].tobytes() == truth[3]
    with VectorStore.open(tmp_path / "m.rvf") as again:
        assert {int(key): again.get([key])[0].tobytes() for key in again.ids if key < 100} == truth
        assert again.verify() == []


@pytest.mark.parametrize("dim", [128, 384])
def test_single_upserts_grow_a_file_by_at_most_three_times_what_they_write(tmp_path: Path, dim: int) -> None:
    """All of it counts: the log, its rows once more as segments, the roots, and the end of the writer."""
    count = 1000
    rng = np.random.default_rng(0)
    path = tmp_path / "u.rvf"
    about = [{"label": f"name {n % 40}", "n": n} for n in range(4000)]
    with VectorStore.create(path, dim=dim, durable=False) as store:
        store.add(rng.normal(size=(4000, dim)), metadata=about)
        before = path.stat().st_size
        for n in range(count):
            store.add(
                rng.normal(size=(1, dim)), ids=[n * 13 % 4000], metadata=[{"label": f"new {n}", "n": -n}]
            )
    written = count * (4 * dim + 16 + len("new 100"))
    assert path.stat().st_size - before <= 3 * written
    with VectorStore.open(path) as again:
        assert again.metadata([13])[0] == {"label": "new 1", "n": -1}
        assert again.metadata([5, 1]) == [about[5], about[1]]
        assert again.verify() == []


KILLED = """
import os, sys, numpy as np
from warpdata.search.file import rewrite
from warpdata.search.store import VectorStore
rewrite._Rewriter._write_index = lambda *_: os._exit(9)
with VectorStore.open(sys.argv[1], mode="a") as store:
    store.compact()
"""


def test_the_next_writer_cleans_up_after_a_killed_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "k.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(rows(50))
    (tmp_path / ".other.rvf.tmp-0123456789ab").write_bytes(b"somebody else's")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == 9
    left = [each.name for each in tmp_path.iterdir() if each.name.startswith(".k.rvf.tmp-")]
    assert len(left) == 1
    with VectorStore.open(path) as reader:
        assert len(reader) == 50
    assert (tmp_path / left[0]).exists()
    VectorStore.open(path, mode="a").close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [".other.rvf.tmp-0123456789ab", "k.rvf"]
