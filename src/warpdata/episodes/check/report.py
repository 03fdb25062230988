"""Findings of `warp check`: rules with stable ids, and reports that group them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from warpdata.errors import nearest

DAMAGED, WARNING, INFO = "damaged", "warning", "info"

SET_RULES = {
    "outlier-length": "an episode is far shorter or longer than the others",
    "outlier-return": "the sum of the rewards is far from that of the others",
    "outlier-final-state": "an episode ends in a state far from where the others end",
    "action-jerk": "actions jump from one step to the next as in no other episode",
    "dead-channel": "a channel hardly moves where it moves in the others",
    "swapped-channels": "two channels look like each other's in all other episodes",
    "time-shift": "a camera or the actions are earlier or later than the state, unlike in the others",
    "odd-view": "a camera shows something else than in the others: covered, exchanged, turned or in other colours",
    "near-duplicate": "two episodes are nearly the same recording, whole or trimmed",
    "spikes": "single values jump away and back as in no other episode",
}
"""Rules that compare an episode with the others of its set; all are warnings."""

RULES: dict[str, tuple[str, str]] = {
    "damaged-file": (DAMAGED, "a file of the episode cannot be read or does not match its checksum"),
    "clock-order": (DAMAGED, "timestamps are not strictly increasing, as a recording has them"),
    "video-index": (DAMAGED, "video and frame index do not have the same frames"),
    "statistics": (DAMAGED, "the statistics in meta.json are not those of the data"),
    "edits": (DAMAGED, "a line of edits.jsonl is damaged"),
    "gap": (WARNING, "a pause is more than five times the usual one"),
    "jitter": (WARNING, "pauses deviate by more than a quarter of the usual one"),
    "frozen-camera": (
        WARNING,
        "a camera repeats one image for half a second or longer while something moves",
    ),
    "nan": (WARNING, "values are NaN or infinite"),
    "constant-channel": (WARNING, "a channel never changes"),
    "no-actions": (WARNING, "no signal of the episode is an action"),
    "empty-episode": (WARNING, "the episode has no records"),
    "unfinished": (WARNING, "a recording was never finished"),
    "falling-times": (
        WARNING,
        "times that a shard of another program holds do not increase: read it by step",
    ),
    "repeated-frames": (WARNING, "a camera shows most images several times: its rate is lower than recorded"),
    "dropped-frames": (WARNING, "a camera dropped frames, because its encoder fell behind"),
    "interrupted": (INFO, "the recording ended by an exception or was salvaged"),
    **{rule: (WARNING, text) for rule, text in SET_RULES.items()},
}
"""Rule id -> (severity, description). Ids are append-only: programs match on them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    rule: str
    severity: str
    episode: str
    signal: str | None
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: str, episode: str, signal: str | None, message: str, **details: Any) -> Finding:
        """A finding of a rule, with its severity."""
        return cls(rule, RULES[rule][0], episode, signal, message, details)

    def to_json(self) -> dict[str, Any]:
        """The finding for a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Group:
    """The findings of one rule in one signal, over all episodes."""

    rule: str
    signal: str | None
    findings: list[Finding]

    @property
    def severity(self) -> str:
        """How serious it is."""
        return self.findings[0].severity

    def to_json(self) -> dict[str, Any]:
        """The group for a program."""
        names = [name for item in self.findings for name in item.details.get("episodes", [item.episode])]
        about = {"rule": self.rule, "severity": self.severity, "signal": self.signal}
        return {**about, "count": len(names), "episodes": names}


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """All findings of a dataset or an episode."""

    episodes: int
    findings: list[Finding]

    @property
    def is_damaged(self) -> bool:
        """Whether any data is damaged."""
        return any(finding.severity == DAMAGED for finding in self.findings)

    def groups(self) -> list[Group]:
        """Findings of one rule and signal together, the most serious and then the most frequent first."""
        groups: dict[tuple[str, str | None], list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.rule, finding.signal), []).append(finding)
        made = [Group(rule, signal, findings) for (rule, signal), findings in groups.items()]
        order = (DAMAGED, WARNING, INFO)
        return sorted(made, key=lambda group: (order.index(group.severity), -len(group.findings)))

    def __repr__(self) -> str:
        lines = [f"<Report of {self.episodes} episodes: {len(self.findings)} findings>"]
        for group in self.groups():
            first, more = group.findings[0], len(group.findings) - 1
            place = " ".join(filter(None, (first.episode, first.signal)))
            lines.append(
                f"  {group.severity}[{group.rule}] {place}: {first.message}" + f" (+{more} more)" * (more > 0)
            )
        return "\n".join(lines)

    def without(self, rules: Iterable[str]) -> Report:
        """The report without the findings of these rules."""
        muted = set(rules)
        return Report(self.episodes, [finding for finding in self.findings if finding.rule not in muted])

    def to_json(self) -> dict[str, Any]:
        """The report for a program."""
        counts = Counter(finding.rule for finding in self.findings)
        return {
            "episodes": self.episodes,
            "is_damaged": self.is_damaged,
            "by_rule": dict(sorted(counts.items())),
            "groups": [group.to_json() for group in self.groups()],
            "findings": [finding.to_json() for finding in self.findings],
        }


def check_rules(names: Iterable[str]) -> None:
    """Raise ValueError unless each is the id of a rule."""
    for name in names:
        if name not in RULES:
            raise ValueError(f"no rule is called {name!r}.{nearest(name, RULES)}")
