"""Record what happens in Gymnasium environments, single or vectorised. The adapter of gymnasium."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from warpdata.episodes.record.recorder import LocalDatasetWriter, Recorder, nested
from warpdata.errors import MissingExtraError, RecordingError, suggests
from warpdata.formats.episodedir.documents import VideoOptions, plain_part
from warpdata.timeline.meta import Role
from warpdata.timeline.source import OUTCOME_CLOCK

try:
    import gymnasium
    from gymnasium import vector
except ImportError:  # pragma: no cover - depends on what is installed
    raise MissingExtraError.for_extra("gymnasium", "gym") from None

_DEFAULT_FPS = 30
_ACTIONS = "actions"
"""The clock of the steps: actions and what they led to share it, one step apart."""

_SUCCESS = ("success", "is_success")


@suggests
def RecordEpisodes(  # noqa: N802 - it stands for the wrapper it returns
    env: Any,
    target: str | os.PathLike[str] | LocalDatasetWriter,
    *,
    frames: bool = True,
    info: bool = True,
    clock: str = "step",
    step_ns: int | None = None,
    static: Mapping[str, Any] | None = None,
    video: VideoOptions | None = None,
    durability: str = "100ms",
) -> Any:
    """Wrap an environment: each episode becomes an episode of the root `target`, frames and `info` included.

    The environments of a vector are recorded each as episodes of its own. Times are `step * step_ns`
    (`clock="step"`, by default from the environment's `render_fps`) or the time of day (`clock="wall"`). The
    episode just ended can still be marked or discarded; it is finished by the next reset, `finish()` or `close()`.
    """
    if clock not in ("step", "wall"):
        raise ValueError(f"clock is 'step' or 'wall', not {clock!r}")
    if isinstance(target, LocalDatasetWriter):
        root, video, durability = target.root, target.video or video, target.durability
    elif isinstance(target, str | os.PathLike):
        root = os.fspath(target)  # type: ignore[assignment]
    else:
        raise TypeError(f"target is a root or a LocalDatasetWriter, not {type(target).__name__}")
    if not hasattr(env, "reset") or not hasattr(env, "metadata"):
        raise TypeError(f"env is an environment of Gymnasium, not {type(env).__name__}")
    fps = env.metadata.get("render_fps") or _DEFAULT_FPS
    spec = env.spec
    facts = {"env_id": spec.id if spec is not None else type(env.unwrapped).__name__, **dict(static or {})}
    options: dict[str, Any] = {
        "root": root, "static": facts, "wall": clock == "wall", "step_ns": step_ns or round(1e9 / fps),
        "info": info, "video": video, "durability": durability,
    }  # fmt: skip
    has_frames = frames and env.render_mode == "rgb_array"
    if isinstance(env, vector.VectorEnv):
        every = [_Environment(number=number, **options) for number in range(env.num_envs)]
        return _VectorRecorder(env, every, has_frames)
    return _SingleRecorder(env, _Environment(**options), has_frames)


class _Environment:
    """One environment: the episode under way or just ended, and its clock."""

    def __init__(
        self,
        *,
        root: Any,
        static: Mapping[str, Any],
        wall: bool,
        step_ns: int,
        info: bool,
        video: VideoOptions | None,
        durability: str,
        number: int | None = None,
    ) -> None:
        self._root, self._video, self._durability = root, video, durability
        self._static = dict(static) if number is None else {**static, "env_index": number}
        self._wall, self._step_ns, self._info = wall, step_ns, info
        self.recorder: Recorder | None = None
        self.has_ended = False
        self._has_acted = False
        self._step = 0
        self._last_ns = -1
        self._known: set[str] = set()
        self._left_out: set[str] = set()

    def reset(
        self, observation: Any, info: Mapping[str, Any], seed: int | None, frame: Any = None, at_ns: int = 0
    ) -> None:
        """Begin an episode, on the wall clock at `at_ns` if that is over; the one before is finished."""
        self.finish()
        self.recorder = Recorder(
            self._root, static={**self._static, "seed": seed}, clock="wall" if self._wall else "simulated",
            step_clock=_ACTIONS, outcome="next", video=self._video, durability=self._durability,
        )  # fmt: skip
        self.has_ended, self._has_acted, self._step, self._last_ns = False, False, 0, -1
        self._known, self._left_out = set(), set()
        now = self._now(at_ns)
        self._seen(observation, frame, now)
        self._informed(info, now)

    def act(self, action: Any) -> None:
        """Record the action that is about to be taken, at the time of the observation it answers."""
        if self.recorder is not None and not self.has_ended:
            self._has_acted = True
            self._append("action", action, self._last_ns, "action", _ACTIONS)

    def result(
        self,
        observation: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        frame: Any = None,
    ) -> None:
        """Record what the action led to, one step later."""
        if self.recorder is None or self.has_ended:
            return
        self._step += 1
        now = self._now()
        self._seen(observation, frame, now)
        self._append("reward", float(reward), now, "reward", OUTCOME_CLOCK)
        self._append("terminated", bool(terminated), now, "terminated", OUTCOME_CLOCK)
        self._append("truncated", bool(truncated), now, "truncated", OUTCOME_CLOCK)
        self._informed(info, now)
        if terminated or truncated:
            self.has_ended = True
            found = next((info[key] for key in _SUCCESS if key in info), None)
            if found is not None and np.ndim(found) == 0:
                self.recorder.mark(success=bool(found))

    def finish(self) -> None:
        """Finish the episode under way or just ended; one without an action is discarded."""
        recorder, self.recorder, self.has_ended = self.recorder, None, False
        if recorder is not None and not self._has_acted:
            recorder.discard()
        elif recorder is not None:
            if self._left_out:
                recorder.mark(info_left_out=sorted(self._left_out))
            recorder.close()

    def discard(self) -> None:
        """Remove the episode under way or just ended."""
        recorder, self.recorder, self.has_ended = self.recorder, None, False
        if recorder is None:
            raise RecordingError("there is no episode to discard: none was begun, or it is finished")
        recorder.discard()

    def mark(self, facts: Mapping[str, Any]) -> None:
        """Set items of the episode under way or just ended."""
        if self.recorder is None:
            raise RecordingError("there is no episode to mark: none was begun, or it is finished")
        self.recorder.mark(**facts)

    def _now(self, at_ns: int = 0) -> int:
        now = (at_ns or time.time_ns()) if self._wall else self._step * self._step_ns
        self._last_ns = max(now, self._last_ns + 1)
        return self._last_ns

    def _seen(self, observation: Any, frame: Any, now: int) -> None:
        self._append("observation", observation, now, "observation", "observations")
        if isinstance(frame, np.ndarray):
            self._append("frame", frame, now, "observation", None)

    def _informed(self, info: Mapping[str, Any], now: int) -> None:
        """Record the info of the environment; what cannot be a signal is left out, and listed at the end."""
        for key, value in info.items() if self._info else ():
            for name, leaf in nested(f"info/{plain_part(key)}", value):
                try:
                    self._append(name, leaf, now, "other", OUTCOME_CLOCK)
                except (TypeError, ValueError):
                    self._left_out.add(name)

    def _append(self, name: str, value: Any, now: int, role: Role, clock: str | None) -> None:
        assert self.recorder is not None
        for full, leaf in nested(name, value):
            if full not in self._known:
                self.recorder.declare(full, role=role, clock=clock)
                self._known.add(full)
            self.recorder.append(full, leaf, now)


class _SingleRecorder(gymnasium.Wrapper):
    """A recorded environment."""

    def __init__(self, env: Any, recorded: _Environment, has_frames: bool) -> None:
        super().__init__(env)
        self._recorded = recorded
        self._has_frames = has_frames

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the episode under way or just ended, to add signals or static items of one's own."""
        return self._recorded.recorder

    def mark(self, **facts: Any) -> None:
        """Set items of the episode under way or just ended, such as `success=True`."""
        self._recorded.mark(facts)

    def discard(self) -> None:
        """Remove the episode under way or just ended."""
        self._recorded.discard()

    def finish(self) -> None:
        """Finish the episode under way or just ended; the next one begins with `reset`."""
        self._recorded.finish()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the one before is finished."""
        self._recorded.finish()
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorded.reset(observation, info, seed, self._frame())
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step and record it: the action at its time, what came of it one step later."""
        self._recorded.act(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._recorded.result(observation, reward, terminated, truncated, info, self._frame())
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Finish the episode under way and close the environment."""
        self._recorded.finish()
        super().close()

    def _frame(self) -> Any:
        is_needed = self._has_frames and not self._recorded.has_ended
        return self.env.render() if is_needed else None


class _VectorRecorder(vector.VectorWrapper):
    """Recorded environments side by side: one episode of each at a time."""

    def __init__(self, env: Any, recorded: list[_Environment], has_frames: bool) -> None:
        super().__init__(env)
        self._recorded = recorded
        self._has_frames = has_frames
        mode = env.metadata.get("autoreset_mode", vector.AutoresetMode.NEXT_STEP)
        self._mode = vector.AutoresetMode(mode)
        self._restarts = [False] * len(recorded)
        """Environments that the next step only resets."""
        self._begun: dict[int, tuple[tuple[Any, Mapping[str, Any], Any], int]] = {}
        """What the step that ended an episode saw of the next one, which begins with the next step."""

    @property
    def recorders(self) -> list[Recorder | None]:
        """The recorder of each environment's episode under way or just ended."""
        return [each.recorder for each in self._recorded]

    def mark(self, number: int, **facts: Any) -> None:
        """Set items of the episode of environment `number` under way or just ended."""
        self._recorded[number].mark(facts)

    def discard(self, number: int) -> None:
        """Remove the episode of environment `number` under way or just ended."""
        self._recorded[number].discard()

    def finish(self) -> None:
        """Finish all episodes under way or just ended."""
        for each in self._recorded:
            each.finish()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in those that `options["reset_mask"]` names."""
        chosen = (options or {}).get("reset_mask")  # environments take it out of the options
        observations, infos = self.env.reset(seed=seed, options=options)
        seeds = seed if isinstance(seed, list | tuple) else [seed] * len(self._recorded)
        frames = self._frames()
        for number, each in enumerate(self._recorded):
            if chosen is None or chosen[number]:
                self._restarts[number] = False
                self._begun.pop(number, None)
                own = seeds[number] if not isinstance(seed, int) else seed + number
                each.reset(_row(observations, number), _info_of(infos, number), own, frames[number])
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in every environment and record each."""
        for number, ((seen, info, frame), at_ns) in self._begun.items():
            self._recorded[number].reset(seen, info, None, frame, at_ns)
        self._begun.clear()
        restarts, self._restarts = self._restarts, [False] * len(self._recorded)
        for number, each in enumerate(self._recorded):
            if not restarts[number]:
                each.act(_row(actions, number))
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        frames = self._frames()
        for number, each in enumerate(self._recorded):
            seen, info = _row(observations, number), _info_of(infos, number)
            if restarts[number]:  # this call only began the next episode: its action was not taken
                each.reset(seen, info, None, frames[number])
                continue
            outcome = (rewards[number], bool(terminated[number]), bool(truncated[number]))
            self._came_of(number, seen, outcome, info, frames[number])
        return observations, rewards, terminated, truncated, infos

    def _came_of(
        self, number: int, seen: Any, outcome: tuple[Any, bool, bool], info: dict[str, Any], frame: Any
    ) -> None:
        """Record what an action led to; where it ended an episode, `seen` may be of the next one already."""
        has_ended = outcome[1] or outcome[2]
        self._restarts[number] = has_ended and self._mode is vector.AutoresetMode.NEXT_STEP
        if not has_ended or self._mode is not vector.AutoresetMode.SAME_STEP:
            self._recorded[number].result(seen, *outcome, info, frame)
            return
        last, final_info = info.get("final_obs", seen), dict(info.get("final_info") or {})
        self._recorded[number].result(last, *outcome, final_info)
        begun = {key: value for key, value in info.items() if not key.startswith("final_")}
        self._begun[number] = (copy.deepcopy((seen, begun, frame)), time.time_ns())

    def _frames(self) -> Sequence[Any]:
        """What every environment shows now."""
        shown = self.env.render() if self._has_frames else None
        return (
            shown if shown is not None and len(shown) == len(self._recorded) else [None] * len(self._recorded)
        )

    def close(self, **kwargs: Any) -> Any:
        """Finish all episodes under way and close the environments."""
        self.finish()
        return super().close(**kwargs)


def _row(batch: Any, number: int) -> Any:
    """What belongs to one environment of a batched value."""
    if isinstance(batch, Mapping):
        return {key: _row(value, number) for key, value in batch.items()}
    if isinstance(batch, tuple) and not hasattr(batch, "shape"):
        is_nested = any(isinstance(each, np.ndarray | Mapping | tuple) for each in batch)
        return tuple(_row(each, number) for each in batch) if is_nested else batch[number]
    return batch[number]


def _info_of(infos: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The info of one environment of a vector: `_key` is the mask of `key`."""
    return dict(_infos_of(infos, number))


def _infos_of(infos: Mapping[str, Any], number: int) -> Iterator[tuple[str, Any]]:
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}")
        if present is not None and not present[number]:
            continue
        if isinstance(value, Mapping):
            yield key, _info_of(value, number)
        elif isinstance(value, np.ndarray | list | tuple) and len(value) > number:
            yield key, value[number]
