"""Receipts: what became of data on its way. That of a salvage lists what was kept, what was lost, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from warpdata.timeline.cards import items_card, titled_card

if TYPE_CHECKING:
    from warpdata.formats.wshard.episode import WShardEpisode


class Receipt(ABC):
    """What a piece of work did to the data that went through it: for a person, for a program, and in a notebook."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether nothing was left behind."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """The receipt for a person."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The receipt for a program."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {next(self.lines())}>"

    def _repr_html_(self) -> str:
        return titled_card(repr(self), items_card(self.to_json()))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class LossReceipt(Receipt):
    """What came out of a salvage; `is_complete`: everything that was written is there."""

    source: str
    output: str | None = None
    episode_id: str
    steps_kept: int = 0
    steps_lost: int = 0
    time_kept_s: float = 0.0
    """From the first record that was kept to the last."""
    rows_dropped: int = 0
    """Rows that were being recorded when the recorder died: never acknowledged, and not whole."""
    is_live: bool = False
    """Whether a running process records it: nothing was changed."""
    channels: dict[str, int] = field(default_factory=dict)
    frames_dropped: dict[str, int] = field(default_factory=dict)
    """Frames of cameras that their policy dropped while they were recorded."""
    bytes_dropped: int = 0
    why: str
    damage: list[dict[str, Any]] = field(default_factory=list)
    last_crc32c: str | None = None
    kept_aside: str | None = None
    """Path of the original, if not all of it could be read or another file took its place."""

    @classmethod
    def of_steps(cls, source: str, output: str | None, episode: WShardEpisode, why: str, **more: Any) -> Self:
        """The receipt of an episode by step: what it holds was kept."""
        times = episode.times_ns()
        return cls(
            source=source, output=output, episode_id=episode.id, why=why, steps_kept=episode.length,
            time_kept_s=(int(times.max()) - int(times.min())) / 1e9 if episode.length else 0.0,
            channels={name: channel.length for name, channel in episode.lanes()}, **more,
        )  # fmt: skip

    @classmethod
    def of_records(
        cls,
        source: str,
        output: str | None,
        episode_id: str,
        signals: Mapping[str, Any],
        why: str,
        **more: Any,
    ) -> Self:
        """The receipt of a recording in time, from the meta.json entry of each signal."""
        spans = [(each["first_ts_ns"], each["last_ts_ns"]) for each in signals.values() if each["count"]]
        first_ns, last_ns = min((a for a, _ in spans), default=0), max((b for _, b in spans), default=0)
        kept = {name: about["count"] for name, about in signals.items()}
        dropped = {
            name: about["dropped_frames"] for name, about in signals.items() if "dropped_frames" in about
        }
        return cls(
            source=source, output=output, episode_id=episode_id, why=why, steps_kept=sum(kept.values()),
            time_kept_s=(last_ns - first_ns) / 1e9, channels=kept, frames_dropped=dropped, **more,
        )  # fmt: skip

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Self | None:
        """The receipt from its JSON; None if it is not one."""
        names = {each.name for each in fields(cls)}
        try:
            return cls(**{name: value for name, value in stated.items() if name in names})
        except TypeError:
            return None

    parts: list[LossReceipt] = field(default_factory=list)
    """The receipts of all recordings of a folder."""
    process: str | None = None
    """The process that recorded this part of an episode."""
    processes: list[LossReceipt] = field(default_factory=list)
    """The receipts of the processes that recorded one episode."""

    @classmethod
    def of_folder(cls, folder: str, parts: list[LossReceipt]) -> Self:
        """One receipt for all recordings of a folder."""
        return cls(
            source=folder,
            episode_id=folder,
            why=f"{len(parts)} unfinished recordings" if parts else "nothing to salvage",
            steps_kept=sum(each.steps_kept for each in parts),
            steps_lost=sum(each.steps_lost for each in parts),
            rows_dropped=sum(each.rows_dropped for each in parts),
            bytes_dropped=sum(each.bytes_dropped for each in parts),
            time_kept_s=sum(each.time_kept_s for each in parts),
            damage=[damage for each in parts for damage in each.damage],
            parts=parts,
        )

    @property
    def is_complete(self) -> bool:
        """Whether nothing that was written is missing or damaged."""
        return self.steps_lost == 0 and self.bytes_dropped == 0 and not self.damage

    def __repr__(self) -> str:
        lost = (
            "nothing lost"
            if self.is_complete
            else f"{self.steps_lost} lost, {self.bytes_dropped} bytes dropped"
        )
        return f"<LossReceipt {self.episode_id!r}: {self.steps_kept} {self._what} kept, {lost}>"

    @property
    def _what(self) -> str:
        """What is counted: steps, or the records of all signals of a recording in time."""
        counts = self.channels.values()
        return "records" if len(counts) > 1 and sum(counts) == self.steps_kept else "steps"

    def lines(self) -> Iterator[str]:
        """The receipt for a person."""
        if self.parts:
            for part in self.parts:
                yield from part.lines()
            return
        if self.is_live or self.why == "nothing to salvage":
            yield f"{self.source}: {self.why}"
            return
        yield f"{self.source} → {self.output or 'unchanged'}"
        yield f"  episode {self.episode_id!r}: {self.steps_kept} {self._what} kept, {self.time_kept_s:.3f} s"
        for name, count in self.channels.items():
            dropped = self.frames_dropped.get(name)
            yield f"    {name}: {count}" + (f" ({dropped} dropped while recording)" if dropped else "")
        lost = f"{self.steps_lost} {self._what} and {self.bytes_dropped} bytes lost: "
        if not self.steps_lost and not self.bytes_dropped:
            lost = "an unknown amount is lost: "
        yield f"  {'' if self.is_complete else lost}{self.why}"
        if self.rows_dropped:
            yield f"  {self.rows_dropped} row that was being recorded was dropped, because it is not whole"
        for part in self.processes:
            lost = "nothing lost" if part.is_complete else f"{part.steps_lost} lost"
            yield f"  {part.process}: {part.steps_kept} {self._what} kept, {lost} ({part.why})"
        for each in self.damage:
            yield f"  unreadable: {each.get('file', self.source)}: {each['why']}"
        if self.kept_aside is not None:
            yield f"  the original is kept as {self.kept_aside}"

    def to_json(self) -> dict[str, Any]:
        """The receipt as JSON."""
        return {**asdict(self), "is_complete": self.is_complete}
