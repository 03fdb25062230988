"""Record an episode step by step: once the call returns, the step is safe from `kill -9`."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array, dtype_of
from warpdata.bytekit.io.commit import map_os_errors, remove_temps_of, writable_path
from warpdata.bytekit.process.forks import run_in_child
from warpdata.episodes.record.step_journal import (
    GIVEN_DONE,
    GIVEN_REWARD,
    GIVEN_TIME,
    GIVEN_TRUNCATED,
    KIND,
    TEXT_SIZE_BYTES,
    StepLayout,
    StepRun,
    absent,
    step_episode,
)
from warpdata.episodes.record.threads import Durability, RecordingThreads, owner
from warpdata.episodes.record.values import as_declared
from warpdata.errors import (
    ConflictError,
    JournalInUseError,
    RecordingError,
    SchemaMismatchError,
    TimestampOrderError,
    WarpError,
    WriterClosedError,
    nearest,
    suggests,
)
from warpdata.formats.journal.layout import MAX_RECORD_BYTES
from warpdata.formats.journal.reader import JournalReader, is_live
from warpdata.formats.journal.writer import JournalWriter, StepRecord
from warpdata.formats.wshard.channel import encode_value
from warpdata.formats.wshard.save import plan_shard, save_wshard
from warpdata.formats.wshard.schema import Timebase
from warpdata.formats.wshard.writer import check_compat

if TYPE_CHECKING:
    from typing import Self

_NAN = float("nan")
_INT64 = 1 << 63


class WShardStreamWriter:
    """Streams one episode into `<path>.partial` and turns it into `path` when the episode ends.

    The writer of the document: rows of declared channels, in one journal with the threads of any recording.
    `wd.record` takes undeclared signals, cameras, and signals of different rates.
    """

    @suggests
    def __init__(
        self,
        path: str | os.PathLike[str],
        episode_id: str,
        channels: Sequence[Mapping[str, Any]],
        *,
        env_id: str = "",
        timebase: Timebase | str | Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        reward_dtype: str = "f32",
        durability: str = "100ms",
        compat: str = "default",
        overwrite: bool = False,
    ) -> None:
        self._overwrite = overwrite
        self._lock = threading.RLock()
        self.path = os.path.abspath(path)
        self.partial_path = self.path + ".partial"
        self.steps = 0
        self._layout = StepLayout.plan(channels, reward_dtype)
        self._durability = Durability.parse(durability)
        self._timebase = Timebase() if timebase is None else Timebase.of(timebase)
        self._episode = {
            "id": episode_id,
            "env_id": env_id,
            "timebase": self._timebase.to_json(),
            "metadata": dict(metadata or {}),
        }
        self._descriptor: dict[str, Any] = {
            "kind": KIND, "owner": None, "episode": self._episode, "target": os.path.basename(self.path),
            "compat": check_compat(compat), **self._layout.to_json(),
        }  # fmt: skip
        # What could not be saved in the end is refused now, not after an hour of recording.
        if self._layout.payload_bytes > MAX_RECORD_BYTES:
            raise SchemaMismatchError(
                f"a step of {self._layout.payload_bytes} bytes is too large: it has at most {MAX_RECORD_BYTES}",
                hint="Declare smaller shapes, or record the large channel with a recorder of its own.",
            )
        plan_shard(step_episode(self.partial_path, self._descriptor, [], 0), self.path)
        self._check_target()
        self._journal: JournalWriter | None = None
        self._threads: RecordingThreads | None = None
        self._state = "new"
        self._last_ts_ns: int | None = None
        self._is_timed: bool | None = True if self._timebase.type == "timestamps_ns" else None
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """In a forked child: the recording goes on in the process that began it."""
        self._lock = threading.RLock()
        if self._state == "recording":
            self._state = "recorded by another process"

    def begin_episode(self) -> None:
        """Create the journal; a journal already there is an error that names its owner."""
        if self._state != "new":
            raise WriterClosedError(f"the episode is {self._state}", path=self.path)
        check_free(self.partial_path)
        self._check_target()
        writable_path(self.path)
        self._record = StepRecord(0, self._layout.payload_bytes)
        self._slots = [
            (
                each.id,
                each.tensor.dtype.dtype,
                each.tensor.shape,
                _slot(self._record, each.offset, each.tensor),
            )
            for each in self._layout.channels
            if each.encoding is None
        ]
        self._text_slots = [
            (each.id, each.encoding, _slot(self._record, each.offset, each.tensor))
            for each in self._layout.channels
            if each.encoding is not None
        ]
        flags = self._layout.flags
        self._reward, self._done, self._truncated, self._given = (
            _slot(self._record, flags[name].offset, flags[name].tensor)
            for name in ("reward", "done", "truncated", "given")
        )
        self._descriptor["owner"] = owner()
        with map_os_errors(self.partial_path):
            self._journal = JournalWriter(
                self.partial_path, self._descriptor, max_record_bytes=self._layout.payload_bytes
            )
        remove_temps_of(self.path)  # of one that was killed as it finished; the journal keeps others away
        self._threads = RecordingThreads(self._durability)
        self._threads.keep(self._journal)
        self._state = "recording"

    def write_timestep(
        self,
        values: Mapping[str, Any],
        reward: float | None = None,
        done: bool | None = None,
        *,
        truncated: bool | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Record one step; when this returns, it survives the death of this process. Any thread may call it."""
        with self._lock:  # the row is collected in one buffer
            self._write(values, reward, done, truncated, timestamp_ns)

    def _write(
        self,
        values: Mapping[str, Any],
        reward: float | None,
        done: bool | None,
        truncated: bool | None,
        timestamp_ns: int | None,
    ) -> None:
        if self._state != "recording":
            raise self._not_recording()
        threads: RecordingThreads = self._threads  # type: ignore[assignment]
        if threads.failure is not None:
            threads.check()
        if type(values) is not dict and not isinstance(values, Mapping):
            raise TypeError(f"a step is a dict of values by channel id, not {type(values).__name__}")
        for name, dtype, shape, slot in self._slots:
            value = values.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                value = _fitting(name, value, dtype, shape, values)
            slot[...] = value
        for name, encoding, slot in self._text_slots:
            _put_text(name, encoding, slot, values)
        if len(values) != len(self._slots) + len(self._text_slots):
            raise self._unknown_channels(values)
        ts_ns = self._checked_time(timestamp_ns)
        self._set_flags(reward, done, truncated, timestamp_ns)
        journal: JournalWriter = self._journal  # type: ignore[assignment]
        journal.append_step(self._record, self.steps, ts_ns)
        self.steps += 1
        self._last_ts_ns, self._is_timed = ts_ns, timestamp_ns is not None
        if self._durability.every_record:
            journal.sync()

    def end_episode(self) -> None:
        """Turn the journal into the finished file: contiguous blocks, checksums, fsync, atomic rename."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._state != "recording":
            raise self._not_recording()
        with self._released() as journal:
            self._state = "unfinished"
            try:
                self._check_target()
                runs = [StepRun(journal.records_offset, self.steps)]
                episode = step_episode(self.partial_path, self._descriptor, runs, self._record.size)
                save_wshard(episode, self.path, self._layout.compression(), compat=self._descriptor["compat"])
            except WarpError as error:
                raise with_salvage_hint(error, self.partial_path) from None
            with map_os_errors(self.partial_path):
                os.unlink(self.partial_path)
        self._state = "finished"

    def abort(self) -> None:
        """Delete the journal and everything recorded in it."""
        with self._lock:
            if self._state in ("recording", "unfinished"):
                holding = self._released() if self._state == "recording" else contextlib.nullcontext()
                with holding, map_os_errors(self.partial_path):
                    os.unlink(self.partial_path)
            self._state = "aborted"

    def close(self) -> None:
        """Let go of the journal without finishing the episode; it can be salvaged later."""
        with self._lock:
            if self._state == "recording":
                with self._released():
                    self._state = "unfinished"

    def __repr__(self) -> str:
        return f"<WShardStreamWriter {self.path}: {self.steps} steps, {self._state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._state != "recording":
            return
        if error is None:
            self.end_episode()
            return
        self.close()
        error.add_note(
            f"{self.steps} steps are kept in {self.partial_path}; finish them with `warp salvage {self.path}`"
        )

    def _set_flags(
        self, reward: float | None, done: bool | None, truncated: bool | None, timestamp_ns: int | None
    ) -> None:
        given = 0 if timestamp_ns is None else GIVEN_TIME
        try:
            value = _NAN if reward is None else reward if type(reward) is float else _real(reward)
            self._reward[...] = value
            if math.isinf(self._reward) and not np.isinf(value).any():
                raise OverflowError(f"{reward} does not fit in {self._reward.dtype}")
            self._done[...] = _flag(done)
            self._truncated[...] = _flag(truncated)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise SchemaMismatchError(f"reward is a number, done and truncated are bool: {error}") from None
        if reward is not None:
            given |= GIVEN_REWARD
        if done is not None:
            given |= GIVEN_DONE
        if truncated is not None:
            given |= GIVEN_TRUNCATED
        self._given[...] = given

    def _checked_time(self, timestamp_ns: int | None) -> int:
        """The time of a step, which all steps have or none has; later than the last, and small enough to store."""
        if timestamp_ns is None:
            if not self._is_timed:
                return 0
            raise TimestampOrderError("timestamp_ns is needed with every step", path=self.path)
        if self._is_timed is False:
            raise TimestampOrderError("the steps before this one came without timestamp_ns", path=self.path)
        if isinstance(timestamp_ns, bool) or not isinstance(timestamp_ns, int | np.integer):
            raise TypeError(f"timestamp_ns is integer nanoseconds, not {type(timestamp_ns).__name__}")
        ts_ns = int(timestamp_ns)
        if not -_INT64 <= ts_ns < _INT64:
            raise TimestampOrderError(f"{ts_ns} is no number of nanoseconds in 64 bits", path=self.path)
        if self._last_ts_ns is not None and ts_ns <= self._last_ts_ns:
            raise TimestampOrderError(f"{ts_ns} is not increasing after {self._last_ts_ns}", path=self.path)
        return ts_ns

    def _check_target(self) -> None:
        if not self._overwrite:
            check_no_file(self.path)

    @contextlib.contextmanager
    def _released(self) -> Iterator[JournalWriter]:
        """Stop the threads and close the journal; what was written stays in it, locked against salvage."""
        journal, threads = self._journal, self._threads
        self._journal = self._threads = None
        if journal is None or threads is None:
            raise self._not_recording()
        threads.forget(journal)
        threads.close()
        try:
            journal.close(unlock=False)
            yield journal
        finally:
            journal.unlock()

    def _not_recording(self) -> WarpError:
        if self._state == "new":
            return RecordingError(
                "the episode has not begun", path=self.path, hint="Call begin_episode() first."
            )
        return WriterClosedError(f"the episode is {self._state}", path=self.path)

    def _unknown_channels(self, values: Mapping[str, Any]) -> SchemaMismatchError:
        known = [each.id for each in self._layout.channels]
        unknown = sorted(map(str, set(values) - set(known)))
        fact = f"no channel has the id {', '.join(map(repr, unknown))}.{nearest(unknown[0], known)}"
        return SchemaMismatchError(fact, path=self.path, hint="Use the ids the channels were declared with.")


def check_no_file(path: str | os.PathLike[str]) -> None:
    """Raise ConflictError if a file is at the path that a recording is to have."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise ConflictError(
            "target exists", path=path, hint="Choose another path, or pass overwrite=True to replace it."
        )


def check_free(partial_path: str) -> None:
    """Raise JournalInUseError if a journal is at this path, saying whether its owner lives."""
    if not os.path.exists(partial_path):
        return
    owner_name = owner_of(partial_path)
    if is_live(partial_path):
        raise JournalInUseError(
            f"being recorded by {owner_name}",
            path=partial_path,
            hint="Record to another path, or stop that process.",
        )
    raise JournalInUseError(
        f"an unfinished recording of {owner_name} is there",
        path=partial_path,
        hint=f"Run `warp salvage {partial_path}` to finish it, or delete it.",
    )


def owner_of(partial_path: str) -> str:
    """The owner of a journal in words; a journal that cannot be read has an unknown one."""
    try:
        stated = JournalReader.open(partial_path).descriptor.get("owner", {})
        return f"process {stated['pid']} on {stated['host']}"
    except (WarpError, KeyError, TypeError, AttributeError):
        return "an unknown process"


def with_salvage_hint(error: WarpError, partial_path: str) -> WarpError:
    """The same error, with the way to the data that is still in the journal."""
    error.hint = f"Everything recorded is kept: make room for it, then run `warp salvage {partial_path}`."
    return error


def _slot(record: StepRecord, offset: int, tensor: Any) -> NDArray[Any]:
    """The part of the record a field is copied into, with its dtype and shape."""
    count = tensor.row_bytes // tensor.dtype.itemsize
    if not count:
        return np.zeros(tensor.shape, tensor.dtype.dtype)
    flat = np.frombuffer(record.payload, tensor.dtype.dtype, count, offset)
    return flat.reshape(tensor.shape)


def _real(value: Any) -> NDArray[Any]:
    """A number of any kind; not one with an imaginary part, nor a text or a time that numpy would turn into one."""
    array = as_array(value)
    if array.dtype.kind in "cSUmM":
        raise TypeError(f"{value!r:.40} is not a number")
    return array


def _flag(value: Any) -> bool:
    """True or false, as bool or as the number 1 or 0; a word or another number is neither."""
    flag = bool(value)
    if value is not None and value is not flag and not value == flag:
        raise ValueError(f"{value!r:.40} is not a bool")
    return flag


def _put_text(name: str, encoding: str, slot: NDArray[Any], values: Mapping[str, Any]) -> None:
    """Fill the room of a text field: the length, the bytes, zeros."""
    if name not in values:
        raise _missing(name, values)
    try:
        data = encode_value(encoding, values[name])
    except ValueError as error:
        raise SchemaMismatchError(f"channel {name!r}: {error}") from None
    room = len(slot) - TEXT_SIZE_BYTES
    if len(data) > room:
        raise SchemaMismatchError(
            f"channel {name!r} has {len(data)} bytes, at most {room} were announced",
            hint="Announce more with max_bytes in the description of the channel.",
        )
    whole = len(data).to_bytes(TEXT_SIZE_BYTES, "little") + data
    slot[: len(whole)] = np.frombuffer(whole, np.uint8)
    slot[len(whole) :] = 0


def _missing(name: str, values: Mapping[str, Any]) -> SchemaMismatchError:
    if name in values:
        fact = f"channel {name!r} is None in this step"
    else:
        fact = absent(f"channel {name!r} is missing in this step", name, values)
    return SchemaMismatchError(fact, hint="Give every step a value for every channel.")


def _fitting(
    name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], values: Mapping[str, Any]
) -> NDArray[Any]:
    """A value that is no exact array: Python numbers and lists are taken, arrays of another dtype are not."""
    if value is None:
        raise _missing(name, values)
    if hasattr(value, "dtype"):
        try:
            array = as_array(value)
        except ValueError as error:
            raise SchemaMismatchError(f"channel {name!r} is {error}") from None
        if array.dtype != dtype:
            raise SchemaMismatchError(f"channel {name!r} is {dtype}, not {array.dtype}")
    else:
        array = _converted(name, value, dtype)
    if array.shape != shape:
        raise SchemaMismatchError(f"channel {name!r} has the shape {list(shape)}, not {list(array.shape)}")
    return array


def _converted(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatchError(f"channel {name!r} is {dtype}: {error}") from None
    if array.dtype.kind not in "biuf":
        raise SchemaMismatchError(f"channel {name!r} is {dtype}, not {type(value).__name__}")
    return as_declared(name, array, dtype_of(dtype))
