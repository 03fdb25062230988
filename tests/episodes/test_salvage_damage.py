"""An unfinished recording whose files were cut, flipped or deleted: what can be read comes back, the rest is kept."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.crash_recorder import picture, step_in
from tests.episodes.told import changed_at, places_of
from tests.sweeps import thinned
from tests.waiting import until
from warpdata.bytekit.jsontext import dump_json
from warpdata.cli.main import main
from warpdata.episodes.record import camera
from warpdata.episodes.salvage import unfinished
from warpdata.errors import BlobNotFoundError, FormatError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Description
from warpdata.formats.episodedir.frame_index import read_marks
from warpdata.formats.journal.layout import record_span
from warpdata.formats.journal.reader import JournalReader
from warpdata.formats.journal.writer import JournalWriter, move_to_disk

STEPS = 45
SPREAD = 9_000
FLIPS, CUTS = 10, 6
SAMPLE = 20
"""How many of the other places are tried in an ordinary run, beside deleting and emptying each file."""


def value(name: str, step: int) -> Any:
    match name:
        case "arm":
            return np.arange(7, dtype="f4") + step * 10 + 1
        case "wide":
            return np.full(SPREAD, step + 1, "f8")
        case "words":
            return f"step {step} " + "x" * (70_000 if step == 30 else 0)
        case "cam":
            return picture("cam/left", step)
    return picture("cam/left", step)[:, :, 0]


NAMES = ("arm", "wide", "words", "cam", "depth")


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a recorder leaves that was killed, with frames in the video, in the journal, and in both."""
    folder = tmp_path_factory.mktemp("crashed") / "ep"
    child = os.fork()
    if child == 0:
        camera.SLOTS = (2, 6)
        writer = wd.DiskEpisodeWriter(folder, durability="none")
        writer.set_static("task", "to be damaged")
        for step in range(STEPS):
            for name in NAMES:
                writer.append(name, value(name, step), step * 1000)
            while any(lane._encoded < lane.count - 1 for lane in map(writer._signals.get, ("cam", "depth"))):
                time.sleep(0.0005)
        os._exit(0)
    os.waitpid(child, 0)
    move_to_disk(folder / ".recording")
    for path in (folder / ".recording").glob("*.journal"):  # less to copy; some room stays, as always
        if not path.name.startswith("frames-"):
            os.truncate(path, JournalReader.open(path).scan().end_offset + 512)
    inside = {path.name for path in (folder / ".recording").iterdir()}
    assert {"signals.journal", "4.mp4", "4.marks", "5.mkv", "5.marks"} <= inside
    return folder


@dataclass
class Damage:
    """What happens to one file: bytes [start, end) are others or gone."""

    file: str
    how: str
    start: int
    end: int = 1 << 62
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.file}-{self.how}-{self.start}"

    def apply(self, work: Path) -> None:
        path = work / self.file
        if self.how == "delete":
            path.unlink()
        elif self.how == "cut":
            os.truncate(path, self.start)
        elif self.how == "double":
            path.write_bytes(path.read_bytes() * 2)
        elif self.how == "garbage":
            path.write_bytes(path.read_bytes() + random.Random(3).randbytes(777))
        else:
            with open(path, "r+b") as file:
                file.seek(self.start)
                old = file.read(1)
                file.seek(self.start)
                file.write(bytes([old[0] ^ 0x10]))

    def hits(self, file: str, start: int, end: int) -> bool:
        return file == self.file and start < self.end and self.start < end


def damages(work: Path) -> list[Damage]:
    rng = random.Random(7)
    found = []
    for path in sorted(work.iterdir()):
        if path.suffix == ".parquet":
            continue  # made from the journal; nothing reads it
        used = used_bytes(path)
        found.append(Damage(path.name, "delete", 0))
        found += [Damage(path.name, how, path.stat().st_size) for how in ("double", "garbage")]
        cuts = [0, 1, 63, 64, used - 1, *(rng.randrange(used) for _ in range(CUTS))]
        if path.suffix == ".journal":
            cuts.append(int(JournalReader.open(path).scan().end_offset))
        found += [Damage(path.name, "cut", at) for at in cuts]
        flips = [*(rng.randrange(used) for _ in range(FLIPS)), rng.randrange(min(64, used))]
        found += [Damage(path.name, "flip", at, at + 1) for at in flips]
    return found


def used_bytes(path: Path) -> int:
    data = path.read_bytes().rstrip(b"\0")
    return len(data)


@dataclass
class Readable:
    """Which records a slow and obvious reader finds after the damage, by name."""

    steps: dict[str, set[int]]
    lost: bool


def readable(work: Path, damage: Damage) -> Readable:
    """By looking at the whole recording and at which of its bytes are hit."""
    streams = {1: "arm", 2: "wide", 3: "words", 4: "cam", 5: "depth"}
    steps: dict[str, set[int]] = {name: set() for name in NAMES}
    described: set[int] = set()
    for path in sorted(work.glob("*.journal")):
        reader = JournalReader.open(path)
        records = reader.scan().records
        head_hit = damage.hits(path.name, 0, 64 + reader.header.descriptor_bytes)
        if not head_hit and reader.descriptor.get("kind") == "episode-frames":
            described.add(reader.descriptor["stream"])
        columns = (records.offset, records.payload_bytes, records.stream, records.first_step)
        for offset, size, stream, step in zip(*(each.tolist() for each in columns), strict=True):
            if damage.hits(path.name, offset, offset + 32 + size):
                continue
            if stream == 0 and b'"signal"' in bytes(reader.payload(offset, size)):
                described |= {
                    n for n in streams if f'"stream":{n},'.encode() in bytes(reader.payload(offset, size))
                }
            elif stream:
                steps[streams[stream]].add(step)
    for stream, suffix in ((4, ".mp4"), (5, ".mkv")):
        steps[streams[stream]] |= decodable(work, stream, suffix, damage)
    found = {name: steps[name] if stream in described else set() for stream, name in streams.items()}
    return Readable(found, any(len(each) < STEPS for each in found.values()))


def decodable(work: Path, stream: int, suffix: str, damage: Damage) -> set[int]:
    found, group = set(), False
    for number, mark in enumerate(read_marks(str(work / f"{stream}.marks"))):
        assert mark is not None
        at = number * layout.FRAME_MARK_BYTES
        hit = damage.hits(f"{stream}.marks", at, at + layout.FRAME_MARK_BYTES)
        hit |= damage.hits(f"{stream}{suffix}", mark.offset, mark.offset + mark.size)
        group = not hit and (group or bool(mark.flags & layout.KEYFRAME_FLAG))
        if group:
            found.add(number)
    return found


def test_nothing_readable_is_lost_and_nothing_unreadable_removed(crashed: Path, tmp_path: Path) -> None:
    all_damage = damages(crashed / ".recording")
    whole = ("delete", "double", "garbage")
    always = [each for each in all_damage if each.how in whole or (each.how == "cut" and each.start == 1)]
    all_damage = always + thinned([each for each in all_damage if each not in always], SAMPLE)
    said = 0
    for number, damage in enumerate(all_damage):
        folder = tmp_path / str(number)
        shutil.copytree(crashed, folder)
        work = folder / ".recording"
        damage.apply(work)
        left = (work / damage.file).read_bytes() if (work / damage.file).exists() else None
        expected = readable(crashed / ".recording", damage)
        receipt = wd.salvage(folder)
        check(folder, expected, damage)
        if expected.lost:
            assert not receipt.is_complete, str(damage)
        if not receipt.is_complete:
            said += 1
            assert receipt.kept_aside is not None, str(damage)
            assert receipt.damage, str(damage)
            kept = Path(receipt.kept_aside) / damage.file
            assert (kept.read_bytes() if kept.exists() else None) == left, f"{damage}: {receipt}"
        shutil.rmtree(folder)
    assert said > 30


def check(folder: Path, expected: Readable, damage: Damage) -> None:
    episode = wd.open_episode(folder)
    for name, steps in expected.steps.items():
        signal = episode.signals.get(name)
        found = {} if signal is None else {ts_ns // 1000: each for each, ts_ns in signal}
        assert set(found) >= steps, f"{damage}: {name} has lost {sorted(steps - set(found))}"
        for step, each in found.items():
            if name in ("cam", "depth"):
                assert step_in(each if each.ndim == 3 else np.dstack([each] * 3)) == step, str(damage)
            else:
                assert np.array_equal(each, value(name, step)), str(damage)


def test_zeros_in_place_of_the_first_or_last_record_of_a_journal_are_told(
    crashed: Path, tmp_path: Path
) -> None:
    """A disk may lose pages; among the first records are static items, which have no numbers to be missed."""
    work = tmp_path / ".recording"
    shutil.copytree(crashed / ".recording", work)
    assert not unfinished.open_recording(work).unreadable
    for path in work.glob("*.journal"):
        data, records = path.read_bytes(), JournalReader.open(path).scan().records
        for at in (0, -1) if len(records) else ():
            start, size = int(records.offset[at]), record_span(int(records.payload_bytes[at]))
            path.write_bytes(data[:start] + bytes(size) + data[start + size :])
            assert path.name in {each.file for each in unfinished.open_recording(work).unreadable}
        path.write_bytes(data)


def test_the_whole_recording_is_complete(crashed: Path, tmp_path: Path) -> None:
    shutil.copytree(crashed, tmp_path / "ep")
    (tmp_path / "ep" / ".static.json.tmp-0123456789ab").write_text("left by a salvage that was killed")
    receipt = wd.salvage(tmp_path / "ep")
    assert receipt.is_complete
    assert receipt.channels == dict.fromkeys(NAMES, STEPS)
    assert receipt.kept_aside is None
    assert not list((tmp_path / "ep").glob(".*"))
    assert wd.check_dataset(tmp_path / "ep").is_damaged is False


@pytest.mark.parametrize("size", [None, 0, 1, 63])
def test_without_its_main_journal_a_recording_is_kept_and_said_to_be_lost(
    crashed: Path, tmp_path: Path, size: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(crashed, tmp_path / "ep")
    journal = tmp_path / "ep" / ".recording" / "signals.journal"
    journal.unlink() if size is None else os.truncate(journal, size)
    assert main(["salvage", str(tmp_path / "ep")]) == 3
    said = capsys.readouterr().out
    assert "unreadable: signals.journal" in said
    assert "an unknown amount is lost: signals.journal: " in said or size
    aside = tmp_path / "ep" / ".recording-damaged"
    assert {path.name for path in aside.glob("frames-*")} == {
        path.name for path in (crashed / ".recording").glob("frames-*")
    }
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == STEPS  # its own journals say what it is


def test_a_journal_of_frames_is_not_taken_for_the_main_journal(crashed: Path, tmp_path: Path) -> None:
    shutil.copytree(crashed, tmp_path / "ep")
    frames = next((crashed / ".recording").glob("frames-5-*.journal"))
    shutil.copyfile(frames, tmp_path / "ep" / ".recording" / "signals.journal")
    receipt = wd.salvage(tmp_path / "ep")
    assert [each["file"] for each in receipt.damage] == ["signals.journal"]
    assert receipt.kept_aside is not None
    assert Path(receipt.kept_aside, "signals.journal").read_bytes() == frames.read_bytes()


def test_a_journal_is_not_taken_for_another_one(crashed: Path, tmp_path: Path) -> None:
    work = tmp_path / ".recording"
    shutil.copytree(crashed / ".recording", work)
    for path, other in itertools.permutations(sorted(work.glob("*.journal")), 2):
        data = path.read_bytes()
        shutil.copyfile(other, path)
        assert path.name in {each.file for each in unfinished.open_recording(work).unreadable}
        path.write_bytes(data)


def test_marks_that_were_moved_do_not_mix_up_the_frames(crashed: Path, tmp_path: Path) -> None:
    """A mark says by its place which frame it is, a raw frame says it itself."""
    shutil.copytree(crashed, tmp_path / "ep")
    marks = tmp_path / "ep" / ".recording" / "4.marks"
    data, gap = marks.read_bytes(), 3 * layout.FRAME_MARK_BYTES
    moved = (STEPS - 5) * layout.FRAME_MARK_BYTES - gap
    marks.write_bytes(data[:gap] + bytes(moved) + data[gap:])
    receipt = wd.salvage(tmp_path / "ep")
    assert not receipt.is_complete
    found = {ts_ns // 1000: step_in(image) for image, ts_ns in wd.open_episode(tmp_path / "ep")["cam"]}
    assert {0, 1, 2} < found.keys()
    assert all(step == shown for step, shown in found.items())


def test_a_frame_is_not_decoded_from_another_than_it_builds_on(crashed: Path, tmp_path: Path) -> None:
    """Some marks cut out: what follows them in the list does not follow in the video."""
    shutil.copytree(crashed, tmp_path / "ep")
    marks = tmp_path / "ep" / ".recording" / "4.marks"
    data = marks.read_bytes()
    flags = [mark is not None and mark.flags & layout.KEYFRAME_FLAG for mark in read_marks(str(marks))]
    start, end = 2, flags.index(1, 1) + 2  # from within the first group to within the second
    marks.write_bytes(data[: start * layout.FRAME_MARK_BYTES] + data[end * layout.FRAME_MARK_BYTES :])
    assert not wd.salvage(tmp_path / "ep").is_complete
    found = {ts_ns // 1000: step_in(image) for image, ts_ns in wd.open_episode(tmp_path / "ep")["cam"]}
    assert {0, 1} < found.keys()
    assert all(step == shown for step, shown in found.items())


def test_a_finished_episode_is_not_made_again_from_its_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder died while it removed them: a damaged journal must not replace a whole file."""
    from warpdata.episodes.record import recording

    monkeypatch.setattr(recording, "remove_folder", lambda _, durable=True: None)
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for step in range(30):
            writer.append("arm", value("arm", step), step)
            writer.append("cam", value("cam", step), step)
    os.truncate(tmp_path / "ep" / ".recording" / "signals.journal", 5000)
    receipt = wd.salvage(tmp_path / "ep")
    assert receipt.is_complete
    assert receipt.channels == {"arm": 30, "cam": 30}
    assert "interrupted" not in wd.open_episode(tmp_path / "ep").meta


def test_a_file_that_was_finished_gives_what_its_journal_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpdata.episodes.record import recording

    def fails(*_: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr(recording, "last_documents", fails)
    writer = wd.DiskEpisodeWriter(tmp_path / "ep")
    for step in range(30):
        writer.append("arm", value("arm", step), step)
    with pytest.raises(OSError, match="no more"):
        writer.close()
    monkeypatch.undo()
    journal = tmp_path / "ep" / ".recording" / "signals.journal"
    damage = int(JournalReader.open(journal).scan().records.of_stream(1).payload_offset[7])
    Damage("signals.journal", "flip", damage).apply(journal.parent)
    receipt = wd.salvage(tmp_path / "ep")
    assert (receipt.steps_kept, receipt.steps_lost, receipt.is_complete) == (30, 0, False)


def test_one_that_cannot_be_salvaged_does_not_stop_the_others(crashed: Path, tmp_path: Path) -> None:
    for number in range(2):
        shutil.copytree(crashed, tmp_path / f"{0:012d}" / f"{number:012d}")
    first = tmp_path / f"{0:012d}" / f"{0:012d}" / ".recording" / "signals.journal"
    first.unlink()
    JournalWriter(first, {"kind": "of another program"}, max_record_bytes=10).close()
    assert main(["salvage", str(tmp_path)]) == 3
    assert first.exists()
    assert len(wd.LocalDataset(tmp_path)) == 1
    with pytest.raises(WarpError, match="of another program"):
        wd.salvage(first.parent.parent)


def test_an_older_file_of_the_same_name_is_kept(tmp_path: Path) -> None:
    """A single signal is recorded over an older one: salvage finishes it, and keeps what it replaces."""
    for make, names in (
        (lambda: wd.SimpleSignalWriter(tmp_path / "s.parquet", overwrite=True), ["s.parquet"]),
        (
            lambda: wd.VideoSignalWriter(tmp_path / "c.mp4", tmp_path / "c.frames.parquet", overwrite=True),
            ["c.mp4", "c.frames.parquet"],
        ),
    ):
        item = value("arm" if names[0] == "s.parquet" else "cam", 3)
        with make() as old:
            for step in range(
                5
            ):  # at the same times, so that nothing but its bytes tells it from the new one
                old.append(value("arm" if names[0] == "s.parquet" else "cam", 7), step)
        before = {name: (tmp_path / name).read_bytes() for name in names}
        child = os.fork()
        if child == 0:
            writer = make()
            for step in range(5):
                writer.append(item, step)
            os._exit(0)
        os.waitpid(child, 0)
        receipt = wd.salvage(tmp_path / names[0])
        assert (receipt.steps_kept, receipt.is_complete) == (5, True)
        for name in names:
            assert (tmp_path / f"{name}.bak").read_bytes() == before[name]
        if names[0] == "c.mp4":
            found = wd.VideoSignal(tmp_path / "c.mp4", tmp_path / "c.frames.parquet")
            assert [step_in(image) for image, _ in found] == [3] * 5


@pytest.mark.parametrize("frames", ["", "c.frames.parquet", "elsewhere/c.frames.parquet"])
def test_a_recorder_killed_as_it_finishes_single_files_leaves_only_them(tmp_path: Path, frames: str) -> None:
    """At every name it gives or takes: salvage ends with the files it was to make, and no backup of one of them."""
    for number in itertools.count():
        folder = tmp_path / str(number)
        (folder / "elsewhere").mkdir(parents=True)
        child = os.fork()
        if child == 0:
            _die_at_name(folder, frames, number)
        os.waitpid(child, 0)
        is_last = bool(list(folder.glob(".*-done")))
        data = folder / ("c.mp4" if frames else "s.parquet")
        with contextlib.suppress(FormatError, BlobNotFoundError):  # nothing was left to be done
            assert wd.salvage(data).is_complete
        found = wd.VideoSignal(data, folder / frames) if frames else wd.SimpleSignal(data)
        assert len(found) == 5
        expected = {data} | ({folder / frames} if frames else set())
        assert {path for path in folder.rglob("*") if path.is_file()} == expected
        if is_last:
            return


def _die_at_name(folder: Path, frames: str, number: int) -> None:
    if frames:
        writer: wd.SignalWriter = wd.VideoSignalWriter(folder / "c.mp4", folder / frames)
    else:
        writer = wd.SimpleSignalWriter(folder / "s.parquet")
    for step in range(5):
        writer.append(value("cam" if frames else "arm", 3), step)
    names = 0

    def instead(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal names
            if names == number:
                os.kill(os.getpid(), signal.SIGKILL)
            names += 1
            return real(*arguments, **options)

        return counted

    for name in ("rename", "replace", "unlink"):
        setattr(os, name, instead(getattr(os, name)))
    writer.close()
    os._exit(0)


def test_recordings_with_a_journal_per_size_are_finished(tmp_path: Path) -> None:
    """Before all records went to one journal, large ones had others; what those left comes back."""
    work = tmp_path / "ep" / ".recording"
    work.mkdir(parents=True)
    facts = [{"signal": {"stream": 1, "name": "wide", **Description("vector", "f64", (SPREAD,)).to_json()}}]
    facts.append({"journal": "large-18.journal"})
    small = JournalWriter(
        work / "signals.journal",
        {"kind": "episode-signals", "episode": {"meta": {}}},
        max_record_bytes=1 << 16,
    )
    large = JournalWriter(work / "large-18.journal", {"kind": "episode-signals"}, max_record_bytes=1 << 18)
    for number, fact in enumerate(facts):
        small.append(0, number, 1, 0, dump_json(fact))
    for step in range(9):
        large.append(1, step, 1, step, value("wide", step))
    small.close()
    large.close()
    assert wd.salvage(tmp_path / "ep").is_complete
    assert wd.open_episode(tmp_path / "ep")["wide"].values()[:, 0].tolist() == list(range(1, 10))


ODD: list[Any] = [None, -1, 2**70, "x", [], {}, 1.5, [["x"]], [2**40, 2**40], [2**70], 0, KeyError]


def test_whatever_the_journals_say_of_the_recording_is_refused_or_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, again = tmp_path / "killed", tmp_path / "again"
    child = os.fork()
    if child == 0:
        writer = wd.DiskEpisodeWriter(killed, durability="none")
        writer.append("x", np.arange(3.0), 1)
        writer.append("t", "hi", 2)
        os._exit(0)
    os.waitpid(child, 0)
    told: list[Any] = []
    real = unfinished.parse_json_object

    def told_so(*given: Any, **more: Any) -> Any:
        told.append(real(*given, **more))
        return told[-1]

    monkeypatch.setattr(unfinished, "parse_json_object", told_so)
    shutil.copytree(killed, again)
    wd.salvage(again)
    assert [fact["signal"]["name"] for fact in told] == ["x", "t"]
    main_journal = JournalReader.open(killed / ".recording" / "signals.journal").descriptor
    cases = [
        (fact, place, value) for fact in (*told, main_journal) for place in places_of(fact) for value in ODD
    ]
    always = [(main_journal, ("episode", "meta"), value) for value in ODD]
    always += [(told[0], ("signal", "shape"), [2**70])]
    opened = JournalReader.open.__func__  # type: ignore[attr-defined]
    for fact, place, value in always + thinned(cases, 40):
        changed = changed_at(fact, place, value)

        def another(found: Any, fact: Any = fact, changed: Any = changed) -> Any:
            return changed if found == fact else found

        def open_journal(cls: Any, *given: Any, change: Any = another, **more: Any) -> Any:
            reader = opened(cls, *given, **more)
            reader.descriptor = change(reader.descriptor)
            return reader

        monkeypatch.setattr(unfinished, "parse_json_object", lambda *a, c=another, **m: c(real(*a, **m)))
        monkeypatch.setattr(JournalReader, "open", classmethod(open_journal))
        shutil.rmtree(again)
        shutil.copytree(killed, again)
        try:
            wd.salvage(again)
        except WarpError:
            assert (again / ".recording" / "signals.journal").exists(), "what could not be read is kept"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("signal", "video"), KeyError, "unknown video encoding"),
        (("signal", "video"), "h264", "unknown video encoding"),
        (("signal", "video", "codec"), KeyError, "unknown video encoding"),
        (("signal", "video", "codec"), "crayon", "unknown video encoding (codec"),
        (("signal", "video", "gop_size"), "many", "unknown video encoding ("),
        (("signal", "shape"), [5], "no image: u8 (5,)"),
        (("signal", "shape"), [48, 64], "frames of the wrong size"),
    ],
)
def test_a_camera_of_which_a_journal_says_nothing_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[str, ...], value: Any, words: str
) -> None:
    """The other signals of the recording are finished all the same."""
    folder = tmp_path / "ep"
    child = os.fork()
    if child == 0:
        writer = wd.DiskEpisodeWriter(folder, durability="none")
        writer.append("x", 1.0, 1)
        writer.append("cam", picture("cam/left", 0), 1)
        os._exit(0)
    os.waitpid(child, 0)
    real = unfinished.parse_json_object

    def forged(*given: Any, **more: Any) -> Any:
        fact = real(*given, **more)
        return changed_at(fact, place, value) if fact.get("signal", {}).get("name") == "cam" else fact

    monkeypatch.setattr(unfinished, "parse_json_object", forged)
    receipt = wd.salvage(folder)
    assert not receipt.is_complete
    assert words in str(receipt)
    assert wd.open_episode(folder)["x"].values().tolist() == [1.0]


def test_a_recorder_that_died_before_its_first_journal_had_room_leaves_nothing(tmp_path: Path) -> None:
    """The head of a journal is written, then room is made: between the two there is a file that ends with its head."""
    writer = wd.SimpleSignalWriter(tmp_path / "x.parquet")
    writer.append(1.0, 0)
    until(lambda: list(tmp_path.rglob("signals.journal")), "the journal never has its name")
    [journal] = tmp_path.rglob("signals.journal")
    head = journal.read_bytes()[:4096]
    writer.close()
    work = tmp_path / "again" / ".x.parquet.recording"
    work.mkdir(parents=True)
    (work / ".signals.journal.tmp-0123456789ab").write_bytes(head)
    with contextlib.suppress(WarpError):
        wd.salvage(tmp_path / "again" / "x.parquet")
    assert [path for path in (tmp_path / "again").rglob("*") if path.is_file()] == []
