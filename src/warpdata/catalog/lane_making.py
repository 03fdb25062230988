"""Computing a lane over published episodes, and publishing it beside them without touching them."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.catalog.access import Access, plain_address
from warpdata.catalog.dataset import Dataset
from warpdata.catalog.growing import grown_notes, publish_grown
from warpdata.catalog.lanes import (
    ABOUT,
    LANE_NAME,
    SUFFIX,
    LaneAbout,
    Place,
    check_lane_shard,
    part_name,
    signal_name,
)
from warpdata.catalog.names import DatasetName
from warpdata.catalog.publish import Published, PublishOptions
from warpdata.catalog.transfer import Upload, upload_bytes, upload_file
from warpdata.episodes.code_name import code_name
from warpdata.episodes.opening import episode_of_shard
from warpdata.episodes.packed import pack_episode
from warpdata.errors import DatasetError, WarpError, nearest
from warpdata.formats.manifest.fields import blob_of
from warpdata.formats.manifest.model import EPISODE_KIND, LANE_KIND, ArtifactPart, BlobRef, Manifest
from warpdata.formats.manifest.parts import packed_shards
from warpdata.formats.wshard.reader import ShardReader
from warpdata.stores.digest import digest_file
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


def make_lane(
    dataset: Dataset,
    wanted: LaneOptions,
    function: Predict,
    options: PublishOptions,
    progress: Callable[[int, int], None] | None = None,
) -> LaneMade:
    """Compute what is missing, keep what holds, publish both on top of the newest version."""
    about = LaneAbout(
        wanted.name, {signal_name(of, wanted.name): of for of in wanted.of}, wanted.revision or code_name(function)
    )  # fmt: skip
    _check_free(dataset, about)
    places = _places(dataset)
    folder = _folder(dataset, about)
    held = _held(dataset, about, list(places))
    counts = {"computed": 0, "resumed": 0, "reused": 0}
    without: list[str] = []
    files: dict[Place, Path] = {}
    seen: dict[str, None] = {}
    for number, (place, open_episode) in enumerate(places.items()):
        if progress is not None:
            progress(number, len(places))
        if place in held:
            counts["reused"] += 1
            continue
        target = folder / f"{sha256_hex(place.lane_member.encode())[:40]}{SUFFIX}"
        if _is_whole(target, about, place):
            counts["resumed"] += 1
        else:
            episode = open_episode()
            absent = [name for name in wanted.of if name not in episode.signals]
            if absent:
                seen |= dict.fromkeys(episode.signals)
                without.append(episode.id)
                continue
            made = _predicted(function, episode, about, place)
            pack_episode(made, target, episode_id=episode.id, overwrite=True)
            counts["computed"] += 1
        files[place] = target
    if progress is not None:
        progress(len(places), len(places))
    if not files and not held:
        known = [name for name in seen if name not in about.signals]
        hint = "".join(nearest(name, known) for name in wanted.of if name not in seen)
        raise DatasetError(
            f"no episode of {dataset.id} has {' and '.join(map(repr, wanted.of))}; there are "
            f"{', '.join(known) or 'no episodes'}.{hint}"
        )
    published = _publish(dataset, about, files, options)
    shutil.rmtree(folder, ignore_errors=True)
    return LaneMade(published, **counts, without=tuple(without))


def _places(dataset: Dataset) -> dict[Place, Callable[[], Episode]]:
    """The bytes of every episode, and how to open it."""
    found: dict[Place, Callable[[], Episode]] = {}
    for name in dataset.artifacts:
        if dataset.artifact(name).kind == EPISODE_KIND:
            source = dataset.episodes_source(name)
            for place in source.places():
                found[place] = lambda source=source, place=place: source.open_member(place.member)  # type: ignore[misc]
    return found


def _folder(dataset: Dataset, about: LaneAbout) -> Path:
    """Where finished episodes wait for the others; a run of the same lane finds them there."""
    identity = dump_json({"dataset": dataset.id, "catalog": dataset.catalog.address, **about.to_json()})
    cache = Path(os.path.expanduser(dataset.access.options.cache_dir))
    return cache / "lanes" / sha256_hex(identity)[:24]


def _held(dataset: Dataset, about: LaneAbout, places: Sequence[Place]) -> set[Place]:
    """The bytes for which the lane, as it is published in a version, holds already."""
    lane = dataset.lanes.get(about.name)
    if lane is None or lane.about != about:
        return set()
    return {place for place, has in zip(places, lane.has(places), strict=True) if has}


def _is_whole(path: Path, about: LaneAbout, place: Place) -> bool:
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


def _predicted(function: Predict, episode: Episode, about: LaneAbout, place: Place) -> Episode:
    """What the function says about an episode, as an episode of predictions only."""
    said = function(episode)
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
        if hasattr(said, "detach"):  # a tensor that may lie elsewhere and remember how it was made
            said = said.detach().cpu()
        times, values = truth.timestamps, np.asarray(said)
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
    dataset: Dataset, about: LaneAbout, files: Mapping[Place, Path], options: PublishOptions
) -> Published:
    digests = {place: digest_file(path) for place, path in files.items()}
    fresh = {
        place: BlobRef(digest.sha256, digest.size, name=place.lane_member) for place, digest in digests.items()
    }  # fmt: skip
    text = upload_bytes(dump_json(about.to_json()))
    early = [upload_file(path, digests[place], is_staged=False) for place, path in files.items()]

    def build(base: Dataset | None) -> tuple[Manifest, list[Upload]]:
        if base is None:
            raise DatasetError("the dataset is gone", path=dataset.id)
        places = list(_places(base))
        held = _held(base, about, places)
        shards = [BlobRef(text.sha256, text.size, name=ABOUT)]
        shards += [fresh[place] for place in places if place in fresh]
        if held:
            artifact = base.lanes[about.name].artifact
            kept = artifact.find(
                [place.lane_member for place in places if place in held and place not in fresh]
            )
            shards += [replace(artifact.part.shards[member.shard], uri=None) for member in kept]
        packed = packed_shards(tuple(sorted(shards, key=lambda shard: str(shard.name))), blob_of)
        manifest = Manifest(
            dataset_id=base.id,
            tables=base.manifest.tables,
            artifacts={
                **base.manifest.artifacts,
                part_name(about.name): ArtifactPart(LANE_KIND, packed.shards),
            },
            bindings=base.manifest.bindings,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            metadata=grown_notes(base, {}),
        )
        return manifest, [*early, text, *(upload_bytes(data) for data in packed.blobs.values())]

    with contextlib.closing(_access(dataset)) as access:
        return publish_grown(access, DatasetName(dataset.id), build, early, options)


def _check_free(dataset: Dataset, about: LaneAbout) -> None:
    name = part_name(about.name)
    held = dataset.manifest.artifacts.get(name)
    if (held is not None and held.kind != LANE_KIND) or name in dataset.manifest.tables:
        raise DatasetError(
            f"there is a part called {name!r} that is no lane", hint="Give the lane another name."
        )


def _access(dataset: Dataset) -> Access:
    """Stores of the catalog the dataset came from, for writing."""
    options = dataset.access.options
    address = next(each for each in options.catalogs if plain_address(each) == dataset.catalog.address)
    return Access(replace(options, catalogs=(address,)))
