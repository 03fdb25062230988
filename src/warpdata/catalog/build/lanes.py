"""Compute a prediction lane over published episodes, and publish it beside them."""

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
from warpdata.catalog.build.episodes import packed_bytes
from warpdata.catalog.build.extend import check_free, publish_part
from warpdata.catalog.dataset import Dataset
from warpdata.catalog.publish.publish import Published, PublishOptions
from warpdata.catalog.publish.transfer import Uploads
from warpdata.catalog.read.episodes import (
    ABOUT,
    LANE_NAME,
    PART_PREFIX,
    SUFFIX,
    LaneAbout,
    LanePlace,
    PublishedSource,
    check_lane_shard,
    signal_name,
)
from warpdata.episodes.collection.jobs import Called, Here, Runner, code_name
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import ConflictError, DatasetError, NoLocksError, WarpError, nearest
from warpdata.formats.manifest.model import LANE_KIND, BlobRef
from warpdata.formats.wshard.reader import ShardReader
from warpdata.stores.blobstore import digest_file
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta, numeric_kind
from warpdata.timeline.signal import Signal

Predict = Callable[[Episode], Any]


@dataclass(frozen=True, slots=True)
class LaneMade:
    """Result of computing a lane."""

    published: Published
    computed: int
    """Episodes that were computed now."""
    resumed: int
    """Episodes that an earlier run, which was stopped, had computed."""
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
        place, about = self.places[position], self.about
        episode = self.sources[place.artifact].open_member(place.member)
        of = list(about.signals.values())
        if not set(of) <= set(episode.signals):
            return (episode.id, *episode.signals)
        predicted = self.function.on_episode(episode)
        if not isinstance(predicted, Mapping):
            if len(of) > 1:
                raise TypeError(
                    f"the lane is of {', '.join(of)}: give a dictionary with a prediction for each"
                )
            predicted = {of[0]: predicted}
        if set(predicted) != set(of):
            wrong = min(str(name) for name in set(predicted) ^ set(of))
            fact = f"the function gave {', '.join(map(str, predicted))}, the lane is of {', '.join(of)}: {wrong!r}"
            raise ValueError(fact)
        signals = {
            name: _prediction(predicted[truth], episode.signals[truth], truth, about.name)
            for name, truth in about.signals.items()
        }
        note = {"name": about.name, "revision": about.revision, "source": place.sha256}
        return packed_bytes(Episode.of(signals, meta={"lane": note}, id=episode.id), episode.id)


def make_lane(
    dataset: Dataset,
    name: str,
    of: tuple[str, ...],
    revision: str | None,
    function: Predict,
    options: PublishOptions,
    progress: Callable[[int, int], None] | None = None,
    runner: Runner | None = None,
) -> LaneMade:
    """Compute missing predictions, keep current ones, publish both on top of the newest version."""
    if not LANE_NAME.fullmatch(name):
        raise ValueError(f"not a name for a lane: {name!r}; use letters, digits, `_`, `-` and `.`")
    if not of or len(set(of)) != len(of):
        raise ValueError(f"of names the signals that are predicted, each once, not {list(of)}")
    if revision == "":
        raise ValueError("a revision is a word that changes when the predictions do")
    signals = {signal_name(truth, name): truth for truth in of}
    about = LaneAbout(name, signals, revision or code_name(function))
    check_free(dataset, f"{PART_PREFIX}{name}", LANE_KIND)
    places = _places(dataset)
    # Finished episodes wait here for the others; a later run of the same lane resumes from them.
    identity = dump_json({"dataset": dataset.id, "catalog": dataset.catalog.place, **about.to_json()})
    cache = Path(os.path.expanduser(dataset.access.options.cache_dir))
    folder = cache / "lanes" / sha256_hex(identity)[:24]
    with _locked(folder):
        current = _current(dataset, about, places)
        files = {
            place: folder / f"{sha256_hex(place.lane_member.encode())[:40]}{SUFFIX}"
            for place in places
            if place not in current
        }
        missing = [at for at, p in enumerate(places) if p in files and not _is_intact(files[p], about, p)]
        resumed, done = len(files) - len(missing), len(places) - len(missing)
        without: dict[int, str] = {}
        seen: dict[str, None] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if progress is not None:
            progress(done, len(places))
        task = LaneTask(dataset.episode_sources(), places, about, Called(function))
        for position, result in (runner or Here()).run(task, missing):
            if isinstance(result, bytes):
                write_file(files[places[position]], result, durable=False)
            else:
                without[position], *names = result
                seen |= dict.fromkeys(names)
                del files[places[position]]
            done += 1
            if progress is not None:
                progress(done, len(places))
        if not files and not current:
            known = [signal for signal in seen if signal not in about.signals]
            hint = "".join(nearest(signal, known) for signal in of if signal not in seen)
            fact = f"no episode of {dataset.id} has {' and '.join(map(repr, of))}"
            raise DatasetError(f"{fact}; there are {', '.join(known) or 'no episodes'}.{hint}")
        published = _publish(dataset, about, files, options)
        shutil.rmtree(folder, ignore_errors=True)
    lacking = tuple(without[position] for position in sorted(without))
    return LaneMade(published, len(missing) - len(without), resumed, len(current), lacking)


def _places(dataset: Dataset) -> list[LanePlace]:
    """The bytes of every episode."""
    return [place for source in dataset.episode_sources().values() for place in source.places()]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a lane: a second computation on this machine would remove the files of the first."""
    make_folders(folder.parent)
    try:
        lock = FileLock.take(folder.with_suffix(".lock"), removes=True)
    except NoLocksError:
        yield
        return
    if lock is None:
        hint = "Wait until it is done: what it publishes is not computed again."
        raise ConflictError("this lane is being computed by another process", path=folder, hint=hint)
    with lock:
        yield


def _current(dataset: Dataset, about: LaneAbout, places: Sequence[LanePlace]) -> set[LanePlace]:
    """The bytes for which the published lane is current."""
    lane = dataset.lanes.get(about.name)
    if lane is None or lane.about != about:
        return set()
    return {place for place, has in zip(places, lane.has(places), strict=True) if has}


def _is_intact(path: Path, about: LaneAbout, place: LanePlace) -> bool:
    """Whether a file holds these predictions, all of them readable."""
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


def _prediction(predicted: Any, truth: Signal, of: str, model: str) -> Signal:
    """A prediction as a signal of numbers with the shape of the recorded signal."""
    if isinstance(predicted, Signal):
        times, values = predicted.timestamps, predicted.values()
    else:
        times, values = truth.timestamps, as_array(predicted)
        if values.dtype.name == "bfloat16":
            values = values.astype(np.float32)
        if values.ndim == 0 or len(values) != len(truth):
            raise ValueError(
                f"a prediction of {of!r} has shape {values.shape}; give a row for each of its {len(truth)} records, "
                "or a Signal with times of its own"
            )
    shape = truth.meta.shape
    if values.dtype.kind not in "biuf":
        raise TypeError(f"a prediction of {of!r} is numbers, not {values.dtype}")
    if values.shape[1:] != shape:
        fact = f"a prediction of {of!r} has values of shape {list(values.shape[1:])}"
        raise ValueError(f"{fact}, those of the signal have {list(shape)}")
    kind, units, names = numeric_kind(shape), truth.meta.units, truth.meta.names
    meta = SignalMeta(values.dtype, shape, kind, units, names, role="prediction", of=of, model=model)
    return ArraySignal(np.array(times), np.ascontiguousarray(values), meta)


def _publish(
    dataset: Dataset, about: LaneAbout, files: Mapping[LanePlace, Path], options: PublishOptions
) -> Published:
    uploads = Uploads()
    text = replace(uploads.add_bytes(dump_json(about.to_json())), name=ABOUT)
    fresh = {
        place: uploads.add_file(path, digest_file(path), is_own=False, name=place.lane_member)
        for place, path in files.items()
    }

    def shards_for(base: Dataset) -> list[BlobRef]:
        """The new predictions, and those of the published lane that are current."""
        places = _places(base)
        shards = [text, *(fresh[place] for place in places if place in fresh)]
        kept = [place for place in _current(base, about, places) if place not in fresh]
        if kept:
            artifact = base.lanes[about.name].artifact
            members = artifact.find([place.lane_member for place in kept])
            shards += [replace(artifact.part.shards[member.shard], uri=None) for member in members]
        return shards

    return publish_part(dataset, f"{PART_PREFIX}{about.name}", LANE_KIND, shards_for, uploads, options)
