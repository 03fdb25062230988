"""Published episodes with their prediction lanes, and corpora.

A lane is an artifact of its own: signals that a model predicts for the episodes of a version. Each of its shards is
named by the bytes it was computed from, so names show for which episodes it is current. See formats/manifest/SPEC.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import text_to_arrow
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import cached_property
from warpdata.catalog.read.artifacts import Artifact
from warpdata.corpora.source import SourceKeywords, StoreShardSource
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource, Origin
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import CorruptLayoutError, DatasetError, FormatError, WarpError
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, LazySignals, SourceAround

if TYPE_CHECKING:
    from warpdata.catalog.table import Table

EPISODES_TABLE = "episodes"
"""The table with the facts of every episode of a version."""
SUFFIX = ".wshard"
ABOUT = "lane.json"
"""The member that describes the lane."""
PART_PREFIX = "lane-"
LANE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MAX_ABOUT_BYTES = 1 << 20
_VERSION = 1
_STEP_BYTES = 16 << 20
_APART_NS = 500_000_000
"""Moments of one episode that are nearer to each other than this count as one."""


class ArtifactFolder:
    """The members of an artifact as files of one folder."""

    def __init__(self, artifact: Artifact) -> None:
        self.name = f"artifact {artifact.name!r}"
        self._artifact = artifact

    def open(self, name: str) -> RangeReader:
        """The bytes of a member, or BlobNotFoundError."""
        return self._artifact.member_reader(name)

    def exists(self, name: str) -> bool:
        """Whether there is a member of this name."""
        return self._artifact.has([name])[0]

    def names(self) -> list[str]:
        """The names of all members."""
        return list(self._artifact.members())


def episode_of(artifact: Artifact, member: Member) -> Episode:
    """The episode of a member, read lazily; the chunks of a chunk list are members too."""
    return episode_of_shard(ShardReader.open(artifact.reader_of(member)), ArtifactFolder(artifact))


class PublishedSource(EpisodesSource):
    """The episodes of an artifact; their facts come from the table of the version."""

    def __init__(
        self,
        artifact: Artifact,
        table: Table | None,
        recipe: Any,
        metadata: Mapping[str, Any] | None = None,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self.artifact = artifact
        self._lanes = lanes
        self._table = table
        self._recipe = recipe
        self.name = f"artifact {artifact.name!r} of {recipe['name']}"
        self.metadata, self.has_facts = metadata or {}, table is not None
        self._facts: pa.Table | None = None

    @cached_property
    def _names(self) -> pa.Table | None:
        """Ids and members only: a few bytes of each episode, while all its facts may be kilobytes."""
        if self._table is None:
            return None
        return self._facts if self._facts is not None else self._own_rows(["id", "artifact", "blob"])

    @cached_property
    def members(self) -> list[str]:
        """The member of every episode, in order."""
        if self._names is not None:
            return [str(name) for name in self._names.column("blob").to_pylist()]
        return list(self.artifact.members())

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of every episode, in order."""
        if self._names is not None:
            return [str(episode_id) for episode_id in self._names.column("id").to_pylist()]
        return [name.removesuffix(SUFFIX) for name in self.members]

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return self.open_member(self.members[position])

    def open_member(self, name: str) -> Episode:
        """The episode of a member of the artifact, with its current lanes."""
        member = self.artifact.find([name])[0]
        source = episode_of(self.artifact, member).source
        if self._lanes:
            place = LanePlace(self.artifact.name, name, self.artifact.part.shards[member.shard].hash)
            current = [lane for lane in self._lanes if lane.has([place])[0]]
            source = LanedSource(source, current, place) if current else source
        return Episode(PublishedEpisode(source, self._recipe, self.artifact.name, name))

    def places(self) -> list[LanePlace]:
        """The bytes of every episode, in order."""
        shards = self.artifact.part.shards
        members = self.artifact.find(self.members)
        return [LanePlace(self.artifact.name, m.name, shards[m.shard].hash) for m in members]

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        """The hashes of the predictions beside each episode, of lanes that have such signals."""
        used = [lane for lane in self._lanes if signals is None or lane.signals.keys() & set(signals)]
        if not used:
            return None
        places = self.places()
        return [
            " ".join(f"{lane.name}:{sha256}" for lane, sha256 in zip(used, hashes, strict=True) if sha256)
            for hashes in zip(*(lane.hashes(places) for lane in used), strict=True)
        ]

    def facts(self) -> pa.Table:
        """The rows of this artifact in the table of the version."""
        if self._table is None:
            return super().facts()
        if self._facts is None:
            self._facts = self._own_rows(self._table.schema().names)
        return self._facts

    def _own_rows(self, columns: Sequence[str]) -> pa.Table:
        assert self._table is not None
        whole = self._table.select(columns).rows_together()
        names = whole.column("artifact")
        own = text_to_arrow([self.artifact.name], pa.string()).cast(names.type)
        return whole.filter(pc.is_in(names, own))

    def origin(self, position: int) -> Origin:
        """The dataset, its version, and the hash of the blob of the episode."""
        dataset, _, version = str(self._recipe["name"]).partition("@")
        member = self.artifact.find([self.members[position]])[0]
        return Origin(dataset, version, self.artifact.part.shards[member.shard].hash)

    def address(self) -> dict[str, Any] | None:
        """The version and the artifact; no credentials."""
        return {"kind": "published", "recipe": self._recipe, "artifact": self.artifact.name}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self._recipe, self.artifact.name))


class PublishedEpisode(SourceAround):
    """A published episode, which pickles to the names of its dataset, version, artifact and member."""

    def __init__(self, inner: EpisodeSource, recipe: Any, artifact: str, member: str) -> None:
        super().__init__(inner)
        self._recipe = recipe
        self._member = (artifact, member)

    @property
    def address(self) -> str | None:
        """The dataset, its version, and the id in it."""
        return f"{self._recipe['name']}#{self.id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self._recipe, *self._member))


def _reopen(recipe: Any, artifact: str, member: str | None = None) -> Any:
    """The episodes of an artifact in another process, or the source of one of them."""
    from warpdata.catalog.dataset import reopen_dataset  # which imports this module

    source = reopen_dataset(json.dumps(recipe)).episodes_source(artifact)
    return source if member is None else source.open_member(member).source


def open_corpus(artifact: Artifact, **options: Unpack[SourceKeywords]) -> StoreShardSource:
    """The rows of an artifact of activation shards, checked by its corpus.json if it has one."""
    return StoreShardSource.open_folder(ArtifactFolder(artifact), **options)


def one_of_kind(artifacts: Mapping[str, Artifact], kind: str, name: str | None) -> Artifact:
    """The artifact with this name, or the only one of its kind; otherwise an error that lists them."""
    known = [artifact.name for artifact in artifacts.values() if artifact.kind == kind]
    matches = [known_name for known_name in known if name in (None, known_name)]
    if len(matches) == 1:
        return artifacts[matches[0]]
    fact = f"no artifact {name!r} of kind {kind}" if name else f"{len(known)} artifacts of kind {kind}"
    raise DatasetError(fact, hint=f"Name one of: {', '.join(known)}." if known else "This version has none.")


class LanePlace(NamedTuple):
    """The bytes of a published episode: its artifact, its member there, and their hash."""

    artifact: str
    member: str
    sha256: str

    @property
    def stem(self) -> str:
        """The beginning of the names of all predictions about this episode."""
        return f"{self.artifact}/{self.member.removesuffix(SUFFIX)}/"

    @property
    def lane_member(self) -> str:
        """The name of the predictions computed from these bytes."""
        return f"{self.stem}{self.sha256}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class LaneAbout:
    """The description of a lane."""

    name: str
    signals: dict[str, str]
    """Signal of the lane -> the signal it predicts."""
    revision: str

    def to_json(self) -> dict[str, Any]:
        """The content of `lane.json`."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def parse(cls, data: memoryview, path: str) -> LaneAbout:
        """The description in untrusted bytes, or CorruptLayoutError."""
        try:
            raw = parse_json_object(data, max_bytes=_MAX_ABOUT_BYTES)
        except FormatError as error:
            raise CorruptLayoutError(f"the description of the lane is damaged ({error})", path=path) from None
        if raw.get("version") != _VERSION:
            fact = f"a lane of version {raw.get('version')!r}"
            raise CorruptLayoutError(fact, path=path, hint="Upgrade warpdata.")
        match raw:
            case {"name": str(name), "signals": dict(signals), "revision": str(revision)} if signals:
                if all(isinstance(text, str) for text in signals.values()):
                    return cls(name, signals, revision)
        raise CorruptLayoutError("the description of the lane is damaged", path=path)


def signal_name(of: str, lane: str) -> str:
    """The name of a prediction among the signals of an episode."""
    return f"prediction/{of}/{lane}"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Which episodes a lane covers, by the ids of the episodes now."""

    current: tuple[str, ...]
    stale: tuple[str, ...]
    """Episodes whose bytes changed since: their predictions are not shown."""
    missing: tuple[str, ...]
    """Episodes without any predictions."""
    left_over: int
    """Predictions about bytes that are no longer in the version."""

    @property
    def is_stale(self) -> bool:
        """Whether it should be computed again."""
        return bool(self.stale or self.missing)

    def to_json(self) -> dict[str, Any]:
        """The status as plain values."""
        return {**asdict(self), "is_stale": self.is_stale}


class Lane:
    """The predictions of one model about the episodes of a version."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.name = artifact.name.removeprefix(PART_PREFIX)
        """The name of the lane, which is the model of its signals."""

    @cached_property
    def about(self) -> LaneAbout:
        """Its description; CorruptLayoutError if it is damaged."""
        path = f"artifact {self.artifact.name!r} member {ABOUT}"
        member = self.artifact.find([ABOUT])[0]
        if member.length > _MAX_ABOUT_BYTES:
            raise CorruptLayoutError(f"the description of a lane has {member.length} bytes", path=path)
        data = self.artifact.reader_of(member).read(0, member.length)
        expected, actual = self.artifact.part.shards[member.shard].hash, sha256_hex(data)
        if actual != expected:
            raise CorruptLayoutError(f"sha256 mismatch: expected {expected}, got {actual}", path=path)
        return LaneAbout.parse(data, path)

    @property
    def signals(self) -> Mapping[str, str]:
        """Signal of the lane -> the recorded signal it predicts."""
        return self.about.signals

    @property
    def of(self) -> tuple[str, ...]:
        """The recorded signals it predicts."""
        return tuple(self.signals.values())

    @property
    def revision(self) -> str:
        """The function or weights that computed it."""
        return self.about.revision

    def has(self, places: Sequence[LanePlace]) -> list[bool]:
        """Which of these bytes have predictions."""
        return self.artifact.has([place.lane_member for place in places])

    def hashes(self, places: Sequence[LanePlace]) -> list[str | None]:
        """The hash of the predictions about each of these bytes; None for missing ones."""
        there = self.has(places)
        names = [place.lane_member for place, has in zip(places, there, strict=True) if has]
        members = iter(self.artifact.find(names))
        return [self.artifact.part.shards[next(members).shard].hash if has else None for has in there]

    def open(self, place: LanePlace) -> Mapping[str, Signal]:
        """The predictions about these bytes by name."""
        reader = self.artifact.member_reader(place.lane_member)
        source = episode_of_shard(ShardReader.open(reader)).source
        check_lane_shard(source, self.about, place, reader.name)
        return source.signals

    def status(self, known: Mapping[LanePlace, str]) -> LaneStatus:
        """Which of these episodes, given with their ids, are current, stale or missing."""
        places = list(known)
        there = dict(zip(places, self.has(places), strict=True))
        names = [name for name in self.artifact.members() if name != ABOUT]
        stems = {f"{name.rpartition('/')[0]}/" for name in names}
        return LaneStatus(
            current=tuple(known[place] for place in places if there[place]),
            stale=tuple(known[p] for p in places if not there[p] and p.stem in stems),
            missing=tuple(known[p] for p in places if not there[p] and p.stem not in stems),
            left_over=len(names) - sum(there.values()),
        )

    def __repr__(self) -> str:
        return f"<Lane {self.name!r} of {', '.join(self.of)}>"


def check_lane_shard(source: EpisodeSource, about: LaneAbout, place: LanePlace, path: str) -> None:
    """CorruptLayoutError unless a shard holds the predictions of a lane about these bytes."""
    expected = {"name": about.name, "revision": about.revision, "source": place.sha256}
    if source.meta.get("lane") != expected or set(source.signals) != set(about.signals):
        raise CorruptLayoutError("the shard holds other predictions than its name states", path=path)


class LanedSource(SourceAround):
    """A published episode with the signals of its lanes; a lane is opened with the first of its signals."""

    def __init__(self, inner: EpisodeSource, lanes: Sequence[Lane], place: LanePlace) -> None:
        recorded = inner.signals
        lane_of = {name: lane for lane in lanes for name in lane.signals if name not in recorded}
        opened: dict[str, Mapping[str, Signal]] = {}

        def open_signal(name: str) -> Signal:
            if name not in lane_of:
                return recorded[name]
            lane = lane_of[name]
            if lane.name not in opened:
                opened[lane.name] = lane.open(place)
            return opened[lane.name][name]

        super().__init__(inner, LazySignals(lambda: [*recorded, *lane_of], open_signal))


@dataclass(frozen=True, slots=True)
class WorstMoment:
    """A moment with a large error."""

    episode_id: str
    ts_ns: int
    error: float
    """The root of the mean square over the numbers of one value."""


@dataclass(slots=True)
class SignalError:
    """A prediction against the recorded signal; the truth is the record that holds at the time of the prediction."""

    signal: str
    of: str
    moments: int = 0
    """Values that were compared: not those before the first record, nor those with a NaN on either side."""
    skipped: int = 0
    mean_abs: float = math.nan
    rms: float = math.nan
    largest: float = math.nan
    worst: list[WorstMoment] = field(default_factory=list)


@dataclass(slots=True)
class LaneReport:
    """A lane against the truth, over the episodes for which it is current."""

    lane: str
    episodes: int = 0
    signals: list[SignalError] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    """Episodes that cannot be read, with the reason."""

    def to_json(self) -> dict[str, Any]:
        """The report as plain values; NaN becomes null."""
        report = asdict(self)
        for signal in report["signals"]:
            for name in ("mean_abs", "rms", "largest"):
                signal[name] = signal[name] if math.isfinite(signal[name]) else None
        return report


def compare_lane(
    lane: Lane, episodes: Episodes, *, worst: int = 5, progress: Callable[[int, int], None] | None = None
) -> LaneReport:
    """Every prediction of a lane against the recorded signal, episode by episode, a bounded piece at a time."""
    if worst < 0:
        raise ValueError(f"worst is a number from 0, not {worst}")
    report = LaneReport(lane.name, signals=[SignalError(name, of) for name, of in lane.signals.items()])
    sums = {signal.signal: np.zeros(4) for signal in report.signals}
    for number, episode_id in enumerate(episodes.ids):
        if progress is not None:
            progress(number, len(episodes))
        try:
            signals = episodes[number].signals
            if not all(signal.signal in signals for signal in report.signals):
                continue
            errors = [list(_errors(signals[s.signal], signals[s.of])) for s in report.signals]
        except WarpError as error:
            report.damaged[episode_id] = str(error)
            continue
        report.episodes += 1
        for signal, pieces in zip(report.signals, errors, strict=True):
            _add_errors(signal, sums[signal.signal], episode_id, pieces, worst)
    if progress is not None:
        progress(len(episodes), len(episodes))
    for signal in report.signals:
        absolute, square, numbers, largest = sums[signal.signal].tolist()
        if numbers:
            signal.mean_abs, signal.rms, signal.largest = (
                absolute / numbers,
                math.sqrt(square / numbers),
                largest,
            )
    return report


_Errors = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], int]
"""Times, the root mean square of each, [sum of absolutes, sum of squares, numbers, largest], skipped values."""


def _errors(predicted: Signal, truth: Signal) -> Iterator[_Errors]:
    step = max(1, _STEP_BYTES // max(8, 8 * math.prod(predicted.meta.shape)))
    for start in range(0, len(predicted), step):
        rows = range(start, min(start + step, len(predicted)))
        times = predicted._ts_in(rows)
        at = truth._search_ts(times)
        values = np.asarray(predicted._values_in(rows), np.float64).reshape(len(rows), -1)
        known = at >= 0
        real = np.asarray(truth._values_at(at[known]), np.float64).reshape(int(known.sum()), -1)
        off = values[known] - real
        good = np.isfinite(off).all(axis=1)
        off = off[good]
        squares = (off * off).mean(axis=1) if off.shape[1] else np.zeros(len(off))
        totals = np.array([np.abs(off).sum(), (off * off).sum(), off.size, np.abs(off).max(initial=0.0)])
        yield times[known][good], np.sqrt(squares), totals, len(rows) - len(off)


def _add_errors(
    signal: SignalError, sums: NDArray[np.float64], episode_id: str, pieces: list[_Errors], worst: int
) -> None:
    """Add one episode to the sums, and its largest errors, none near a larger one, to the worst moments."""
    if not pieces:
        return
    for times, _, totals, skipped in pieces:
        signal.moments += len(times)
        signal.skipped += skipped
        sums[:3] += totals[:3]
        sums[3] = max(sums[3], totals[3])
    times = np.concatenate([piece[0] for piece in pieces])
    left = np.concatenate([piece[1] for piece in pieces])
    moments = []
    for _ in range(worst):
        if not len(left) or not np.isfinite(peak := left.max()):
            break
        at = int(left.argmax())
        moments.append(WorstMoment(episode_id, int(times[at]), float(peak)))
        left[np.abs(times - times[at]) < _APART_NS] = -np.inf
    # Sorting keeps equal errors in the order of the episodes.
    signal.worst = sorted([*signal.worst, *moments], key=lambda moment: -moment.error)[:worst]
