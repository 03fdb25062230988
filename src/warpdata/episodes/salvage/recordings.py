"""Turning what a crash left into a valid episode, with a receipt of what was lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.io.commit import check_free, fsync_folder, link_or_copy, map_os_errors, remove_temps_of
from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader
from warpdata.episodes.collection.local import list_episodes
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.record.recorder import SHARD_SUFFIX
from warpdata.episodes.record.recording import episode_numbers, remove_files, remove_folder, remove_leftovers
from warpdata.episodes.record.steps import StepLayout, StepRun, describe_owner, step_episode
from warpdata.episodes.salvage.finish import DAMAGED, exclusive, finish_work, free_name, set_aside
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.episodes.salvage.unfinished import locked_folder, open_recording, work_folders_in
from warpdata.episodes.sources.disk_episode import DiskEpisode
from warpdata.episodes.sources.packed import directory_of
from warpdata.episodes.sources.shard_episode import DIRECTORY_BLOCK, ShardReader, episode_of_shard
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FileFinding,
    JournalInUseError,
    OutOfSpaceError,
    PermissionError_,
    WarpError,
    suggests,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import episode_path, read_meta
from warpdata.formats.journal.layout import PARTIAL_SUFFIX, STEPS_KIND, WORK_SUFFIX, record_span
from warpdata.formats.journal.reader import JournalReader, Records, Scan, is_journal, work_folder
from warpdata.formats.wshard.chunks import (
    ChunkedEpisodeReader,
    chunks_in,
    list_again,
    list_name,
    read_chunk_list,
    write_chunk_list,
)
from warpdata.formats.wshard.episode import WShardEpisode, load_wshard
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
from warpdata.formats.wshard.save import plan_shard, save_wshard
from warpdata.formats.wshard.schema import Timebase
from warpdata.formats.wshard.verify import IntactBlocks, repair_partial, repair_stream, verify_shard
from warpdata.timeline.episode import Episode

_LANES = ("signal/", "action/", "time/", "omen/", "uncert/", "residual/", "reward", "done", "truncated")
_ORPHANS = "aux/orphan/"


@suggests
def salvage(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    force: bool = False,
    channels: Sequence[Mapping[str, Any]] | None = None,
    flush_interval: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> LossReceipt:
    """Finish an interrupted recording: a `.partial`, its final path, an episode directory, a signal file.

    A root or a folder of recordings gives one receipt, with those of its recordings in `parts`.
    """
    place = _plain_path(path)
    work = _shard_work(place)
    if work is not None:
        remove_leftovers(work)
        if work.is_dir():
            shard = work.with_name(work.name.removesuffix(WORK_SUFFIX)) if output is None else Path(output)
            with exclusive(work):
                return _into_one_file(work, shard, overwrite=overwrite)
    if output is None:
        signal = place if place in work_folders_in(place.parent) else work_folder(place)
        remove_leftovers(signal)
        if signal.is_dir():
            return _salvage_work(signal)
    if place.is_dir():
        if output is not None:
            raise ValueError("what was recorded into a directory is finished there: it takes no output")
        return _salvage_directory(place, overwrite=overwrite)
    return _salvage_file(
        str(place), output, channels, flush_interval, progress, overwrite=overwrite, force=force
    )


def _salvage_file(
    path: str,
    output: str | os.PathLike[str] | None,
    channels: Sequence[Mapping[str, Any]] | None,
    flush_interval: int,
    progress: Callable[[int, int], None] | None,
    *,
    overwrite: bool,
    force: bool,
) -> LossReceipt:
    names = (path if path.endswith(PARTIAL_SUFFIX) else path + PARTIAL_SUFFIX, path)
    source = next((name for name in names if os.path.isfile(name)), None)
    if source is None:
        raise BlobNotFoundError("nothing to salvage here", path=path)
    target = os.fspath(output) if output is not None else source.removesuffix(PARTIAL_SUFFIX)
    is_partial = source.endswith(PARTIAL_SUFFIX)
    with FileRangeReader(source) as reader:
        ours, is_empty = is_journal(reader), reader.size == 0
    if is_empty and is_partial:
        # A recorder names its journal once there is something in it: an empty one has lost its contents.
        why = "the file is empty: its contents are lost"
        damage = [{"file": os.path.basename(source), "why": why}]
        return LossReceipt(source=source, episode_id="", why=why, damage=damage, kept_aside=source)
    if ours:
        fact = f"being recorded by {describe_owner(source)}"
        with contextlib.nullcontext() if force else exclusive(Path(source), fact):
            return _from_journal(source, target, progress, overwrite=overwrite)
    if is_partial:
        return _from_foreign_partial(source, target, channels, flush_interval, overwrite=overwrite)
    if _is_chunk_list(source):
        return _from_chunk_list(source, target, overwrite=overwrite)
    return _from_foreign_file(source, target, overwrite=overwrite)


def _salvage_directory(folder: Path, *, overwrite: bool) -> LossReceipt:
    work = folder / layout.RECORDING_FOLDER
    if not work.is_dir() and any(map(_holds_recordings, _folders_below(folder))):
        return LossReceipt.of_folder(str(folder), salvage_folder(folder, overwrite=overwrite))
    remove_leftovers(work)
    if not work.is_dir():
        hint = "Name one unfinished episode, or give the whole root to `warp salvage`."
        raise BlobNotFoundError("nothing to salvage here", path=folder, hint=hint)
    return _salvage_work(work)


def _salvage_work(work: Path) -> LossReceipt:
    """Finish the recording whose journals are in this folder."""
    with exclusive(locked_folder(work)):
        return finish_work(work)


def salvage_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> list[LossReceipt]:
    """Finish every unfinished recording of a folder: one recording, a root, or a folder of shards and roots.

    Those whose recorder lives are left alone, and so are those that cannot be salvaged: their receipts have the reason.
    """
    place = _plain_path(path)
    work = _shard_work(place)
    is_episode = (place / layout.RECORDING_FOLDER).is_dir()
    if is_episode or place in work_folders_in(place.parent) or (work and work.is_dir()):
        return [salvage(place, overwrite=overwrite)]
    receipts = []
    for folder in _folders_below(place):
        listing = list_episodes(folder)
        # Left by recorders that were killed as they removed their journals.
        for number in listing.finished:
            remove_leftovers(episode_path(folder, number) / layout.RECORDING_FOLDER)
        for done in (*folder.glob(f"*{WORK_SUFFIX}-done"), *folder.glob(f".*{WORK_SUFFIX}-done")):
            remove_files(done)
        works = [episode_path(folder, number) / layout.RECORDING_FOLDER for number in listing.unfinished]
        for work in works + work_folders_in(folder):
            receipts += _try(_salvage_work, work)
        left = [name for name in folder.glob(f"*{SHARD_SUFFIX}{WORK_SUFFIX}") if name.is_dir()]
        partials = folder.glob(f"*{SHARD_SUFFIX}{PARTIAL_SUFFIX}")
        for name in sorted([*left, *partials]):
            receipts += _try(partial(salvage, overwrite=overwrite), name)
    return receipts


def _try(finish: Callable[[Path], LossReceipt], path: Path) -> list[LossReceipt]:
    """No receipt if it was just finished; one with the reason if it is being recorded or cannot be salvaged."""
    source = locked_folder(path)
    try:
        return [finish(path)]
    except BlobNotFoundError:
        return []
    except JournalInUseError:
        why = "being recorded by a running process: left alone"
        return [LossReceipt(source=str(source), episode_id=source.name, why=why, is_live=True)]
    except (OutOfSpaceError, PermissionError_):
        raise  # nothing is wrong with the recording: it is finished once there is room
    except WarpError as error:
        damage = [{"file": path.name, "why": str(error)}]
        return [LossReceipt(source=str(source), episode_id=source.name, why=str(error), damage=damage)]


def _folders_below(folder: Path) -> Iterator[Path]:
    """A folder and those below it, but for parts of a recording: blocks of a root, episodes, hidden ones."""
    yield folder
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names:
        is_block = len(name) == layout.DIGITS and name.isdigit()
        is_recording = name.startswith(".") or name.endswith(WORK_SUFFIX)
        if not is_block and not is_recording and not (folder / name / layout.META_FILE).exists():
            yield from _folders_below(folder / name)


def _holds_recordings(folder: Path) -> bool:
    """Whether a folder is a root or holds an unfinished recording."""
    patterns = (f"*{SHARD_SUFFIX}{PARTIAL_SUFFIX}", f"*{SHARD_SUFFIX}{WORK_SUFFIX}")
    is_root = bool(episode_numbers(folder) or work_folders_in(folder))
    return is_root or any(any(folder.glob(pattern)) for pattern in patterns)


def _plain_path(path: str | os.PathLike[str]) -> Path:
    """The path without `.` and `..` at its end: files that belong to a folder are called after it."""
    return Path(os.path.abspath(path)) if Path(path).name in ("", "..") else Path(path)


def _shard_work(path: Path) -> Path | None:
    """The directory in which a recording into this one file is made, which may be named itself."""
    if path.name.endswith(SHARD_SUFFIX):
        return path.with_name(path.name + WORK_SUFFIX)
    return path if path.name.endswith(SHARD_SUFFIX + WORK_SUFFIX) else None


def _into_one_file(work: Path, target: Path, *, overwrite: bool) -> LossReceipt:
    """Finish the directory, then pack it into the file it was meant to be; what could not be read is kept beside it."""
    aside = None
    done = _packed_already(work, target)
    if done is not None:
        with MmapRangeReader(target) as reader:
            is_whole = not any(finding.is_damage for finding in verify_shard(reader))
        if is_whole:
            why = "the file was finished; only its journals were left"
            remove_folder(work)
            return LossReceipt.of_records(str(target), str(target), target.stem, done, why)
        aside = set_aside(target)
    receipt = _finished(work)
    if receipt.is_complete and not receipt.steps_kept:
        remove_folder(work)
        return replace(receipt, source=str(target), output=None, episode_id=target.stem)
    if not receipt.steps_kept:
        return receipt  # nothing could be read: all of it stays where it is
    pack_episode(work, target, episode_id=target.stem, overwrite=overwrite)
    remove_temps_of(target)
    for unread in sorted(work.glob(f"{layout.RECORDING_FOLDER}{DAMAGED}*")):
        aside = free_name(target.with_name(work.name), DAMAGED)
        with map_os_errors(aside):
            os.rename(unread, aside)
            fsync_folder(target.parent)
    remove_folder(work)
    receipt = replace(receipt, source=str(target), output=str(target), episode_id=target.stem)
    return replace(receipt, kept_aside=None if aside is None else str(aside))


def _finished(work: Path) -> LossReceipt:
    """Make whole episode files of the journals, if that was not done already; what was lost then is in its receipt."""
    if (work / layout.RECORDING_FOLDER).is_dir():
        return finish_work(work / layout.RECORDING_FOLDER)
    if not any(work.iterdir()):
        return LossReceipt(source=str(work), episode_id=work.name, why="nothing was recorded")
    episode = DiskEpisode(work)
    why = "the recorder ended before it packed the episode"
    found = LossReceipt.of_records(str(work), str(work), work.name, _signals(episode), why)
    before = episode.meta.get("salvaged")
    return found if not isinstance(before, Mapping) else LossReceipt.from_json(before) or found


def _signals(episode: Episode) -> dict[str, Any]:
    """How many records each signal has, and from when to when."""
    found: dict[str, Any] = {}
    for name, each in episode.signals.items():
        found[name] = {"count": len(each)}
        if len(each):
            found[name] |= {"first_ts_ns": each.first_ts_ns, "last_ts_ns": each.last_ts_ns}
    return found


def _packed_already(work: Path, target: Path) -> dict[str, Any] | None:
    """The signals in the file, if it holds this recording: its recorder died as it tidied up."""
    if not target.is_file():
        return None
    try:
        journals = work / layout.RECORDING_FOLDER
        about = open_recording(journals).meta if journals.is_dir() else read_meta(work)
        episode = episode_of_shard(ShardReader.open(target))
        if about.get("uid") is None or episode.meta.get("uid") != about["uid"]:
            return None
        return _signals(episode)
    except WarpError:
        return None


def _from_journal(
    source: str, target: str, progress: Callable[[int, int], None] | None, *, overwrite: bool
) -> LossReceipt:
    journal = JournalReader.open(MmapRangeReader(source))
    if journal.descriptor.get("kind") != STEPS_KIND:
        raise CorruptLayoutError(
            f"a journal of kind {journal.descriptor.get('kind')!r} is no episode", path=source
        )
    scan = journal.scan()
    episode = _episode(source, journal.descriptor, scan)
    if os.path.exists(target):
        # A crash between the rename and the removal of the journal leaves both, with the same contents.
        with contextlib.suppress(WarpError):
            if load_wshard(target) == episode:
                return _let_go(_receipt(source, target, episode, scan))
    compat = "strict" if journal.descriptor.get("compat") == "strict" else "default"
    compression = StepLayout.from_json(journal.descriptor, source).compression()
    save_wshard(episode, target, compression, compat=compat, overwrite=overwrite, progress=progress)
    remove_temps_of(target)  # of a recorder or salvage that was killed as it wrote the file
    return _let_go(_receipt(source, target, episode, scan))


def _let_go(receipt: LossReceipt) -> LossReceipt:
    """Remove a journal whose records are all in the finished file; one with damage is only renamed."""
    if receipt.is_complete:
        os.unlink(receipt.source)
        return receipt
    return replace(receipt, kept_aside=str(set_aside(Path(receipt.source), "-damaged")))


def _episode(source: str, descriptor: Mapping[str, Any], scan: Scan) -> WShardEpisode:
    records = scan.records.of_stream(0).in_order()
    size = descriptor.get("payload_bytes")
    if not isinstance(size, int) or (len(records) and (records.payload_bytes != size).any()):
        raise CorruptLayoutError("the records do not have the size the journal states", path=source)
    stride = record_span(size)
    episode = step_episode(source, descriptor, _runs(records, stride))
    if len(records) and int(records.first_step[-1]) + 1 != len(records) and episode.timestamps_ns is None:
        # Steps in the middle are lost: those that remain keep the times they had.
        episode.timebase = Timebase("timestamps_ns", episode.timebase.tick_hz)
        times = np.round(records.first_step * (1e9 / episode.timebase.tick_hz)).astype(np.int64)
        episode.timestamps_ns = times
    return episode


def _runs(records: Records, stride: int) -> list[StepRun]:
    """Records that follow each other in the file, as runs."""
    if not len(records):
        return []
    breaks = np.flatnonzero(np.diff(records.offset) != stride) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((starts, [len(records)])))
    return [StepRun(int(records.offset[at]), int(n)) for at, n in zip(starts, counts, strict=True)]


def _receipt(source: str, target: str, episode: WShardEpisode, scan: Scan) -> LossReceipt:
    records = scan.records
    steps_seen = int(records.first_step.max()) + 1 if len(records) else 0
    lost: list[dict[str, Any]] = [
        {"start": each.start, "end": each.end, "why": each.why} for each in scan.lost
    ]
    if scan.is_cut:
        lost.append({"start": scan.end_offset, "why": "the journal was cut behind its last whole record"})
    return LossReceipt.of_steps(
        source,
        target,
        episode,
        lost[-1]["why"] if lost else "nothing was lost",
        steps_lost=steps_seen - episode.length,
        bytes_dropped=sum(each.end - each.start for each in scan.lost),
        damage=lost,
        last_crc32c=f"{scan.last_crc32c:08x}" if len(records) else None,
    )


def _is_chunk_list(source: str) -> bool:
    """By its role; where it cannot be opened, by its name and the chunks beside it."""
    with contextlib.suppress(WarpError):
        return ShardReader.open(source).role == ROLE_CHUNK_LIST
    folder, name = os.path.split(os.path.abspath(source))
    suffix = list_name("")
    return name.endswith(suffix) and bool(chunks_in(Path(folder), name.removesuffix(suffix)))


def _from_chunk_list(source: str, target: str, *, overwrite: bool) -> LossReceipt:
    """A list holds nothing that its chunks do not: a damaged one is written again from them."""
    findings = [each for each in verify_shard(source) if each.is_damage]
    if not findings:
        whole = "the list and its chunks are whole: nothing to salvage"
        return _what_is_in(source, source, None, ChunkedEpisodeReader(source).episode(), whole)
    stated = None
    with contextlib.suppress(WarpError):
        stated = read_chunk_list(source)
    listed = list_again(source, stated)
    for chunk in map(listed.chunk_path, listed.chunks):
        if any(each.is_damage for each in verify_shard(chunk)):
            hint = f"Restore it from a copy, or run `warp salvage {chunk}` first."
            raise CorruptLayoutError("a chunk of the list is damaged", path=chunk, hint=hint)
    aside = _save_over(partial(write_chunk_list, listed, target), source, target, overwrite=overwrite)
    why = f"the list was rewritten from its {listed.total_chunks} chunks"
    # A chunk may hold in itself and not be the one that the list knew.
    damage = [] if stated is None else [{"file": source, "why": each.message} for each in findings]
    episode = ChunkedEpisodeReader(target).episode()
    return _what_is_in(target, source, target, episode, why, damage=damage, kept_aside=aside)


def _from_foreign_file(source: str, target: str, *, overwrite: bool) -> LossReceipt:
    """A finished file: whole, or interleaved by a streaming writer, or damaged with blocks that still hold."""
    reader = MmapRangeReader(source)
    findings = [each for each in verify_shard(reader) if each.is_damage]
    if not findings:
        whole = "the file is whole: nothing to salvage"
        return _what_is_in(source, source, None, load_wshard(reader), whole)
    episode = repair_stream(reader)
    if episode is None:
        return _from_blocks(source, target, findings, overwrite=overwrite)
    aside = _save_over(
        partial(save_wshard, episode, target, overwrite=True), source, target, overwrite=overwrite
    )
    why = "blocks were interleaved by a streaming writer; their rows were put in order"
    return LossReceipt.of_steps(source, target, episode, why, kept_aside=aside)


def _from_blocks(
    source: str, target: str, findings: Sequence[FileFinding], *, overwrite: bool
) -> LossReceipt:
    intact = IntactBlocks(MmapRangeReader(source))
    episode = load_wshard(intact.shard())
    # Bytes whose partner is lost, rows without their clock or a clock without rows, are kept as plain bytes.
    episode.blocks = {
        _ORPHANS + name if name.startswith(_LANES) else name: data for name, data in episode.blocks.items()
    }
    kept = list(plan_shard(episode, target).sizes)
    # A packed directory lists its signals: those whose blocks are lost are no longer among them.
    if DIRECTORY_BLOCK in episode.blocks:
        names = {*kept, *(block.removeprefix("signal/") for block in kept)}
        episode.blocks[DIRECTORY_BLOCK] = directory_of(bytes(episode.blocks[DIRECTORY_BLOCK]), names)
    # What lost its partner has another name now, and is not stored as before.
    compression = {name: how for name, how in intact.compression().items() if name in kept}
    save = partial(save_wshard, episode, target, compression, overwrite=True)
    aside = _save_over(save, source, target, overwrite=overwrite)
    dropped = sum(each.size_bytes for each in intact.lost)
    why = f"every block holds, and was rewritten ({findings[0].message})"
    if intact.lost:
        why = f"{len(intact.lost)} of {len(intact.lost) + len(intact.blocks)} blocks could not be read"
    if intact.has_lost_times:
        why += f"; the times of the steps are lost: rows are kept by number, {episode.timebase.tick_hz:g} per second"
    damage = [each.to_json() for each in intact.lost]
    return _what_is_in(
        target, source, target, episode, why, bytes_dropped=dropped, damage=damage, kept_aside=aside
    )


def _what_is_in(
    shard: str, source: str, output: str | None, episode: WShardEpisode, why: str, **more: Any
) -> LossReceipt:
    """The receipt of a shard: by step, or by record where it is a packed recording, which need not have steps."""
    if DIRECTORY_BLOCK in episode.blocks:
        signals = _signals(episode_of_shard(ShardReader.open(shard)))
        return LossReceipt.of_records(source, output, episode.id, signals, why, **more)
    return LossReceipt.of_steps(source, output, episode, why, **more)


def _save_over(save: Callable[[], object], source: str, target: str, *, overwrite: bool) -> str | None:
    """Save, keeping the original if it is about to be replaced and may not go; returns the name it has then."""
    if overwrite or not os.path.lexists(target):
        save()
        return None
    if not os.path.samefile(source, target):
        check_free(target)
    # A second name: the first one always has a whole file, the old one or the new.
    aside = free_name(Path(target), ".bak")
    link_or_copy(target, aside)
    try:
        save()
    except BaseException:
        os.unlink(aside)
        raise
    return str(aside)


def _from_foreign_partial(
    source: str,
    target: str,
    channels: Sequence[Mapping[str, Any]] | None,
    flush_interval: int,
    *,
    overwrite: bool,
) -> LossReceipt:
    if channels is None:
        raise CorruptLayoutError(
            "a partial file of another program has no description of its contents",
            path=source,
            hint="Pass channels=[{'id', 'dtype', 'shape', 'lane'}, …] as they were given to that program.",
        )
    episode, dropped = repair_partial(MmapRangeReader(source), Path(target).stem, channels, flush_interval)
    save_wshard(episode, target, overwrite=overwrite)
    why = "steps after the last complete flush were never written" if dropped else "ends at a complete flush"
    return LossReceipt.of_steps(source, target, episode, why, bytes_dropped=dropped)
