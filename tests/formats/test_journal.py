from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.formats.spec_tables import assert_spec_matches
from tests.sweeps import enough_examples, thinned
from tests.waiting import LIMIT_S
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.bytekit.process import system
from warpdata.errors import FormatError, JournalInUseError, LimitExceededError, WriterClosedError
from warpdata.formats.journal import layout
from warpdata.formats.journal import writer as journal_writer
from warpdata.formats.journal.reader import JournalReader, is_live
from warpdata.formats.journal.writer import JournalWriter, SlotFile, StepRecord, move_to_disk, remove_file

SPEC = ROOT / "src" / "warpdata" / "formats" / "journal" / "SPEC.md"


def contents(reader: JournalReader) -> list[tuple[int, int, int, bytes]]:
    found = reader.scan().records
    return [
        (int(s), int(f), int(t), bytes(reader.payload(int(o), int(n))))
        for o, n, s, f, t in zip(
            found.offset, found.payload_bytes, found.stream, found.first_step, found.ts_ns, strict=True
        )
    ]


def _unsealed(data: bytes) -> layout.RecordingHeader:
    return layout.RecordingHeader(*layout.HEADER.unpack(data[: layout.HEADER.size]))


def small_journal(folder: Path, count: int = 5) -> bytes:
    path = folder / "a.partial"
    writer = JournalWriter(path, {"kind": "test"}, max_record_bytes=64)
    for step in range(count):
        writer.append(1, step, 1, step * 10, bytes([step + 1]) * (step * 3 + 1))
    writer.close()
    data = path.read_bytes()
    path.unlink()
    return data


def test_spec_matches_layout() -> None:
    assert_spec_matches(SPEC, "Header", layout.RecordingHeader, layout.HEADER)
    assert_spec_matches(SPEC, "Record header", layout.RecordHeader, layout.RECORD)


@settings(max_examples=enough_examples(25))
@given(records=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=200)), max_size=40))
def test_what_is_appended_is_found(tmp_path_factory: pytest.TempPathFactory, records: list) -> None:
    path = tmp_path_factory.mktemp("j") / "a.partial"
    writer = JournalWriter(path, {"kind": "test", "n": 1}, max_record_bytes=200)
    for step, (stream, payload) in enumerate(records):
        writer.append(stream, step, 1, -step, payload[:3], payload[3:])
    expected = [(stream, step, -step, payload) for step, (stream, payload) in enumerate(records)]
    open_reader = JournalReader.open(path)
    assert contents(open_reader) == expected, "a reader sees the records of a live writer"
    writer.close()
    reader = JournalReader.open(path)
    assert contents(reader) == expected
    assert reader.descriptor == {"kind": "test", "n": 1}
    assert reader.scan().damage == ()


def test_records_are_contiguous_over_many_windows(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "a", {}, max_record_bytes=30_000)
    record = StepRecord(0, 30_000)
    row = np.frombuffer(record.payload, np.uint8)
    advances = []
    writer.on_advance = lambda: advances.append(1)
    for step in range(1200):
        row[:] = step % 251
        writer.append_step(record, step, step)
        if step % 3 == 0:
            writer.prepare()
    writer.close()
    assert len(advances) >= 3
    scan = JournalReader.open(tmp_path / "a").scan()
    assert np.array_equal(scan.records.first_step, np.arange(1200))
    assert (np.diff(scan.records.offset) == record.size).all()
    reader = JournalReader.open(tmp_path / "a")
    for step in (0, 139, 1199):
        payload = reader.payload(int(scan.records.offset[step]), 30_000)
        assert bytes(payload) == bytes([step % 251]) * 30_000


def test_one_writer_per_path_and_liveness(tmp_path: Path) -> None:
    path = tmp_path / "a.partial"
    writer = JournalWriter(path, {}, max_record_bytes=10)
    assert is_live(path)
    with pytest.raises(JournalInUseError, match="already there"):
        JournalWriter(path, {}, max_record_bytes=10)
    writer.close()
    assert not is_live(path)
    with pytest.raises(WriterClosedError):
        writer.append(0, 0, 1, 0, b"x")


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "a", {}, max_record_bytes=10)
    writer.append(0, 0, 1, 0, b"x")
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_limits(tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError):
        JournalWriter(tmp_path / "a", {}, max_record_bytes=layout.MAX_RECORD_BYTES + 1)
    writer = JournalWriter(tmp_path / "a", {}, max_record_bytes=10)
    with pytest.raises(LimitExceededError):
        writer.append(0, 0, 1, 0, bytes(11))
    writer.append(0, 0, 1, 0, b"usable")
    writer.close()
    assert len(JournalReader.open(tmp_path / "a").scan().records) == 1


def test_every_flip_loses_at_most_its_record(tmp_path: Path) -> None:
    data = small_journal(tmp_path)
    good = contents(JournalReader(BytesRangeReader(data)))
    start = JournalReader(BytesRangeReader(data)).header.records_offset
    head = list(range(layout.HEADER_BYTES + 20)) + list(range(start, len(data)))
    for byte in head:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[byte] ^= 1 << bit
            try:
                found = contents(JournalReader(BytesRangeReader(damaged)))
            except FormatError:
                assert byte < start
                continue
            assert [row for row in good if row in found] == found
            assert len(found) >= len(good) - 1


def test_every_truncation_keeps_the_whole_records(tmp_path: Path) -> None:
    data = small_journal(tmp_path)
    good = contents(JournalReader(BytesRangeReader(data)))
    for size in range(len(data)):
        try:
            found = contents(JournalReader(BytesRangeReader(data[:size])))
        except FormatError:
            assert size < 4096
            continue
        assert found == good[: len(found)]


def test_damage_is_reported_with_its_place(tmp_path: Path) -> None:
    data = bytearray(small_journal(tmp_path))
    scan = JournalReader(BytesRangeReader(data)).scan()
    second = int(scan.records.offset[1])
    data[second + 33] ^= 1
    damaged = JournalReader(BytesRangeReader(data)).scan()
    assert len(damaged.records) == 4
    assert [(d.start, d.end) for d in damaged.damage] == [(second, second + 36)]


def six_records(folder: Path, payload: bytes | None = None) -> bytes:
    path = folder / "a.partial"
    writer = JournalWriter(path, {"kind": "test"}, max_record_bytes=16)
    for step in range(6):
        writer.append(1, step, 1, step * 10, payload or bytes([step + 1]) * 16)
    writer.close()
    data = path.read_bytes()
    path.unlink()
    return data + bytes(64)  # as much room as a recorder leaves that was killed


def changed(data: bytes, how: str, low: int, high: int) -> bytes:
    between = {"zeroed": bytes(high - low), "removed": b"", "repeated": data[low:high] * 2}
    return data[:low] + between[how] + data[high:]


@pytest.mark.parametrize("payload", [None, bytes(16)])
@pytest.mark.parametrize("how", ["zeroed", "removed", "repeated"])
def test_whatever_is_lost_is_said(tmp_path: Path, how: str, payload: bytes | None) -> None:
    """Any stretch of the records gone, black pictures too: what comes back was recorded, and the rest is told."""
    data = six_records(tmp_path, payload)
    whole = JournalReader(BytesRangeReader(data))
    good, start, last = contents(whole), whole.header.records_offset, int(whole.scan().records.offset[-1])
    assert not whole.scan().damage
    used = len(data.rstrip(b"\0"))
    places = [(a, b) for a in range(start, used) for b in range(a + 1, used + 1)]
    for low, high in thinned(places, 800):
        journal = JournalReader(BytesRangeReader(changed(data, how, low, high)))
        found, scan = contents(journal), journal.scan()
        assert set(found) <= set(good)
        # Without its checksum, and that alone, a record is one that was never finished.
        if found != good and (how, low, high) != ("zeroed", last + 4, last + 8):
            assert scan.lost or scan.is_cut, (low, high)


@pytest.mark.parametrize("size", [8, 200_000])
@pytest.mark.parametrize("is_step", [False, True])
def test_whenever_its_writer_dies_a_record_is_whole_or_was_never_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_step: bool
) -> None:
    """What is in the file after each line that writes it: in a window and past it, nothing is said to be lost."""
    monkeypatch.setattr(journal_writer, "WINDOW_BYTES", 1 << 14)
    path = tmp_path / "a"
    writer = JournalWriter(path, {}, max_record_bytes=size)
    writer.append(1, 0, 1, 0, b"first")
    record = StepRecord(1, size)
    record.payload[:] = b"\xff" * size
    states: dict[bytes, None] = {}

    def look(*_: object) -> Callable[..., Any]:
        states[path.read_bytes()] = None
        return look

    sys.settrace(look)
    try:
        if is_step:
            writer.append_step(record, 1, 10)
        else:
            writer.append(1, 1, 1, 10, record.payload)
    finally:
        sys.settrace(None)
    writer.close(durable=False)
    scans = [JournalReader(BytesRangeReader(each)).scan() for each in states]
    assert not any(each.lost or each.is_cut for each in scans)
    assert sorted(len(each.records) for each in scans)[:: len(scans) - 1] == [1, 2]
    assert sum(bool(each.damage) for each in scans) > 0, "none was seen on its way"


@pytest.mark.parametrize(
    ("changes", "text", "match"),
    [
        ({"version": 2}, b"{}", "version 2"),
        ({"flags": 1}, b"{}", "flags 1"),
        ({"max_record_bytes": layout.MAX_RECORD_BYTES + 1}, b"{}", "records of"),
        ({"descriptor_bytes": layout.MAX_DESCRIPTOR_BYTES + 1}, b"{}", "does not fit"),
        ({"records_offset": 64}, b"{}", "does not fit"),
        ({}, b"[]", "descriptor: "),
        ({}, b"{", "descriptor: "),
        ({}, b'{"a":1,"a":2}', "descriptor: "),
    ],
)
def test_forged_heads_are_refused(changes: dict[str, int], text: bytes, match: str) -> None:
    """By somebody who made every checksum fit again."""
    header = layout.RecordingHeader(
        layout.MAGIC, layout.VERSION, layout.FLAGS, len(text), crc32c(text), 4096, 64, bytes(16), 0
    )._replace(**changes)
    head = bytearray(layout.HEADER.pack(*header))
    head[44:48] = crc32c(head[layout.HEADER_CHECKED]).to_bytes(4, "little")
    data = (bytes(head).ljust(layout.HEADER_BYTES, b"\0") + text).ljust(8192, b"\0")
    with pytest.raises(FormatError, match=match):
        JournalReader(BytesRangeReader(data))


def test_a_descriptor_has_a_limit(tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError, match="too large"):
        JournalWriter(tmp_path / "a", {"x": "y" * layout.MAX_DESCRIPTOR_BYTES}, max_record_bytes=64)
    assert list(tmp_path.iterdir()) == []


def test_hostile_journal_is_scanned_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    JournalWriter(path, {}, max_record_bytes=1 << 20).close()
    fake = layout.RECORD.pack(layout.RECORD_MAGIC, 0, (1 << 20) - 40, 0, 1, 0, 0)
    with open(path, "ab") as out:
        out.write(fake * (4 << 20 >> 5))
    assert len(JournalReader.open(path).scan().records) == 0


def test_appended_records_survive_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "a"
    pid = os.fork()
    if pid == 0:
        writer = JournalWriter(path, {}, max_record_bytes=100)
        for step in range(50):
            writer.append(0, step, 1, 0, b"x" * 100)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert not is_live(path)
    assert len(JournalReader.open(path).scan().records) == 50


@pytest.mark.parametrize("call", ["sync", "prepare"])
def test_the_lock_dies_with_its_process_whatever_a_thread_maps_while_a_child_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A mapping keeps the file open, and those of a thread that is not in the child are closed by nobody there."""
    writer = JournalWriter(tmp_path / "a", {}, max_record_bytes=1000)
    writer.on_advance = lambda: None
    for step in range(800):
        writer.append(0, step, 1, 0, b"x" * 1000)
    mapped, goes_on = threading.Event(), threading.Event()

    def pause(*_: object) -> None:
        mapped.set()
        goes_on.wait(LIMIT_S)

    monkeypatch.setattr(system, {"sync": "sync_mapped", "prepare": "populate_to_write"}[call], pause)
    thread = threading.Thread(target=getattr(writer, call))
    thread.start()
    assert mapped.wait(LIMIT_S)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, b"x")
        signal.pause()
    os.read(ready, 1)
    try:
        assert is_live(tmp_path / "a")
        goes_on.set()
        thread.join(LIMIT_S)
        writer.close()
        assert not is_live(tmp_path / "a")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("size", [100, 20_000, 9 << 20])
def test_what_an_interrupted_append_left_is_no_damage(tmp_path: Path, size: int) -> None:
    """Ctrl-C may come after the bytes of a record were copied and before it counts; a smaller one follows."""
    writer = JournalWriter(tmp_path / "a", {}, max_record_bytes=1 << 24)
    writer.append(1, 0, 1, 0, b"first")
    taken, writer._end_record = writer._end_record, lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.append(1, 1, 1, 0, b"\xff" * size)
    writer._end_record = taken
    writer.append(1, 1, 1, 0, b"second")
    writer.append(1, 2, 1, 0, b"third")
    writer.close()
    scan = JournalReader.open(tmp_path / "a").scan()
    assert not scan.damage
    assert not scan.is_cut
    assert scan.records.first_step.tolist() == [0, 1, 2]


def test_records_of_every_size_lie_one_after_the_other(tmp_path: Path) -> None:
    """Within a window, over its end, and past it: a reader sees no difference."""
    rng = np.random.default_rng(1)
    sizes = [int(size) for size in 10 ** rng.uniform(0, 7.2, 60)]
    writer = JournalWriter(tmp_path / "a", {}, max_record_bytes=1 << 24)
    for step, size in enumerate(sizes):
        if step % 3 == 0:
            record = StepRecord(2, size)
            record.payload[:] = bytes([step % 251]) * size
            writer.append_step(record, step, step)
        else:
            writer.append(2, step, 1, step, bytes([step % 251]) * size)
        if step % 7 == 0:
            writer.prepare()
    place = writer.position - layout.record_span(sizes[-1])
    back = bytearray(sizes[-1])
    writer.read_payload(place, memoryview(back))
    assert back == bytes([(len(sizes) - 1) % 251]) * sizes[-1]
    writer.close()
    reader = JournalReader.open(tmp_path / "a")
    scan = reader.scan()
    assert not scan.damage
    assert scan.records.payload_bytes.tolist() == sizes
    for step, (offset, size) in enumerate(zip(scan.records.offset.tolist(), sizes, strict=True)):
        assert bytes(reader.payload(offset, size)) == bytes([step % 251]) * size


@pytest.mark.parametrize("in_memory", [True, False])
def test_slots_are_used_again(tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "a.journal"
    slots = SlotFile(path, {"x": 1}, slots=4, record_bytes=5000, in_memory=in_memory)
    assert path.is_symlink() == (in_memory and system.memory_folder(0) is not None)
    assert is_live(path)
    for step in range(11):
        slots.write(step % 4, 7, step, step * 10, bytes([step + 1]) * 5000)
    back = bytearray(5000)
    slots.read_payload(2, memoryview(back))
    assert back == bytes([11]) * 5000
    slots.close()
    assert not is_live(path)
    with pytest.raises(WriterClosedError):
        slots.write(0, 7, 11, 110, bytes(5000))
    scan = JournalReader.open(path).scan()
    assert (scan.damage, scan.is_cut) == ((), False)
    assert scan.records.first_step.tolist() == [7, 8, 9, 10]
    assert scan.records.ts_ns.tolist() == [70, 80, 90, 100]
    target = path.resolve()
    move_to_disk(tmp_path)
    assert not path.is_symlink()
    assert target.exists() != in_memory
    assert JournalReader.open(path).scan().records.first_step.tolist() == [7, 8, 9, 10]
    remove_file(str(path))
    assert not list(tmp_path.iterdir())


def test_only_files_of_recorders_are_removed_with_a_link(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "x.journal"
    other.write_bytes(b"kept")
    link.symlink_to(other)
    move_to_disk(tmp_path)
    assert link.is_symlink()
    remove_file(str(link))
    assert other.read_bytes() == b"kept"
    assert not link.is_symlink()


def test_a_damaged_slot_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a"
    slots = SlotFile(path, {}, slots=3, record_bytes=16, in_memory=False)
    for step in range(2):
        slots.write(step, 1, step, step, bytes([step + 1]) * 16)
    slots.close()
    data, start = path.read_bytes(), JournalReader.open(path).header.records_offset
    good = contents(JournalReader(BytesRangeReader(data)))
    for at in range(start, len(data)):
        for changed_byte in (data[at] ^ 0x10, 0):
            journal = JournalReader(BytesRangeReader(data[:at] + bytes([changed_byte]) + data[at + 1 :]))
            scan, found = journal.scan(), contents(journal)
            assert set(found) <= set(good)
            # A record without steps was never finished.
            if found != good and (at - start) % 48 != layout.STEPS_AT:
                assert scan.lost, at
    for end in range(start, len(data)):
        assert JournalReader(BytesRangeReader(data[:end])).scan().is_cut
    zeroed = data[: start + 48] + bytes(48) + data[start + 96 :]
    assert JournalReader(BytesRangeReader(zeroed)).scan().lost


def test_whenever_its_writer_dies_a_slot_is_whole_or_was_never_filled(tmp_path: Path) -> None:
    path = tmp_path / "a"
    slots = SlotFile(path, {}, slots=2, record_bytes=5000, in_memory=False)
    slots.write(0, 1, 0, 0, bytes(5000))
    states: dict[bytes, None] = {}

    def look(*_: object) -> Callable[..., Any]:
        states[path.read_bytes()] = None
        return look

    sys.settrace(look)
    try:
        slots.write(0, 1, 1, 10, b"\xff" * 5000)
    finally:
        sys.settrace(None)
    slots.close()
    scans = [JournalReader(BytesRangeReader(each)).scan() for each in states]
    assert not any(each.damage or each.is_cut for each in scans)
    assert {tuple(each.records.first_step.tolist()) for each in scans} == {(0,), (), (1,)}


def test_a_large_record_is_not_overwritten_by_a_window_being_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a disk allocates by being filled with zeros, both would write behind the end of the file."""
    monkeypatch.setattr(system, "try_allocate", lambda *_: False)
    path = tmp_path / "a.partial"
    writer = JournalWriter(path, {}, max_record_bytes=32 << 20)
    for step in range(9000):
        writer.append(0, step, 1, step, bytes(64))
    plain, is_filling, is_appended = os.pwrite, threading.Event(), threading.Event()

    def slow(fd: int, data: bytes, offset: int) -> int:
        if threading.current_thread() is preparing:
            is_filling.set()
            is_appended.wait(0.3)
        return plain(fd, data, offset)

    preparing = threading.Thread(target=writer.prepare)
    monkeypatch.setattr(os, "pwrite", slow)
    preparing.start()
    assert is_filling.wait(LIMIT_S)
    large = os.urandom(4 << 20)
    writer.append(1, 0, 1, 9000, large)
    is_appended.set()
    preparing.join()
    monkeypatch.undo()
    writer.close()
    assert contents(JournalReader.open(path))[-1] == (1, 0, 9000, large)


def test_a_new_window_and_one_being_prepared_are_filled_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would begin at the same end of the file, and the slower one write zeros over new records."""
    monkeypatch.setattr(system, "try_allocate", lambda *_: False)
    path = tmp_path / "a.partial"
    writer = JournalWriter(path, {}, max_record_bytes=32 << 20)
    plain, is_filling, is_appended = os.pwrite, threading.Event(), threading.Event()
    preparing = threading.Thread(target=writer.prepare)

    def slow(fd: int, data: bytes, offset: int) -> int:
        if threading.current_thread() is preparing:
            is_filling.set()
            is_appended.wait(LIMIT_S)
        elif not preparing.ident:  # this thread makes room itself: another one begins to do so as well
            preparing.start()
            is_filling.wait(0.3)
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    steps = more = 0
    while more < 256 << 10:  # beyond what windows have in common
        writer.append(0, steps, 1, steps, bytes([steps % 251]) * 64)
        steps, more = steps + 1, more + 64 * bool(preparing.ident)
    is_appended.set()
    preparing.join()
    monkeypatch.undo()
    writer.close()
    assert [each[2] for each in contents(JournalReader.open(path))] == list(range(steps))
