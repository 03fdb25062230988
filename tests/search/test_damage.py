"""Cut a store anywhere, flip any bit: the last committed state, the identical result, or a FormatError."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import shared_golden
from tests.sweeps import SOAK, thinned
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.rvf import container
from warpdata.formats.rvf.reader import earlier_snapshots, open_snapshot
from warpdata.formats.rvf.signing import SigningKey
from warpdata.search.store import VectorStore

DIM = 4
COMPAT = Path(__file__).parent.parent / "compat" / "rvf" / "0.1"
_ALIKE = 64


def vectors(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def state_of(content: bytes) -> Any:
    """Everything a reader can learn from a store."""
    store = VectorStore.open(BytesRangeReader(content))
    ids = store.ids
    cold = VectorStore.open(BytesRangeReader(content)).search(np.full(DIM, 0.1), 4)
    found = store.search(np.full(DIM, 0.1), 4, exact=True)
    return (
        len(store), store.dim, store.metric, ids.tolist(), store.get(ids).tolist(), store.metadata(ids),
        found[0].tolist(), np.round(found[1], 4).tolist(), cold[0].tolist(), np.round(cold[1], 4).tolist(),
    )  # fmt: skip


def committed(path: Path) -> list[tuple[int, Any]]:
    """A store after each commit: the size of its file and what is in it."""
    steps: list[tuple[int, Any]] = []

    def note() -> None:
        steps.append((path.stat().st_size, state_of(path.read_bytes())))

    with VectorStore.create(path, dim=DIM) as store:
        note()
        store.add(vectors(30), metadata={"n": range(30)})
        note()
        store.delete([3, 4])
        note()
        store.add(vectors(2, 5), ids=[4, 90])
        note()
        store.update([5], [{"n": 77}])
        note()
        store.add(vectors(700, 6))
        note()
        store.delete([8])
        note()
        store.add(vectors(1, 7), ids=[8])
        note()
    note()  # the log is folded: the same state, with a root behind it
    assert steps[-1][0] > steps[-2][0]
    return steps


def test_cut_at_every_byte_of_the_last_commits(tmp_path: Path) -> None:
    path = tmp_path / "c.rvf"
    steps = committed(path)
    content = path.read_bytes()
    assert steps[-1][0] == len(content)
    for (start, before), (end, _) in itertools.pairwise(steps):
        step = 1 if end - start < 3000 else 61
        for cut in range(start, end, step):
            store = VectorStore.open(BytesRangeReader(content[:cut]))
            assert len(store) == before[0], f"cut at {cut}"
        assert state_of(content[: end - 1]) == before
    for size, expected in steps:
        assert state_of(content[:size]) == expected


def two_commits(kind: str) -> Any:
    """Two small last commits of each sort: vectors, deletions, metadata."""

    def change(store: VectorStore) -> None:
        if kind == "vectors":
            store.add(vectors(2, 5), ids=[4, 90])
        elif kind == "deletions":
            store.delete([int(store.ids[1])])
        else:
            store.update([5], [{"n": len(store.metadata([5])[0]) + 70}])

    return change


@pytest.mark.parametrize("kind", ["vectors", "deletions", "metadata"])
def test_every_cut_of_two_commits_gives_the_whole_state_before(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.rvf"
    change = two_commits(kind)
    steps = []
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(vectors(12), metadata={"n": range(12)})
        for _ in range(3):
            steps.append((path.stat().st_size, state_of(path.read_bytes())))
            change(store)
        content = path.read_bytes()
    steps.append((len(content), None))
    assert steps[-1][0] - steps[1][0] < 1_500
    tried = set(telling_bytes(content))
    for (start, expected), (end, _) in itertools.pairwise(steps[1:]):
        telling = [start, *(byte for byte in range(start, end) if byte in tried), end - 1]
        for cut in thinned(telling, 150):
            assert state_of(content[:cut]) == expected, f"cut at {cut}"


def test_a_writer_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "t.rvf"
    steps = committed(path)
    content = path.read_bytes()
    for (start, before), (end, _) in itertools.pairwise(steps[1:]):
        for cut in (start, *range(start + 1, end, 1 + (end - start) // 12), end - 1):
            path.write_bytes(content[:cut])
            with VectorStore.open(path, mode="a", durable=False) as store:
                assert len(store) == before[0]
                store.add(vectors(1, 9), ids=[5000])
            with VectorStore.open(path) as again:
                assert again.ids.tolist() == [*before[3], 5000]
                assert again.metadata(before[3]) == before[5]
                assert again.verify() == []


def test_rubbish_behind_the_manifest_is_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "g.rvf"
    expected = committed(path)[-1][1]
    content = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, 70_000).astype(np.uint8).tobytes()
    for extra in (b"x", bytes(5000), noise):
        assert state_of(content + extra) == expected


def small_store(path: Path, kind: str | None) -> bytes:
    with VectorStore.create(path, dim=DIM) as store:
        store.add(vectors(12), metadata={"n": range(12)})
        if kind == "codes":
            store.quantize("binary")
            store.build_index("ivf")
        elif kind == "signed":
            store.sign(SigningKey.generate("ed25519"))
        elif kind:
            store.build_index(kind)
        store.delete([3])
        store.add(vectors(1, 8), metadata=[{"n": 5}])
    return path.read_bytes()


def flip_each(content: bytes, places: Iterable[tuple[int, int]], state: Callable[[bytes], Any]) -> int:
    """Flip bits one by one: the identical state or a FormatError; how many were refused."""
    expected = state(content)
    changed = bytearray(content)
    refused = 0
    for byte, bit in thinned(places, 600):
        changed[byte] ^= 1 << bit
        try:
            assert state(bytes(changed)) == expected, f"byte {byte} bit {bit}"
        except FormatError:
            refused += 1
        changed[byte] ^= 1 << bit
    return refused


@pytest.mark.parametrize("kind", [None, "hnsw", "codes", "signed"])
def test_flip_a_bit_of_every_byte(tmp_path: Path, kind: str | None) -> None:
    content = small_store(tmp_path / "f.rvf", kind)
    rng = np.random.default_rng(1)
    places = [(byte, int(rng.integers(8))) for byte in telling_bytes(content)]
    assert flip_each(content, places, state_of) > 100


def tiny_store(path: Path, kind: str) -> bytes:
    """The smallest store of its kind, so that every bit can be tried."""
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(vectors(3), metadata={"n": range(3)})
        if kind == "index":
            store.build_index("ivf", partitions=2)
        store.delete([1])
    return path.read_bytes()


def dull_bytes(content: bytes, longest: int = 512) -> set[int]:
    """Bytes that are much alike: deep inside long runs of zeros, or of manifests that newer ones stand for."""
    out: set[int] = set()
    for run in re.finditer(rb"\0{%d,}" % longest, content):
        out |= set(range(run.start() + 64, run.end() - 64))
    reader = BytesRangeReader(content)
    newest = open_snapshot(reader)
    for state in earlier_snapshots(reader, newest) if newest.is_checkpoint else ():
        out |= set(range(state.manifest_offset, state.end))
    return out


def telling_bytes(content: bytes) -> list[int]:
    """Every byte, but of those that are much alike only some."""
    alike = dull_bytes(content)
    return sorted({byte for byte in range(len(content)) if byte not in alike} | set(sorted(alike)[::_ALIKE]))


def test_flips_and_cuts_of_a_file_with_small_manifests() -> None:
    """The first release did not write a root with every commit; its files are read as strictly."""
    content = (COMPAT / "plain.rvf").read_bytes()
    rng = np.random.default_rng(1)
    places = [(byte, int(rng.integers(8))) for byte in telling_bytes(content)]
    assert flip_each(content, places, narrow_state) > 100
    cuts = [cut for cut in telling_bytes(content) if cut >= 4500]
    states = {repr(narrow_state(content[:cut])) for cut in thinned(cuts, 300)}
    assert 2 <= len(states) <= 5


def narrow_state(content: bytes) -> Any:
    store = VectorStore.open(BytesRangeReader(content))
    ids = store.ids
    return len(store), ids.tolist(), store.get(ids).tobytes(), store.metadata(ids)


@pytest.mark.parametrize("kind", ["rows", "index"])
def test_flip_every_bit(tmp_path: Path, kind: str) -> None:
    content = tiny_store(tmp_path / "b.rvf", kind)
    alike = dull_bytes(content)
    places = [(byte, bit) for byte in range(len(content)) if byte not in alike for bit in range(8)]
    places += [(byte, byte % 8) for byte in sorted(alike)[::_ALIKE]]
    assert flip_each(content, places, quick_state) > 100


def quick_state(content: bytes) -> Any:
    """What a reader learns without the parts that only take time."""
    store = VectorStore.open(BytesRangeReader(content))
    cold = store.search(np.full(DIM, 0.1), 4)
    ids = store.ids
    return len(store), ids.tolist(), cold[0].tolist(), store.get(ids).tobytes(), store.metadata(ids)


WIDE = 16


def wide_state(content: bytes) -> Any:
    """What is read from parts: a query, a filtered one, a vector, the ids; each from a store just opened."""
    query = np.full(WIDE, 0.1)
    fresh = [VectorStore.open(BytesRangeReader(content)) for _ in range(4)]
    return (
        fresh[0].search(query, 3)[0].tolist(), fresh[1].search(query, 3, where=[1, 5, 30])[0].tolist(),
        fresh[2].get([5]).tobytes(), fresh[3].ids.tolist(), fresh[3].stats()["bytes_read"] < len(content),
    )  # fmt: skip


def test_flips_where_parts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.rvf"
    x = np.random.default_rng(3).normal(size=(40, WIDE)).astype(np.float32)
    with VectorStore.create(path, dim=WIDE) as store:
        store.add(x)
        store.build_index("ivf", partitions=10)
        assert store._content.id_directory is not None
        store.delete([2])
    content = path.read_bytes()
    rng = np.random.default_rng(2)
    places = [(byte, int(rng.integers(8))) for byte in telling_bytes(content)]
    assert flip_each(content, places, wide_state) > 100


def test_flips_of_a_file_of_a_shipped_program() -> None:
    content = shared_golden("rvf", "runtime", "node_tiny_d4_l2.rvf").read_bytes()
    flip_each(content, itertools.product(range(len(content)), range(8)), state_of)


def test_torn_and_foreign_manifests_of_a_shipped_program() -> None:
    content = shared_golden("rvf", "runtime", "node_d8_deleted.rvf").read_bytes()
    assert len(VectorStore.open(BytesRangeReader(content[:-1]))) == 50
    assert len(VectorStore.open(BytesRangeReader(content[:2700]))) == 50
    assert len(VectorStore.open(BytesRangeReader(content + bytes(70_000)))) == 47
    changed = bytearray(content)
    changed[2860 + 64 + 4] ^= 1
    with pytest.raises(FormatError):
        VectorStore.open(BytesRangeReader(bytes(changed)))
    with pytest.raises(CorruptLayoutError, match="no committed manifest"):
        VectorStore.open(BytesRangeReader(content[:100]))


@pytest.mark.parametrize("count", [200, 2000])
def test_sectors_that_were_never_written_are_a_torn_commit(tmp_path: Path, count: int) -> None:
    """Of a commit that fits the log, and of one with a manifest."""
    path = tmp_path / "z.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(vectors(3), metadata={"n": range(3)})
        before, start = state_of(path.read_bytes()), path.stat().st_size
        store.add(vectors(count))
        assert store._content.snapshot.log_commits == (2 if count == 200 else 0)
        content = path.read_bytes()
    for at in range(-(-start // 512) * 512, len(content), 512):
        assert state_of(content[:at] + bytes(len(content) - at)) == before
    if count == 200:
        for at in range(-(-start // 4096) * 4096, len(content) - 4096, 4096):
            assert state_of(content[:at] + bytes(4096) + content[at + 4096 :]) == before
        changed = bytearray(content)
        changed[start + 300] ^= 4
        with pytest.raises(FormatError, match="does not match its hash"):
            state_of(bytes(changed))


@pytest.mark.parametrize("kind", ["vectors", "deletions", "metadata"])
def test_flip_every_bit_of_a_log(tmp_path: Path, kind: str) -> None:
    """The log of a writer that was killed has no root behind it; its commits are read as strictly."""
    path, change = tmp_path / "l.rvf", two_commits(kind)
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(vectors(12), metadata={"n": range(12)})
        start = path.stat().st_size
        change(store)
        change(store)
        content = path.read_bytes()
    places = [(byte, bit) for byte in range(start, len(content)) for bit in range(8)]
    assert flip_each(content, places, narrow_state) > 100


def test_a_log_follows_only_the_manifest_it_was_written_behind(tmp_path: Path) -> None:
    path = tmp_path / "l.rvf"
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        ends = [path.stat().st_size]
        for number in range(3):
            store.add(vectors(1, number))
            ends.append(path.stat().st_size)
        content = path.read_bytes()
    commits = [content[a:b] for a, b in itertools.pairwise(ends)]
    for order in ([1], [0, 2], [0, 0], [1, 0, 2], [0, 1, 1]):
        with pytest.raises(FormatError, match=r"does not (follow|match)"):
            state_of(content[: ends[0]] + b"".join(commits[number] for number in order))
    assert len(VectorStore.open(BytesRangeReader(content[: ends[1]] + bytes(64)))) == 1


def test_data_in_a_log_is_not_taken_for_the_end_of_the_file(tmp_path: Path) -> None:
    """Metadata that are a manifest for the very place where they come to be."""
    older, size = b"", 6000

    def place(name: str, blob: bytes) -> bytes:
        nonlocal older
        with VectorStore.create(tmp_path / name, dim=DIM, durable=False) as store:
            older = (tmp_path / name).read_bytes()
            store.add(vectors(2), metadata=[{"blob": blob}, {}])
            return (tmp_path / name).read_bytes()

    at = place("first.rvf", b"x" * size).index(b"x" * size)
    root = container.unpack_root(older[-4096:])
    header = container.unpack_header(older[:64])
    records = older[64 : 64 + root.l1_manifest_length]
    fake = replace(root, l1_manifest_offset=at + 64, identity=root.identity)
    payload = records.ljust(len(older) - 64 - 4096, b"\0") + container.pack_root(fake)
    manifest = container.pack_header(container.build(header.seg_type, 99, payload)[0]) + payload
    assert len(VectorStore.open(BytesRangeReader(bytes(at) + manifest))) == 0
    again = VectorStore.open(BytesRangeReader(place("second.rvf", manifest.ljust(size, b"x"))))
    assert (len(again), len(again.metadata([0])[0]["blob"])) == (2, size)


def test_a_file_inside_metadata_is_not_taken_for_the_file(tmp_path: Path) -> None:
    inner = small_store(tmp_path / "inner.rvf", None)
    with VectorStore.create(tmp_path / "outer.rvf", dim=DIM) as store:
        store.add(vectors(3))
        store.add(vectors(1), metadata=[{"blob": inner}])
    content = (tmp_path / "outer.rvf").read_bytes()
    for cut in range(0, len(content) - 4500, 97):
        opened = VectorStore.open(BytesRangeReader(content[: len(content) - cut]))
        assert opened.dim == DIM
        assert len(opened) in (0, 3, 4)


KILLED = """
import sys, numpy as np
from warpdata.search.store import VectorStore
with VectorStore.open(sys.argv[1], mode="a") as store:
    number = len(store)
    while True:
        batch = np.full((3, 4), number, np.float32)
        ids = store.add(batch, metadata=[{"n": number}] * 3)
        number = int(ids[-1]) + 1
        print(number, flush=True)
        if number % 60 == 0:
            store.compact()
"""


@pytest.mark.parametrize("attempt", range(4 if SOAK else 2))
def test_kill_9_keeps_what_was_acknowledged(tmp_path: Path, attempt: int) -> None:
    path = tmp_path / "k.rvf"
    VectorStore.create(path, dim=DIM).close()
    acknowledged = 0
    for round_ in range(2):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(10):  # while it writes, a reader sees whole commits only
            with VectorStore.open(path) as reader:
                assert reader.ids.tolist() == list(range(len(reader)))
                assert len(reader) % 3 == 0
                numbers = [m["n"] for m in reader.metadata(range(len(reader)))]
                assert numbers == np.repeat(np.arange(0, len(reader), 3), 3).tolist()
        time.sleep(0.05 + 0.13 * attempt + 0.05 * round_)
        os.kill(child.pid, signal.SIGKILL)
        lines = child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        acknowledged = max([acknowledged, *(int(line) for line in lines if line)])
        with VectorStore.open(path) as store:
            count = len(store)
            assert acknowledged <= count <= acknowledged + 3
            assert count % 3 == 0
            assert store.ids.tolist() == list(range(count))
            assert store.verify() == []
            expected = np.repeat(np.arange(0, count, 3), 3)
            assert np.array_equal(store.get(range(count))[:, 0], expected)
            assert [m["n"] for m in store.metadata(range(count))] == expected.tolist()


def test_hostile_sizes_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    content = bytearray(small_store(tmp_path / "h.rvf", None))
    opened = VectorStore.open(BytesRangeReader(bytes(content)))
    at = opened._content.snapshot.segments[0].file_offset + 0x10
    content[at : at + 8] = (1 << 62).to_bytes(8, "little")
    with pytest.raises(FormatError):
        state_of(bytes(content))
