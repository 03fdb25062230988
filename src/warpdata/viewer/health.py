"""State that pages follow: findings of `warp check` episode by episode, and recordings under way."""

from __future__ import annotations

import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from warpdata.bytekit.process.forks import ThreadLock
from warpdata.episodes.check.compare import EpisodeSet, SetMember
from warpdata.episodes.check.report import Finding
from warpdata.episodes.check.rules import check_opened
from warpdata.episodes.check.run import without_usual
from warpdata.episodes.salvage.unfinished import is_recorded, read_status, unfinished_at
from warpdata.errors import WarpError
from warpdata.formats.episodedir.layout import RECORDING_FOLDER
from warpdata.viewer.shown import Shown, ShownEpisodes

UNASKED_EPISODES = 200
"""A set on this machine of at most this many episodes is checked at once."""

USUAL_EPISODES = 3
"""A warning that all of at least this many episodes have is one of the set."""


class _Checked(NamedTuple):
    """What is known of one episode by itself, and how it was edited then."""

    findings: list[Finding]
    members: list[SetMember]
    edits: object


class Health:
    """The findings of a set so far; `step` checks one more episode, or again one that was edited."""

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._checked: dict[str, _Checked] = {}
        self._found: dict[str, list[Finding]] = {}
        self._shared: set[str] = set()
        self._generation = -1
        self._is_compared = False
        self.is_wanted = False
        self.revision = 0
        """Grows with every new finding, so that pages load them again."""

    def step(self, snapshot: ShownEpisodes) -> bool:
        """Check the next episode; False when all are checked."""
        if snapshot.generation != self._generation:
            self._forget(snapshot)
        for name in snapshot.ids:
            if name not in self._checked:
                members: list[SetMember] = []
                findings = list(check_opened(partial(snapshot.open, name), name, beside=members.append))
                with self._lock:
                    self._checked[name] = _Checked(findings, members, snapshot.edits_of(name))
                    self._found[name] = findings
                    self._is_compared = False
                    self.revision += 1
                return True
        if not self._is_compared:
            self._compare()
        return False

    def _forget(self, snapshot: ShownEpisodes) -> None:
        """Drop the findings of edited and removed episodes."""
        with self._lock:
            self._generation = snapshot.generation
            known = set(snapshot.ids)
            for name, checked in list(self._checked.items()):
                if name not in known or snapshot.edits_of(name) != checked.edits:
                    del self._checked[name]
                    self._found.pop(name, None)
                    self._is_compared = False
                    self.revision += 1

    def _compare(self) -> None:
        beside, own = EpisodeSet(), list[Finding]()
        for checked in self._checked.values():
            own += checked.findings
            for member in checked.members:
                beside.add(member)
        by_episode: dict[str, list[Finding]] = defaultdict(list)
        for finding in (*without_usual(own, beside, len(self._checked)), *beside.findings()):
            by_episode[finding.episode].append(finding)
        shared = by_episode.pop("", [])  # of the whole set: a finding that most episodes have
        with self._lock:
            self._found = {
                name: by_episode[name]
                + [finding for finding in shared if name in finding.details.get("episodes", ())]
                for name in self._checked
            }
            self._shared = {finding.rule for finding in shared}
            self._is_compared = True
            self.revision += 1

    def flags(self, snapshot: ShownEpisodes, episode_id: str) -> list[dict[str, Any]] | None:
        """The findings of one episode; None if it was not checked since its last edit."""
        with self._lock:
            findings, checked = self._found.get(episode_id), self._checked.get(episode_id)
            if findings is None or checked is None or checked.edits != snapshot.edits_of(episode_id):
                return None
            return [finding.to_json() for finding in findings]

    def summary(self, total: int) -> dict[str, Any]:
        """Progress of the check, the worst severity per episode, and warnings that all episodes share.

        The check is complete when the episodes were also compared with each other. A shared warning does not flag
        episodes: it distinguishes none of them.
        """
        with self._lock:
            # Rules with findings in every checked episode, or in most of a compared set.
            usual: set[str] = set()
            if len(self._found) >= USUAL_EPISODES:
                groups = self._found.values()
                rules = [{one.rule for one in group if one.severity != "damaged"} for group in groups]
                usual = set.intersection(*rules) | (self._shared if self._is_compared else set())
            unusual = {
                name: [finding for finding in findings if finding.rule not in usual]
                for name, findings in self._found.items()
            }
            return {
                "checked": min(len(self._found), total if self._is_compared else max(total - 1, 0)),
                "total": total,
                "wanted": self.is_wanted,
                "worst": {name: worst(findings) for name, findings in unusual.items() if findings},
                "usual": sorted(usual),
            }


def worst(findings: list[Finding]) -> str:
    """The most serious severity among findings."""
    seen = {finding.severity for finding in findings}
    return next(severity for severity in ("damaged", "warning", "info") if severity in seen)


def live_state(shown: Shown, health: Health) -> dict[str, Any]:
    """What a page must know to follow others: the state of the list, of the checks, and of everything unfinished."""
    shown.refresh()
    snapshot = shown.snapshot
    state: dict[str, Any] = {
        "generation": snapshot.generation,
        "episodes": len(snapshot.ids),
        "checks": health.revision,
    }
    state["recordings"] = [recording_state(*item) for item in snapshot.unfinished.items()]
    if shown.root is not None:
        state["free_bytes"] = shutil.disk_usage(shown.root).free
    return state


def recording_state(name: str, folder: Path) -> dict[str, Any]:
    """One unfinished recording; what is not known by now is left out."""
    try:
        recording = unfinished_at(folder)
    except (WarpError, OSError):  # it ended just now, or is damaged: salvage reports it
        return {"id": name, "is_live": is_recorded(folder / RECORDING_FOLDER)}
    status = read_status(folder / RECORDING_FOLDER)
    backlog = {} if status is None else {name: signal.waiting for name, signal in status.signals.items()}
    totals = (
        {}
        if status is None
        else {name: status.total(name) for name in ("dropped", "refused", "blocked", "blocked_ns")}
    )
    counts = {"records": recording.records, "backlog": backlog, "lost": recording.unreadable}
    return {
        "id": name,
        "is_live": recording.is_live,
        "owner": recording.owner.get("pid"),
        **counts,
        **totals,
    }
