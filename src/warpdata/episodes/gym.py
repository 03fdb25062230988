"""Record what happens in a Gymnasium environment. The door of gymnasium."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from warpdata.episodes.local import LocalDatasetWriter
from warpdata.errors import MissingExtraError
from warpdata.timeline.writing import EpisodeWriter

try:
    import gymnasium
except ImportError:  # pragma: no cover - depends on what is installed
    raise MissingExtraError.for_extra("gymnasium", "gym") from None

if TYPE_CHECKING:
    Base = gymnasium.Wrapper[Any, Any, Any, Any]
else:
    Base = gymnasium.Wrapper

_DEFAULT_FPS = 30
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")


class RecordEpisodes(Base):
    """Wraps an environment: each episode becomes an episode of the dataset, frames included.

    Times are `step * step_ns` (`clock="step"`, by default from the environment's `render_fps`) or the time of
    day (`clock="wall"`).
    """

    def __init__(
        self,
        env: Any,
        writer: LocalDatasetWriter,
        *,
        frames: bool = True,
        clock: str = "step",
        step_ns: int | None = None,
        static: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(env)
        if not isinstance(writer, LocalDatasetWriter):
            raise TypeError(f"writer is a LocalDatasetWriter, not {type(writer).__name__}")
        if clock not in ("step", "wall"):
            raise ValueError(f"clock is 'step' or 'wall', not {clock!r}")
        fps = env.metadata.get("render_fps") or _DEFAULT_FPS
        self._writer = writer
        self._clock = clock
        self._step_ns = step_ns or round(1e9 / fps)
        self._frames = frames and env.render_mode == "rgb_array"
        self._static = dict(static or {})
        self._episode: EpisodeWriter | None = None
        self._step = 0
        self._last_ns = -1

    @property
    def episode_writer(self) -> EpisodeWriter | None:
        """The writer of the episode under way, to add signals or static items of one's own."""
        return self._episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the one before is finished."""
        self._finish()
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode = self._writer.new_episode()
        self._step, self._last_ns = 0, -1
        self._describe(seed)
        now = self._now()
        self._record("observation", observation, now)
        self._record_frame(now)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step and record it: the action at its time, what came of it one step later."""
        if self._episode is not None:
            self._record("action", action, self._last_ns)
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._episode is not None:
            self._step += 1
            now = self._now()
            self._record("observation", observation, now)
            self._episode.append("reward", float(reward), now)
            self._episode.append("terminated", bool(terminated), now)
            self._episode.append("truncated", bool(truncated), now)
            self._record_frame(now)
            if terminated or truncated:
                self._finish()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Finish the episode under way and close the environment."""
        self._finish()
        super().close()

    def _now(self) -> int:
        now = self._step * self._step_ns if self._clock == "step" else time.time_ns()
        self._last_ns = max(now, self._last_ns + 1)
        return self._last_ns

    def _describe(self, seed: int | None) -> None:
        assert self._episode is not None
        spec = self.env.spec
        facts = {"env_id": spec.id if spec is not None else type(self.env.unwrapped).__name__, "seed": seed}
        for name, value in {**facts, **self._static}.items():
            self._episode.set_static(name, value)

    def _record(self, name: str, value: Any, ts_ns: int) -> None:
        assert self._episode is not None
        for full, leaf in _leaves(name, value):
            self._episode.append(full, leaf, ts_ns)

    def _record_frame(self, ts_ns: int) -> None:
        if self._frames and self._episode is not None:
            frame = self.env.render()
            if isinstance(frame, np.ndarray):
                self._episode.append("frame", frame, ts_ns)

    def _finish(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.close()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a nested observation or action by name; None and empty arrays have nothing to say."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}/{_plain(key)}", inner)
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            yield from _leaves(f"{name}/{number}", inner)
    elif value is not None and not (isinstance(value, np.ndarray) and value.size == 0):
        yield name, value


def _plain(key: Any) -> str:
    """A key of a space as a part of a signal's name: what may not stand there becomes `_`."""
    part = _STRANGE.sub("_", str(key))
    return part if part.strip(".") else "_"
