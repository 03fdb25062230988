"""What models said about the episodes of a version: read beside them, and stale where their bytes are others now.

A lane is an artifact of its own. Each of its shards is named by the bytes it was computed from, so a look at names says
for which episodes it holds. See formats/manifest/SPEC.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.catalog.read.artifacts import Artifact
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, SourceAround

SUFFIX = ".wshard"
ABOUT = "lane.json"
"""The member that says what the lane is."""
PART_PREFIX = "lane-"
LANE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MAX_ABOUT_BYTES = 1 << 20
_VERSION = 1


class LanePlace(NamedTuple):
    """The bytes of a published episode: its artifact, its member there, and their hash."""

    artifact: str
    member: str
    sha256: str

    @property
    def stem(self) -> str:
        """What names of predictions about this episode begin with, whatever bytes it had."""
        return f"{self.artifact}/{self.member.removesuffix(SUFFIX)}/"

    @property
    def lane_member(self) -> str:
        """The name of the predictions computed from these bytes."""
        return f"{self.stem}{self.sha256}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class LaneAbout:
    """What a lane is: who speaks of which signals."""

    name: str
    signals: dict[str, str]
    """Signal of the lane -> the signal it predicts."""
    revision: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in `lane.json`."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], path: str) -> LaneAbout:
        """The same, or CorruptLayoutError."""
        if raw.get("version") != _VERSION:
            raise CorruptLayoutError(
                f"a lane of version {raw.get('version')!r}", path=path, hint="Upgrade warpdata."
            )
        name, signals, revision = raw.get("name"), raw.get("signals"), raw.get("revision")
        texts = [name, revision, *(signals.items() if isinstance(signals, dict) else [None])]
        flat = [part for each in texts for part in (each if isinstance(each, tuple) else (each,))]
        if not isinstance(signals, dict) or not signals or not all(isinstance(each, str) for each in flat):
            raise CorruptLayoutError("what it says of the lane is damaged", path=path)
        return cls(str(name), signals, str(revision))


def part_name(lane: str) -> str:
    """The artifact of a lane."""
    return f"{PART_PREFIX}{lane}"


def signal_name(of: str, lane: str) -> str:
    """What a prediction is called among the signals of an episode."""
    return f"prediction/{of}/{lane}"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """For which episodes a lane holds: ids of episodes as they are now."""

    current: tuple[str, ...]
    stale: tuple[str, ...]
    """Episodes whose bytes are others than those it was computed from: their predictions are not shown."""
    missing: tuple[str, ...]
    """Episodes it never spoke of."""
    left_over: int
    """Predictions about bytes that are no longer in the version."""

    @property
    def is_stale(self) -> bool:
        """Whether it should be computed again."""
        return bool(self.stale or self.missing)

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        lists = {name: list(value) for name, value in asdict(self).items() if isinstance(value, tuple)}
        return {**lists, "left_over": self.left_over, "is_stale": self.is_stale}


class Lane:
    """The predictions of one model about the episodes of a version."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @property
    def name(self) -> str:
        """The name it was given; the model of its signals."""
        return self.artifact.name.removeprefix(PART_PREFIX)

    @cached_property
    def about(self) -> LaneAbout:
        """What it says of itself."""
        path = f"artifact {self.artifact.name!r} member {ABOUT}"
        member = self.artifact.find([ABOUT])[0]
        if member.length > _MAX_ABOUT_BYTES:
            raise CorruptLayoutError(f"it has {member.length} bytes", path=path)
        data = self.artifact.reader_of(member).read(0, member.length)
        if sha256_hex(data) != self.artifact.part.shards[member.shard].hash:
            raise CorruptLayoutError("what it says of the lane is not as it was published", path=path)
        try:
            said = parse_json_object(data, max_bytes=_MAX_ABOUT_BYTES)
        except FormatError as error:
            raise CorruptLayoutError(f"what it says of the lane is damaged ({error})", path=path) from None
        return LaneAbout.from_json(said, path)

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
        """Which function or weights computed it."""
        return self.about.revision

    def has(self, places: Sequence[LanePlace]) -> list[bool]:
        """For which of these bytes there are predictions."""
        return self.artifact.has([place.lane_member for place in places])

    def hashes(self, places: Sequence[LanePlace]) -> list[str | None]:
        """The hash of the predictions about each of these bytes; None where there are none."""
        there = self.has(places)
        found = iter(
            self.artifact.find([place.lane_member for place, has in zip(places, there, strict=True) if has])
        )
        return [self.artifact.part.shards[next(found).shard].hash if has else None for has in there]

    def open(self, place: LanePlace) -> Mapping[str, Signal]:
        """The predictions about these bytes by name."""
        reader = self.artifact.member_reader(place.lane_member)
        source = episode_of_shard(ShardReader.open(reader)).source
        check_lane_shard(source, self.about, place, reader.name)
        return source.signals

    def status(self, known: Mapping[LanePlace, str]) -> LaneStatus:
        """What holds for these bytes of episodes, given with their ids."""
        places = list(known)
        there = dict(zip(places, self.has(places), strict=True))
        names = [name for name in self.artifact.members() if name != ABOUT]
        spoken_of = {f"{name.rpartition('/')[0]}/" for name in names}
        return LaneStatus(
            current=tuple(known[place] for place in places if there[place]),
            stale=tuple(known[p] for p in places if not there[p] and p.stem in spoken_of),
            missing=tuple(known[p] for p in places if not there[p] and p.stem not in spoken_of),
            left_over=len(names) - sum(there.values()),
        )

    def __repr__(self) -> str:
        return f"<Lane {self.name!r} of {', '.join(self.of)}>"


def check_lane_shard(source: EpisodeSource, about: LaneAbout, place: LanePlace, path: str) -> None:
    """Raise unless a shard holds what a lane said about these very bytes."""
    stated = source.meta.get("lane")
    expected = {"name": about.name, "revision": about.revision, "source": place.sha256}
    if stated != expected or set(source.signals) != set(about.signals):
        raise CorruptLayoutError("it holds other predictions than its name says", path=path)


class LanedSource(SourceAround):
    """A published episode with the signals of its lanes, each lane opened when one of its signals is asked for."""

    def __init__(self, inner: EpisodeSource, lanes: Sequence[Lane], place: LanePlace) -> None:
        super().__init__(inner)
        self._signals = _LanedSignals(inner.signals, lanes, place)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """What was recorded, and what models said about it."""
        return self._signals


class _LanedSignals(Mapping[str, Signal]):
    def __init__(self, recorded: Mapping[str, Signal], lanes: Sequence[Lane], place: LanePlace) -> None:
        self._recorded = recorded
        self._lane_of = {name: lane for lane in lanes for name in lane.signals if name not in recorded}
        self._place = place
        self._open: dict[str, Mapping[str, Signal]] = {}

    def __getitem__(self, name: str) -> Signal:
        lane = self._lane_of.get(name)
        if lane is None:
            return self._recorded[name]
        if lane.name not in self._open:
            self._open[lane.name] = lane.open(self._place)
        return self._open[lane.name][name]

    def __iter__(self) -> Iterator[str]:
        yield from self._recorded
        yield from self._lane_of

    def __len__(self) -> int:
        return len(self._recorded) + len(self._lane_of)

    def __contains__(self, name: object) -> bool:
        return name in self._lane_of or name in self._recorded
