"""What `warp check` finds, episode by episode, while somebody looks and others edit."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from warpdata.bytekit.process.locks import ThreadLock
from warpdata.episodes.check.beside import SetMember
from warpdata.episodes.check.rules import Finding, check_opened, new_set, set_findings, without_usual
from warpdata.viewer.shown import ShownEpisodes

UNASKED_EPISODES = 200
"""A set on this machine of at most this many episodes is checked without being asked."""


class Health:
    """The findings of a set so far; `step` checks one more episode, or again one that was edited."""

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._checked: dict[str, _Checked] = {}
        self._found: dict[str, list[Finding]] = {}
        self._generation = -1
        self._is_compared = False
        self.is_wanted = False
        self.revision = 0
        """Grows whenever something else is known: a page asks again."""

    def step(self, snapshot: ShownEpisodes) -> bool:
        """Check the next episode; False when there is none left."""
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
        """What was edited, here or by another program, is checked again; what is gone has no findings."""
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
        beside, own = new_set(), list[Finding]()
        for checked in self._checked.values():
            own += checked.findings
            for member in checked.members:
                beside.add(member)
        found: dict[str, list[Finding]] = defaultdict(list)
        for each in (*without_usual(own, beside, len(self._checked)), *set_findings(beside)):
            found[each.episode].append(each)
        with self._lock:
            self._found = {name: found[name] for name in self._checked}
            self._is_compared = True
            self.revision += 1

    def flags(self, episode_id: str) -> list[dict[str, Any]] | None:
        """The findings of one episode; None where it was not checked yet."""
        with self._lock:
            found = self._found.get(episode_id)
            return None if found is None else [each.to_json() for each in found]

    def summary(self, total: int) -> dict[str, Any]:
        """How far the check is, and which episodes have findings of which severity."""
        with self._lock:
            bad = {name: worst(found) for name, found in self._found.items() if found}
            return {
                "checked": min(len(self._found), total),
                "total": total,
                "wanted": self.is_wanted,
                "worst": bad,
            }


class _Checked:
    """What is known of one episode by itself, and how it was edited then."""

    def __init__(self, findings: list[Finding], members: list[SetMember], edits: object) -> None:
        self.findings = findings
        self.members = members
        self.edits = edits


def worst(findings: list[Finding]) -> str:
    """The most serious severity among findings."""
    seen = {each.severity for each in findings}
    return next(each for each in ("damaged", "warning", "info") if each in seen)
