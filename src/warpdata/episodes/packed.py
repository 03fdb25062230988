"""Pack an episode directory into one `.wshard` and back, losing nothing; play video inside the shard."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.commit import commit_file, commit_folder, write_file
from warpdata.bytekit.dtype import dtype_of
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.ranges import PartRangeReader, RangeReader
from warpdata.episodes.disk_episode import DiskEpisode
from warpdata.episodes.edits import EditedEpisode, shown
from warpdata.episodes.lanes import Spool
from warpdata.episodes.rerecord import identity, record_again
from warpdata.episodes.shard_episode import DIRECTORY_BLOCK, ChannelSignals, ShardEpisode
from warpdata.episodes.signals import SimpleSignal, VideoSignal, open_bytes, signal_meta
from warpdata.episodes.statistics import ClockStatistics
from warpdata.errors import ChecksumError, CorruptLayoutError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    FileSum,
    plain_static,
    restored_static,
    write_meta,
    write_static,
)
from warpdata.formats.episodedir.frame_index import FrameIndex, parse_frame_index, write_frame_index
from warpdata.formats.episodedir.names import check_name, signal_file
from warpdata.formats.episodedir.signal_file import Description, parse_signal
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.compression import CompressionChoice, check_compat
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.load import load_wshard
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.save import save_wshard
from warpdata.formats.wshard.schema import DEFAULT_TICK_HZ, check_channel_id
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal

VIDEO_PREFIX = "video/"
FRAMES_PREFIX = "aux/frames/"
TABLE_PREFIX = "aux/table/"
_ACTION = "action/"
_COPY_BYTES = 4 << 20


def pack_episode(
    episode: str | os.PathLike[str] | Episode,
    output: str | os.PathLike[str],
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    raw: bool = False,
) -> Path:
    """Write an episode directory as one shard, as the edits of its dataset show it; video keeps its encoded bytes.

    `raw` packs the recording as it was made. Where edits cut or join cameras, those are encoded again.
    """
    check_compat(compat)
    source = _as_recorded(episode) if raw else shown(episode)
    if isinstance(source, EditedEpisode) and not source.is_whole:
        with tempfile.TemporaryDirectory(prefix=".warpdata-", dir=Path(output).absolute().parent) as scratch:
            return _pack(
                DiskEpisode(record_again(source, Path(scratch) / "edited")), output, compression, compat
            )
    return _pack(source, output, compression, compat)


def _as_recorded(episode: str | os.PathLike[str] | Episode) -> Episode:
    if isinstance(episode, EditedEpisode):
        return episode.recording
    return episode if isinstance(episode, Episode) else DiskEpisode(episode)


def _pack(
    source: Episode, output: str | os.PathLike[str], compression: CompressionChoice, compat: str
) -> Path:
    meta, signals = dict(source.meta), source.signals
    if isinstance(source, EditedEpisode):
        meta["uid"], signals = identity(source), source.recording.signals
    packed = WShardEpisode(str(meta.get("uid") or getattr(source, "id", "")))
    stored: dict[str, str] = {}
    for name, signal in signals.items():
        stored[name] = _add_signal(packed, name, signal)
    static = {name: plain_static(name, value) for name, value in source.static.items()}
    about = {"meta": meta, "static": static, "signals": stored}
    packed.blocks = {DIRECTORY_BLOCK: dump_json(about), **packed.blocks}
    save_wshard(packed, output, compression, compat=compat)
    return Path(output)


def _add_signal(packed: WShardEpisode, name: str, signal: Signal) -> str:
    """Put one signal into the shard; returns how it is stored."""
    if isinstance(signal, VideoSignal):
        signal.check()
        suffix = Path(signal.path).suffix
        packed.blocks[f"{VIDEO_PREFIX}{name}{suffix}"] = open_bytes(signal.path, signal.folder)
        packed.blocks[FRAMES_PREFIX + name] = _frame_index(signal)
        return f"video{suffix}"
    assert isinstance(signal, SimpleSignal)
    if signal.meta.is_object or not _is_channel_id(name.removeprefix(_ACTION)):
        signal.values()  # checked: damage must not get a valid checksum in the shard
        packed.blocks[TABLE_PREFIX + name] = open_bytes(signal.path, signal.folder)
        return "table"
    about = {"kind": signal.meta.kind, "unit": signal.meta.units}
    if signal.meta.names is not None:
        about["names"] = list(signal.meta.names)  # type: ignore[assignment]
    kept = {key: value for key, value in about.items() if value is not None}
    lane, key = (
        (packed.actions, name[len(_ACTION) :]) if name.startswith(_ACTION) else (packed.observations, name)
    )
    lane[key] = Channel(key, signal.values(), timestamps_ns=np.array(signal.timestamps), about=kept)
    return "channel"


def _frame_index(signal: VideoSignal) -> RangeReader | bytes:
    """The index as it is; that of another writer with what it takes to play the video from inside a shard."""
    index = signal.complete_index()
    if index is None:
        return open_bytes(signal.frames_path, signal.folder)
    clock, out = ClockStatistics(), io.BytesIO()
    clock.add(index.ts_ns)
    write_frame_index(out, index, clock.to_json().get("rate_hz", DEFAULT_TICK_HZ))
    return out.getvalue()


def _is_channel_id(name: str) -> bool:
    try:
        check_channel_id(name)
    except ValueError:
        return False
    return True


def directory_of(about: bytes, blocks: Collection[str]) -> bytes:
    """The directory block without the signals whose blocks are not among these names."""
    found = parse_json_object(about)
    kept = {name: how for name, how in found["signals"].items() if set(_blocks_of(name, how)) <= set(blocks)}
    lost = set(found["signals"]) - set(kept)
    meta = found["meta"]
    if isinstance(meta.get("signals"), dict):
        meta["signals"] = {name: each for name, each in meta["signals"].items() if name not in lost}
    return dump_json({**found, "meta": meta, "signals": kept})


def _blocks_of(name: str, how: str) -> list[str]:
    """Where a signal lies: its channel, its table, or its video and frame index."""
    if how.startswith("video"):
        return [f"{VIDEO_PREFIX}{name}{how.removeprefix('video')}", FRAMES_PREFIX + name]
    return [TABLE_PREFIX + name if how == "table" else name]


def is_packed(shard: ShardReader) -> bool:
    """Whether a shard holds a packed episode directory."""
    return DIRECTORY_BLOCK in shard


class PackedEpisode(ShardEpisode):
    """A packed directory opened in place: the same names, signals, static items and metadata."""

    def __init__(self, shard: ShardReader) -> None:
        self._shard = shard
        about = shard.read_json(DIRECTORY_BLOCK)
        try:
            self._stored: dict[str, str] = {str(k): str(v) for k, v in about["signals"].items()}
            static = {name: restored_static(value) for name, value in about["static"].items()}
            meta = dict(about["meta"])
        except (KeyError, TypeError, AttributeError):
            raise CorruptLayoutError("what the directory said is damaged", block=DIRECTORY_BLOCK) from None
        wanted = [name.removeprefix(_ACTION) for name, how in self._stored.items() if how == "channel"]
        super().__init__(load_wshard(shard, channels=wanted), static=static, meta=meta)
        self._signals = _PackedSignals(shard, self._stored, ChannelSignals(self.tensors))

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedEpisode, (self._shard,))


class _PackedSignals(Mapping[str, Signal]):
    def __init__(self, shard: ShardReader, stored: Mapping[str, str], channels: Mapping[str, Signal]) -> None:
        self._shard = shard
        self._stored = stored
        self._channels = channels
        self._made: dict[str, Signal] = {}

    def __getitem__(self, name: str) -> Signal:
        if name not in self._made:
            how = self._stored[name]
            if how.startswith("video"):
                self._made[name] = ShardVideo(self._shard, name, how.removeprefix("video"))
            elif how == "table":
                self._made[name] = _table(self._shard, name)
            else:
                self._made[name] = self._channels[name]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _table(shard: ShardReader, name: str) -> Signal:
    block = TABLE_PREFIX + name
    description, stamps, values = parse_signal(shard.read(block), f"{shard.path}#{block}")
    return ArraySignal(stamps, values, signal_meta(description))


class ShardVideo(VideoSignal):
    """A camera inside a shard, played by reading only the frames it needs."""

    def __init__(self, shard: ShardReader, name: str, suffix: str) -> None:
        self._shard = shard
        self._name = name
        self._suffix = suffix
        super().__init__(f"{shard.path}#{VIDEO_PREFIX}{name}{suffix}", f"{shard.path}#{FRAMES_PREFIX}{name}")

    def _read_index(self, _expected: FileSum | None) -> FrameIndex:
        return parse_frame_index(self._shard.read(FRAMES_PREFIX + self._name), self.frames_path)

    def _bytes(self) -> RangeReader:
        block = self._shard.block(f"{VIDEO_PREFIX}{self._name}{self._suffix}")
        if block.codec != "none":
            raise CorruptLayoutError("video in a shard is never compressed again", block=block.name)
        return PartRangeReader(self._shard.range_reader, block.data_offset, block.disk_size, self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardVideo, (self._shard, self._name, self._suffix))


def unpack_episode(shard_path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> Path:
    """Write a packed episode as a directory again: values, times, metadata and video as they were."""
    shard = ShardReader.open(shard_path)
    if not is_packed(shard):
        raise CorruptLayoutError("not a packed episode directory", path=shard.path, hint="Use `warp chunk`.")
    episode = PackedEpisode(shard)
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    with commit_folder(target) as folder:
        signals = dict(episode.meta.get("signals") or {})
        for name in episode.signals:
            _write_signal(folder, check_name(name), episode, signals)
        total = FileSum.of(write_static(folder, {n: plain_static(n, v) for n, v in episode.static.items()}))
        meta = {**episode.meta, "signals": signals} if signals else dict(episode.meta)
        meta["static_file"] = {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"}
        write_meta(folder, meta)
    return target


def _write_signal(folder: Path, name: str, episode: PackedEpisode, signals: dict[str, Any]) -> None:
    shard, how = episode._shard, episode._stored[name]
    signal_file(folder, name).parent.mkdir(parents=True, exist_ok=True)
    if how.startswith("video"):
        suffix = how.removeprefix("video")
        _copy_block(shard, f"{VIDEO_PREFIX}{name}{suffix}", signal_file(folder, name, suffix))
        _copy_block(shard, FRAMES_PREFIX + name, signal_file(folder, name, layout.FRAMES_SUFFIX))
    elif how == "table":
        _copy_block(shard, TABLE_PREFIX + name, signal_file(folder, name))
    else:
        signal = episode.signals[name]
        made = _write_table(folder, name, signal)
        if name in signals:
            signals[name] = {**signals[name], "file": made["file"]}


def _copy_block(shard: ShardReader, name: str, target: Path) -> None:
    """Write a raw block as a file of its own, a piece at a time, checked before it has its name."""
    block, checksum = shard.block(name), 0
    if block.codec != "none":
        write_file(target, shard.read(name))
        return
    part = PartRangeReader(shard.range_reader, block.data_offset, block.disk_size, f"{shard.path}#{name}")
    with commit_file(target) as out:
        for start in range(0, part.size, _COPY_BYTES):
            piece = part.read(start, min(start + _COPY_BYTES, part.size))
            checksum = crc32c(piece, checksum)
            out.write(piece)
        if checksum != block.crc32c:
            raise ChecksumError("its bytes do not match their checksum", block=name, path=shard.path)


def _write_table(folder: Path, name: str, signal: Signal) -> dict[str, Any]:
    meta = signal.meta
    description = Description(meta.kind, dtype_of(meta.dtype).name, meta.shape, meta.units, meta.names)
    target = signal_file(folder, name)
    spool = Spool(target.with_name(f".{target.name}.part"), description)
    step = max(1, (4 << 20) // max(1, meta.dtype.itemsize * int(np.prod(meta.shape, dtype=np.int64))))
    for start in range(0, len(signal), step):
        part = signal[start : start + step]
        spool.write(np.array(part.timestamps), np.array(part.values()))
    return spool.commit(target)
