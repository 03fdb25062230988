"""Computing a lane over published episodes, and publishing it beside them without touching them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.commit import make_folders, write_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.locks import FileLock
from warpdata.catalog.build.adding import check_free, publish_part
from warpdata.catalog.build.stored import packed_bytes
from warpdata.catalog.dataset import Dataset
from warpdata.catalog.lanes.lane import (
    ABOUT,
    LANE_NAME,
    SUFFIX,
    LaneAbout,
    LanePlace,
    check_lane_shard,
    part_name,
    signal_name,
)
from warpdata.catalog.publish.publish import Published, PublishOptions
from warpdata.catalog.publish.transfer import upload_bytes, upload_file
from warpdata.catalog.read.artifact_contents import PublishedSource
from warpdata.episodes.collection.episodes import code_name
from warpdata.episodes.collection.jobs import Called, Here, Runner
from warpdata.episodes.sources.opening import episode_of_shard
from warpdata.errors import ConflictError, DatasetError, NoLocksError, WarpError, nearest
from warpdata.formats.manifest.model import EPISODE_KIND, LANE_KIND, BlobRef
from warpdata.formats.wshard.reader import ShardReader
from warpdata.stores.blobstore import digest_file
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta, numeric_kind
from warpdata.timeline.signal import Signal

Predict = Callable[[Episode], Any]


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """Which lane, of which signals; `revision` None means the code of the function."""

    name: str
    of: tuple[str, ...]
    revision: str | None = None

    def __post_init__(self) -> None:
        if not LANE_NAME.fullmatch(self.name):
            raise ValueError(f"not a name for a lane: {self.name!r}; use letters, digits, `_`, `-` and `.`")
        if not self.of or len(set(self.of)) != len(self.of):
            raise ValueError(f"of names the signals that are predicted, each once, not {list(self.of)}")
        if self.revision is not None and not self.revision:
            raise ValueError("a revision is a word that changes when the predictions do")


@dataclass(frozen=True, slots=True)
class LaneMade:
    """What became of a lane."""

    published: Published
    computed: int
    """Episodes that were computed now."""
    resumed: int
    """Episodes that a run which was stopped had computed."""
    reused: int
    """Episodes that had not changed since the lane was last published."""
    without: tuple[str, ...]
    """Episodes that do not have the signals."""

    @property
    def version(self) -> str:
        """The version that has the lane."""
        return self.published.version

    def __str__(self) -> str:
        return str(self.published)


@dataclass(frozen=True)
class LaneTask:
    """Computes the predictions about the episode at a position; it travels to other processes."""

    sources: Mapping[str, PublishedSource]
    places: Sequence[LanePlace]
    about: LaneAbout
    function: Called

    def __call__(self, position: int) -> bytes | tuple[str, ...]:
        """A shard of predictions; of an episode that lacks the signals, those that it has."""
        place = self.places[position]
        episode = self.sources[place.artifact].open_member(place.member)
        if not set(self.about.signals.values()) <= set(episode.signals):
            return (episode.id, *episode.signals)
        return packed_bytes(_predicted(self.function, episode, self.about, place), episode.id)


def make_lane(
    dataset: Dataset,
    wanted: LaneOptions,
    function: Predict,
    options: PublishOptions,
    progress: Callable[[int, int], None] | None = None,
    runner: Runner | None = None,
) -> LaneMade:
    """Compute what is missing, keep what holds, publish both on top of the newest version."""
    about = LaneAbout(
        wanted.name, {signal_name(of, wanted.name): of for of in wanted.of}, wanted.revision or code_name(function)
    )  # fmt: skip
    check_free(dataset, part_name(about.name), LANE_KIND)
    places = _places(dataset)
    folder = _folder(dataset, about)
    with _alone(folder):
        held = _held(dataset, about, places)
        files = {place: _file(folder, place) for place in places if place not in held}
        missing = [
            at
            for at, place in enumerate(places)
            if place in files and not _is_whole(files[place], about, place)
        ]
        resumed, done = len(files) - len(missing), len(places) - len(missing)
        without: dict[int, str] = {}
        seen: dict[str, None] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if progress is not None:
            progress(done, len(places))
        task = LaneTask(_sources(dataset), places, about, Called(function))
        for position, made in (runner or Here()).run(task, missing):
            if isinstance(made, bytes):
                write_file(files[places[position]], made, durable=False)
            else:
                without[position], *known = made
                seen |= dict.fromkeys(known)
                del files[places[position]]
            done += 1
            if progress is not None:
                progress(done, len(places))
        if not files and not held:
            known = [name for name in seen if name not in about.signals]
            hint = "".join(nearest(name, known) for name in wanted.of if name not in seen)
            raise DatasetError(
                f"no episode of {dataset.id} has {' and '.join(map(repr, wanted.of))}; there are "
                f"{', '.join(known) or 'no episodes'}.{hint}"
            )
        published = _publish(dataset, about, files, options)
        shutil.rmtree(folder, ignore_errors=True)
    lacking = tuple(without[position] for position in sorted(without))
    return LaneMade(published, len(missing) - len(without), resumed, len(held), lacking)


def _places(dataset: Dataset) -> list[LanePlace]:
    """The bytes of every episode."""
    return [place for source in _sources(dataset).values() for place in source.places()]


def _sources(dataset: Dataset) -> dict[str, PublishedSource]:
    names = [name for name in dataset.artifacts if dataset.artifact(name).kind == EPISODE_KIND]
    return {name: dataset.episodes_source(name) for name in names}


def _folder(dataset: Dataset, about: LaneAbout) -> Path:
    """Where finished episodes wait for the others; a run of the same lane finds them there."""
    identity = dump_json({"dataset": dataset.id, "catalog": dataset.catalog.place, **about.to_json()})
    cache = Path(os.path.expanduser(dataset.access.options.cache_dir))
    return cache / "lanes" / sha256_hex(identity)[:24]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else computes the lane on this machine meanwhile: one would take away what the other has finished."""
    make_folders(folder.parent)
    try:
        lock = FileLock.take(folder.with_suffix(".lock"), removes=True)
    except NoLocksError:
        yield
        return
    if lock is None:
        hint = "Wait until that is done: what it publishes is not computed again."
        raise ConflictError("this lane is being computed by somebody else", path=folder, hint=hint)
    with lock:
        yield


def _file(folder: Path, place: LanePlace) -> Path:
    return folder / f"{sha256_hex(place.lane_member.encode())[:40]}{SUFFIX}"


def _held(dataset: Dataset, about: LaneAbout, places: Sequence[LanePlace]) -> set[LanePlace]:
    """The bytes for which the lane, as it is published in a version, holds already."""
    lane = dataset.lanes.get(about.name)
    if lane is None or lane.about != about:
        return set()
    return {place for place, has in zip(places, lane.has(places), strict=True) if has}


def _is_whole(path: Path, about: LaneAbout, place: LanePlace) -> bool:
    """Whether a file holds these very predictions, every byte of them as it was written."""
    try:
        with ShardReader.open(path) as shard:
            source = episode_of_shard(shard).source
            check_lane_shard(source, about, place, str(path))
            for signal in source.signals.values():
                signal.values()
                _ = signal.timestamps
    except (WarpError, OSError):
        return False
    return True


def _predicted(function: Called, episode: Episode, about: LaneAbout, place: LanePlace) -> Episode:
    """What the function says about an episode, as an episode of predictions only."""
    said = function.on_episode(episode)
    of = list(about.signals.values())
    if not isinstance(said, Mapping):
        if len(of) > 1:
            raise TypeError(f"the lane is of {', '.join(of)}: give a dictionary with a prediction for each")
        said = {of[0]: said}
    if set(said) != set(of):
        wrong = next(iter(sorted({str(each) for each in set(said) ^ set(of)})))
        raise ValueError(
            f"the function gave {', '.join(map(str, said))}, the lane is of {', '.join(of)}: {wrong!r}"
        )
    signals = {
        name: _checked(said[each], episode.signals[each], each, about.name)
        for name, each in about.signals.items()
    }
    note = {"name": about.name, "revision": about.revision, "source": place.sha256}
    return Episode.of(signals, meta={"lane": note}, id=episode.id)


def _checked(said: Any, truth: Signal, of: str, model: str) -> Signal:
    """A prediction as a signal: numbers, shaped like what they are about."""
    if isinstance(said, Signal):
        times, values = said.timestamps, said.values()
    else:
        times, values = truth.timestamps, as_array(said)
        if values.dtype.name == "bfloat16":
            values = values.astype(np.float32)
        if values.ndim == 0 or len(values) != len(truth):
            raise ValueError(
                f"a prediction of {of!r} has shape {values.shape}; give a row for each of its {len(truth)} records, "
                "or a Signal with times of its own"
            )
    if values.dtype.kind not in "biuf":
        raise TypeError(f"a prediction of {of!r} is numbers, not {values.dtype}")
    if values.shape[1:] != truth.meta.shape:
        raise ValueError(
            f"a prediction of {of!r} has values of shape {list(values.shape[1:])}, those of the signal have "
            f"{list(truth.meta.shape)}"
        )
    shape = truth.meta.shape
    meta = SignalMeta(
        values.dtype, shape, numeric_kind(shape), truth.meta.units, truth.meta.names,
        role="prediction", of=of, model=model,
    )  # fmt: skip
    return ArraySignal(np.array(times), np.ascontiguousarray(values), meta)


def _publish(
    dataset: Dataset, about: LaneAbout, files: Mapping[LanePlace, Path], options: PublishOptions
) -> Published:
    digests = {place: digest_file(path) for place, path in files.items()}
    fresh = {
        place: BlobRef(digest.sha256, digest.size, name=place.lane_member) for place, digest in digests.items()
    }  # fmt: skip
    text = upload_bytes(dump_json(about.to_json()))
    early = [text, *(upload_file(path, digests[place], is_staged=False) for place, path in files.items())]

    def shards_for(base: Dataset) -> list[BlobRef]:
        """What was computed now, and what holds of the lane as the newest version has it."""
        places = _places(base)
        shards = [BlobRef(text.sha256, text.size, name=ABOUT)]
        shards += [fresh[place] for place in places if place in fresh]
        held = [place for place in _held(base, about, places) if place not in fresh]
        if held:
            artifact = base.lanes[about.name].artifact
            kept = artifact.find([place.lane_member for place in held])
            shards += [replace(artifact.part.shards[member.shard], uri=None) for member in kept]
        return shards

    return publish_part(dataset, part_name(about.name), LANE_KIND, shards_for, early, options)
