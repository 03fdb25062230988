"""What `warp check` finds, episode by episode, while somebody looks."""

from __future__ import annotations

from functools import partial
from typing import Any

from warpdata.bytekit.locks import ThreadLock
from warpdata.episodes.check import Finding, check_opened, new_set, set_findings
from warpdata.viewer.shown import ShownEpisodes

UNASKED_EPISODES = 200
"""A set on this machine of at most this many episodes is checked without being asked."""


class Health:
    """The findings of a set so far; `step` checks one more episode."""

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._beside = new_set()
        self._found: dict[str, list[Finding]] = {}
        self._joined: set[str] = set()
        self._is_compared = False
        self.is_wanted = False

    def step(self, snapshot: ShownEpisodes) -> bool:
        """Check the next episode; False when there is none left."""
        for name in snapshot.ids:
            if name not in self._found:
                # One that was edited is not compared a second time: it would be found to be a copy of itself.
                beside = None if name in self._joined else self._beside.add
                self._joined.add(name)
                findings = list(check_opened(partial(snapshot.open, name), name, beside=beside))
                with self._lock:
                    self._found[name] = findings
                    self._is_compared = False
                return True
        if not self._is_compared:
            self._is_compared = True
            with self._lock:
                for finding in set_findings(self._beside):
                    known = self._found.get(finding.episode)
                    if known is not None and finding not in known:
                        known.append(finding)
        return False

    def forget(self, episode_id: str) -> None:
        """Check an episode again: it was edited."""
        with self._lock:
            self._found.pop(episode_id, None)

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


def worst(findings: list[Finding]) -> str:
    """The most serious severity among findings."""
    seen = {each.severity for each in findings}
    return next(each for each in ("damaged", "warning", "info") if each in seen)
