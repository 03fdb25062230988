"""Turn what a crash left into a valid episode, and say exactly what was lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.ranges import FileRangeReader, MmapRangeReader
from warpdata.episodes.receipt import LossReceipt
from warpdata.episodes.salvage_folder import salvage_episode, salvage_single
from warpdata.episodes.step_journal import KIND, Run, step_episode
from warpdata.episodes.stream_writer import owner_of
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    CorruptLayoutError,
    FormatError,
    JournalInUseError,
    WarpError,
)
from warpdata.formats.journal.layout import record_span
from warpdata.formats.journal.reader import JournalReader, Records, Scan, is_journal, is_live
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.load import load_wshard
from warpdata.formats.wshard.repair import repair_partial, repair_stream
from warpdata.formats.wshard.save import save_wshard
from warpdata.formats.wshard.schema import Timebase

PARTIAL = ".partial"


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
    """Finish an interrupted recording: a `.partial`, its final path, an episode directory, a signal file."""
    if output is None:
        single = salvage_single(path)
        if single is not None:
            return single
        if os.path.isdir(path):
            return salvage_episode(path)
    source = _find(os.fspath(path))
    target = os.fspath(output) if output is not None else source.removesuffix(PARTIAL)
    with FileRangeReader(source) as reader:
        ours, is_empty = is_journal(reader), reader.size == 0
    if is_empty and source.endswith(PARTIAL):
        return _nothing_recorded(source)
    if ours:
        return _from_journal(source, target, progress, overwrite=overwrite, force=force)
    if source.endswith(PARTIAL):
        return _from_foreign_partial(source, target, channels, flush_interval, overwrite=overwrite)
    return _from_foreign_file(source, target, replace=output is None or overwrite)


def _find(path: str) -> str:
    partial = path if path.endswith(PARTIAL) else path + PARTIAL
    for candidate in (partial, path):
        if os.path.isfile(candidate):
            return candidate
    raise BlobNotFoundError("nothing to salvage here", path=path)


def _nothing_recorded(source: str) -> LossReceipt:
    """A recorder that died before its first step left an empty file: it is removed, and nothing is lost."""
    os.unlink(source)
    return LossReceipt(source, None, "", 0, 0, 0.0, {}, 0, "the recorder died before anything was recorded")


def _from_journal(
    source: str, target: str, progress: Callable[[int, int], None] | None, *, overwrite: bool, force: bool
) -> LossReceipt:
    if is_live(source) and not force:
        raise JournalInUseError(
            f"being recorded by {owner_of(source)}",
            path=source,
            hint="Stop that process first, then salvage.",
        )
    journal = JournalReader.open(source)
    if journal.descriptor.get("kind") != KIND:
        raise CorruptLayoutError(
            f"a journal of kind {journal.descriptor.get('kind')!r} is no episode", path=source
        )
    scan = journal.scan()
    episode = _episode(source, journal.descriptor, scan)
    receipt = _receipt(source, target, episode, scan)
    if _is_finished_already(target, episode):
        os.unlink(source)
        return receipt
    if os.path.exists(target) and not overwrite:
        raise ConflictError(
            "another file has the name of this recording", path=target,
            hint="Move it away, or give another output, or say overwrite.",
        )  # fmt: skip
    compat = "strict" if journal.descriptor.get("compat") == "strict" else "default"
    how = _compression(source, journal.descriptor)
    save_wshard(episode, target, how, compat=compat, progress=progress)
    os.unlink(source)
    return receipt


def _compression(source: str, descriptor: Mapping[str, Any]) -> dict[str, str]:
    channels = descriptor.get("channels", [])
    wanted = {
        f"{each['lane']}/{each.get('path') or each['id']}": each["compression"]
        for each in channels
        if each["compression"]
    }
    if not all(isinstance(each, str) for each in wanted.values()):
        raise CorruptLayoutError("the journal names an unknown compression", path=source)
    return wanted


def _episode(source: str, descriptor: Mapping[str, Any], scan: Scan) -> WShardEpisode:
    records = scan.records.of_stream(0)
    size = descriptor.get("payload_bytes")
    if not isinstance(size, int) or (len(records) and (records.payload_bytes != size).any()):
        raise CorruptLayoutError("the records do not have the size the journal says", path=source)
    stride = record_span(size)
    episode = step_episode(source, descriptor, _runs(records, stride), stride)
    if len(records) and int(records.first_step[-1]) + 1 != len(records):
        _keep_times(episode, records)
    return episode


def _runs(records: Records, stride: int) -> list[Run]:
    """Records that follow each other in the file, as runs."""
    if not len(records):
        return []
    breaks = np.flatnonzero(np.diff(records.offset) != stride) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((starts, [len(records)])))
    return [Run(int(records.offset[at]), int(n)) for at, n in zip(starts, counts, strict=True)]


def _keep_times(episode: WShardEpisode, records: Records) -> None:
    """Where steps in the middle are lost, those that remain keep the times they had."""
    if episode.timestamps_ns is None:
        times = np.round(records.first_step * (1e9 / episode.timebase.tick_hz)).astype(np.int64)
        episode.timebase = Timebase("timestamps_ns", episode.timebase.tick_hz)
        episode.timestamps_ns = times


def _receipt(source: str, target: str, episode: WShardEpisode, scan: Scan) -> LossReceipt:
    records = scan.records
    steps_seen = int(records.first_step[-1]) + 1 if len(records) else 0
    times = episode.times_ns()
    lost = [{"start": each.start, "end": each.end, "why": each.why} for each in scan.damage]
    return LossReceipt(
        source=source,
        output=target,
        episode_id=episode.id,
        steps_kept=episode.length,
        steps_lost=steps_seen - episode.length,
        time_kept_s=float(times[-1] - times[0]) / 1e9 if episode.length else 0.0,
        channels={name: channel.length for name, channel in episode.lanes()},
        bytes_dropped=scan.dropped_bytes,
        why=scan.damage[-1].why if scan.damage else "nothing was lost",
        damage=lost,
        last_crc32c=f"{scan.last_crc32c:08x}" if len(records) else None,
    )


def _is_finished_already(target: str, episode: WShardEpisode) -> bool:
    """A crash between the rename and the removal of the journal leaves both, with the same contents."""
    if not os.path.exists(target):
        return False
    try:
        return load_wshard(target) == episode
    except WarpError:
        return False


def _from_foreign_file(source: str, target: str, *, replace: bool) -> LossReceipt:
    try:
        episode = load_wshard(source)
    except FormatError:
        episode = repair_stream(MmapRangeReader(source))
    else:
        return _foreign_receipt(source, None, episode, 0, "the file is whole: nothing to salvage")
    if os.path.exists(target) and not replace:
        raise ConflictError("the output exists already", path=target, hint="Give another output.")
    save_wshard(episode, target)
    why = "blocks were interleaved by a streaming writer; their rows were put in order"
    return _foreign_receipt(source, target, episode, 0, why)


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
            "a partial file of another program does not say what it holds",
            path=source,
            hint="Pass channels=[{'id', 'dtype', 'shape', 'lane'}, …] as they were given to that program.",
        )
    if os.path.exists(target) and not overwrite:
        raise ConflictError("another file has the name of this recording", path=target)
    episode, dropped = repair_partial(MmapRangeReader(source), Path(target).stem, channels, flush_interval)
    save_wshard(episode, target)
    why = "steps after the last complete flush were never written" if dropped else "ends at a complete flush"
    return _foreign_receipt(source, target, episode, dropped, why)


def _foreign_receipt(
    source: str, target: str | None, episode: WShardEpisode, dropped: int, why: str
) -> LossReceipt:
    seconds = (episode.length - 1) / episode.timebase.tick_hz if episode.length else 0.0
    return LossReceipt(
        source, target, episode.id, episode.length, 0, seconds,
        {name: channel.length for name, channel in episode.lanes()}, dropped, why,
    )  # fmt: skip
