"""The folder in which a recording is made: its journals, the lanes of its signals, the thread behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warpdata.bytekit.commit import fsync_folder, map_os_errors
from warpdata.episodes.background import Background
from warpdata.episodes.camera import CameraLane, VideoFile
from warpdata.episodes.journals import FrameRing, Shelf, remove_folder
from warpdata.episodes.lanes import EventLane, NumberLane, Spool
from warpdata.episodes.recorder import Durability
from warpdata.episodes.values import Hints, as_numbers, as_timestamp, describe
from warpdata.errors import JournalInUseError
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, choose_codec
from warpdata.formats.episodedir.signal_file import Description

Lane = NumberLane | EventLane | CameraLane

_SPOOL_BLOCKS = 64
_SPOOL_DELAY_S = 0.5


class Workbench:
    """Journals and lanes of one recording, of an episode or of a single signal, until its files are done."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], durability: Durability) -> None:
        self.folder = folder
        self._durability = durability
        self._streams = 0
        with map_os_errors(folder):
            try:
                folder.mkdir()
            except FileExistsError:
                raise JournalInUseError(
                    "a recording is under way here, or was never finished", path=folder,
                    hint="Wait for its recorder; if it was killed, run `warp salvage`, then record again.",
                ) from None  # fmt: skip
            self._shelf = Shelf(folder, facts, durability)
            fsync_folder(folder.parent)
        self._spooler = Background("warp-spool", _SPOOL_BLOCKS, delay_s=_SPOOL_DELAY_S)

    def lane(self, name: str, data: Any, ts_ns: Any, hints: Hints, options: VideoOptions) -> Lane:
        """The lane of a new signal, made from its first value; that value is not recorded yet."""
        as_timestamp(ts_ns)
        description = describe(name, data, hints)
        # A stream that could not be made is never tried again under the same number: its files may exist.
        self._streams += 1
        if description.kind == "image":
            return self._camera(name, description, options, FrameShape.of(as_numbers(data)))
        return self._table(name, description, is_declared=hints.dtype is not None)

    def note(self, fact: Mapping[str, Any]) -> None:
        """Journal a fact about the recording itself."""
        self._shelf.note(fact)

    def settle(self, lanes: Mapping[str, Lane]) -> None:
        """Bring every number and event into its parquet file; raises what went wrong in the background."""
        for lane in lanes.values():
            if not isinstance(lane, CameraLane):
                lane.close()
        self._spooler.finish()
        self._shelf.check()

    def remove(self) -> None:
        """The recording is finished: its journals are no longer needed."""
        self._shelf.close(durable=False)
        remove_folder(self.folder)

    def let_go(self, lanes: Mapping[str, Lane]) -> None:
        """Stop all threads and close all files, leaving them as they are."""
        self._spooler.cancel()
        for lane in lanes.values():
            lane.cancel()
        self._shelf.close()

    def _table(self, name: str, description: Description, *, is_declared: bool) -> Lane:
        stream = self._streams
        self.note({"signal": {"stream": stream, "name": name, **description.to_json()}})
        spool = Spool(self.folder / f"{stream}.parquet", description)
        if description.kind in ("text", "bytes"):
            return EventLane(name, stream, spool, self._shelf, self._spooler)
        return NumberLane(name, stream, spool, self._shelf, self._spooler, converts=is_declared)

    def _camera(self, name: str, description: Description, options: VideoOptions, shape: FrameShape) -> Lane:
        stream, settings = self._streams, {**asdict(options), "codec": choose_codec(shape, options)}
        about = {"stream": stream, "name": name, **description.to_json(), "video": settings}
        with contextlib.ExitStack() as made:
            video = VideoFile(self.folder / str(stream), shape, options, description=description)
            made.callback(video.close)
            facts = {"signal": about}
            ring = FrameRing(self.folder, stream, facts, shape.nbytes, self._durability, self._shelf)
            made.callback(ring.close)
            self.note({"signal": about})
            lane = CameraLane(
                name, video, ring, lambda found: self.note({"video": {"stream": stream, **found.to_json()}})
            )
            made.pop_all()
        return lane
