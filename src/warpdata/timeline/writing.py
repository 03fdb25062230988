"""What every writer of signals and episodes offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class SignalWriter(ABC):
    """Appends records to one signal; leaving its `with` block finalises the file."""

    @abstractmethod
    def append(self, data: Any, ts_ns: int) -> None:
        """Add a copy of `data` at `ts_ns`, which must be later than the last one."""

    @abstractmethod
    def close(self) -> None:
        """Finalise; calling it again does nothing."""

    @abstractmethod
    def abort(self) -> None:
        """Remove everything written; every later call raises WriterClosedError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EpisodeWriter(ABC):
    """Records several signals and static items of one episode; leaving its `with` block finalises it."""

    @abstractmethod
    def append(self, signal_name: str, data: Any, ts_ns: int) -> None:
        """Add a copy of `data` to a signal at `ts_ns`; when this returns, the record survives a crash."""

    @abstractmethod
    def set_static(self, name: str, data: Any) -> None:
        """Set an item that does not change in time, once."""

    @abstractmethod
    def close(self) -> None:
        """Finalise; calling it again does nothing."""

    @abstractmethod
    def abort(self) -> None:
        """Remove the whole episode; every later call raises WriterClosedError."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finalise what was recorded, also after an exception."""
