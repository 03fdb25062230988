"""Every exception of warpdata, grouped by what a caller should do.

WarpError                      .code is stable, .hint is what to do next
├── FormatError                the bytes are wrong: do not retry, quarantine
│   ├── BadMagicError          not a file of this kind
│   ├── UnsupportedVersionError
│   ├── TruncatedError         bytes are missing
│   ├── ChecksumError          bytes were changed
│   ├── CorruptLayoutError     the structure contradicts itself
│   ├── LimitExceededError     larger than any honest file
│   ├── UnsupportedDtypeError  an element type this release does not know
│   ├── WidthMismatchError     parts of one corpus disagree about their width
│   └── EmptyCorpusError       nothing to read: no shards, or no rows in them
├── SettingsError              (also ValueError) invalid value of an environment variable
├── StoreError                 the bytes could not be moved
│   ├── BlobNotFoundError      (also FileNotFoundError)
│   ├── BlobChangedError       it was replaced while it was open: open it again
│   ├── BucketNotFoundError    the bucket itself is not there
│   ├── AuthenticationError
│   ├── PermissionError_       (also PermissionError) wd.PermissionError
│   ├── ConflictError          the pointer moved or the blob exists: re-read and decide
│   │   └── PointerMovedError  another version was published meanwhile
│   ├── OutOfSpaceError        (also OSError) no room left: free some, then run again
│   ├── NoLocksError           this file system cannot lock files: write elsewhere
│   └── UnavailableError       timeout, 5xx: retry
├── DatasetError
│   ├── DatasetNotFoundError   (also LookupError)
│   ├── ManifestCorruptedError
│   │   └── UntrustedError     not signed, wrongly signed, or by a key that is not trusted
│   ├── RollbackError          the catalog shows an older state than it did before
│   ├── OfflineError
│   ├── BudgetExceededError    the next request would cost more than was allowed
│   └── TooLargeError          the whole would not fit in memory: stream it
├── RecordingError             the writer was used wrongly
│   ├── TimestampOrderError    (also ValueError)
│   ├── SchemaMismatchError    (also ValueError)
│   ├── WriterClosedError      (also RuntimeError)
│   └── JournalInUseError      another recorder owns this path, or left it unfinished
├── TimeRangeError             (also KeyError) requested time before the first sample
├── NoStepsError               (also LookupError) no clock for steps: choose one
├── ResidencyError             a bounded window and its cursor disagree: a bug, never wrong rows
└── MissingExtraError          (also ImportError) an optional library is not installed
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar, TypeVar, cast

C = TypeVar("C", bound=Callable[..., Any])
W = TypeVar("W", bound=str)


def nearest(name: str, names: Iterable[str]) -> str:
    """A suggestion for a misspelt name, to end a message with; empty if none is close."""
    known = {str(each).casefold(): str(each) for each in names if str(each) != str(name)}
    found = difflib.get_close_matches(str(name).casefold(), known, n=1)
    return f" Did you mean {known[found[0]]!r}?" if found else ""


def suggests(function: C) -> C:
    """Decorate a function or class: a misspelt option is refused with a suggestion, as in Python 3.13."""
    if isinstance(function, type):
        function.__init__ = suggests(function.__init__)  # type: ignore[misc]
        return function
    code = cast(FunctionType, function).__code__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            text, trace = str(error).partition(". Did you mean")[0], error.__traceback__
            # Only the call itself: errors inside of it have a longer traceback.
            if trace is None or trace.tb_next is not None or "unexpected keyword" not in text:
                raise
            known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            wrong = next(name for name in kwargs if name not in known)
            raise TypeError(f"{text}.{nearest(wrong, known)}") from None

    return cast(C, call)


E = TypeVar("E", bound="WarpError")


def add_path(error: E, path: str, block: str | None = None) -> E:
    """The error, with a path and the name of a block in its message if it has none."""
    if error.path is None:
        fact = error.message if block is None or error.block else f"block {block!r}: {error.message}"
        error.path, error.block, error.message = path, error.block or block, f"{fact}: {path}"
    return error


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Add a path to errors raised inside that have none."""
    try:
        yield
    except WarpError as error:
        raise add_path(error, path) from None


def require_word(what: str, word: object, words: Iterable[W]) -> W:
    """The word if it is one of a few, else ValueError, which lists them with a suggestion."""
    known = list(words)
    if not isinstance(word, str) or word not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}, not {word!r:.80}.{nearest(str(word), known)}")
    return word


def require_kind(what: str, value: object, kinds: type | tuple[type, ...], words: str) -> None:
    """Raise TypeError unless a value is of one of these types, described by `words`."""
    if not isinstance(value, kinds):
        raise TypeError(f"{what} is {words}, not {type(value).__name__}")


def require_integer(what: str, value: object, most: int, *, least: int = 0) -> int:
    """The value as a plain int if it is an integer in range, else ValueError."""
    if hasattr(value, "__index__") and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= most:
            return number
    raise ValueError(f"{what} is an integer from {least} to {most}, not {value!r}")


class WarpError(Exception):
    """Base of all warpdata errors: a fact, a stable code and a hint what to do next."""

    code: ClassVar[str] = "warp"
    default_hint: ClassVar[str] = ""
    facts: ClassVar[tuple[str, ...]] = ()
    """Further keywords, which become attributes; None where they are not given."""

    def __init__(
        self,
        fact: str,
        *,
        hint: str | None = None,
        block: str | None = None,
        path: str | os.PathLike[str] | None = None,
        **facts: Any,
    ) -> None:
        message = fact if block is None else f"block {block!r}: {fact}"
        self.message = message if path is None else f"{message}: {os.fspath(path)}"
        super().__init__(self.message)
        self.hint = self.default_hint if hint is None else hint
        self.block = block
        self.path = None if path is None else os.fspath(path)
        for name in self.facts:
            setattr(self, name, facts.pop(name, None))
        if facts:
            raise TypeError(f"{type(self).__name__} has no {next(iter(facts))!r}")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: getattr(self, name) for name in self.facts}
        return (_restored, (type(self), self.message, self.hint, self.block, self.path), facts)


def _restored(
    kind: type[WarpError], message: str, hint: str, block: str | None, path: str | None
) -> WarpError:
    """An error as it was before it crossed a process boundary."""
    error = kind(message, hint=hint)
    error.block, error.path = block, path
    return error


class FormatError(WarpError):
    """The bytes of a file are wrong."""

    code = "format"
    default_hint = "Do not use this file; restore it from another copy."


class BadMagicError(FormatError):
    """The file is not of the kind it was opened as."""

    code = "bad_magic"
    default_hint = "Check that the path names a file of this format."


class UnsupportedVersionError(FormatError):
    """The file was written by a format version this release does not know."""

    code = "unsupported_version"
    default_hint = "Upgrade warpdata, or write the file again with an older release."


class TruncatedError(FormatError):
    """The file ends before its contents do."""

    code = "truncated"
    default_hint = "The copy is incomplete; fetch it again, or run `warp salvage` on a recording."

    facts = ("expected", "actual")
    expected: int | None
    actual: int | None


class ChecksumError(FormatError):
    """The stored checksum does not match the bytes."""

    code = "checksum"
    default_hint = "The data was damaged after it was written; restore it from another copy."


class CorruptLayoutError(FormatError):
    """The structure of the file contradicts itself."""

    code = "corrupt_layout"


class LimitExceededError(FormatError):
    """A size in the file is beyond what the format allows."""

    code = "limit_exceeded"
    default_hint = "The file is damaged or hostile; do not raise the limit to read it."


class UnsupportedDtypeError(FormatError):
    """The elements are of a type this release cannot read."""

    code = "unsupported_dtype"
    default_hint = "Upgrade warpdata, or write the data again as f32, f16 or bf16."

    facts = ("tag",)
    tag: int | None


class WidthMismatchError(FormatError):
    """Two shards of one corpus have rows of different widths."""

    code = "width_mismatch"
    default_hint = "Open shards of one width together; those of another model or layer are another corpus."

    facts = ("expected", "found")
    expected: int | None
    found: int | None


class EmptyCorpusError(FormatError):
    """There is nothing to read."""

    code = "empty_corpus"
    default_hint = "Check that the path names a corpus and that its harvest wrote rows."


class SettingsError(WarpError, ValueError):
    """A variable of the environment has a value that means nothing."""

    code = "settings"
    default_hint = "Correct the variable, or unset it to use the default."


class StoreError(WarpError):
    """The bytes could not be moved."""

    code = "store"


class BlobNotFoundError(StoreError, FileNotFoundError):
    """Nothing is stored under this name."""

    code = "not_found"
    default_hint = "Check the name; list what is there."


class BlobChangedError(StoreError):
    """The bytes at an address changed after it was opened."""

    code = "blob_changed"
    default_hint = "Open it again and read from the beginning: what was read so far is of the one before."


class BucketNotFoundError(StoreError):
    """There is no bucket of this name: no blob of it is merely absent."""

    code = "bucket_not_found"
    default_hint = "Check the name of the bucket and the endpoint, or create the bucket."


class AuthenticationError(StoreError):
    """The store did not accept the credentials."""

    code = "authentication"
    default_hint = "Set the credentials of the store in the environment."


class PermissionError_(StoreError, PermissionError):  # noqa: N801 - the builtin has the plain name
    """The store accepted the credentials and refused access."""

    code = "permission"
    default_hint = "Ask for access to this path, or use another one."


class ConflictError(StoreError):
    """The pointer moved or the blob exists already."""

    code = "conflict"
    default_hint = "Read the current state again and decide."


class PointerMovedError(ConflictError):
    """Another version was published first: build on that one."""

    code = "pointer_moved"


class OutOfSpaceError(StoreError, OSError):
    """The disk is full."""

    code = "out_of_space"
    default_hint = (
        "Free some space on this disk and run the command again; what was there before is untouched."
    )


class NoLocksError(StoreError):
    """Files cannot be locked here, as on some network disks, so writing would not be safe."""

    code = "no_locks"
    default_hint = "Write to a disk of this machine, or mount the network disk with locks, then run again."


class UnavailableError(StoreError):
    """The store did not answer in time."""

    code = "unavailable"
    default_hint = "Try again later."
    retry_after_s: float | None = None
    """Seconds until a retry, from the server; None if it gave none."""
    bytes_received: int = 0
    """Bytes of a response received before it failed."""


class DatasetError(WarpError):
    """A published dataset cannot be used this way."""

    code = "dataset"


class DatasetNotFoundError(DatasetError, LookupError):
    """No dataset of this name in any catalog."""

    code = "dataset_not_found"
    default_hint = "Run `warp catalog list` to see the names."


class ManifestCorruptedError(DatasetError):
    """The manifest of a dataset version does not match its hash or schema."""

    code = "manifest_corrupted"
    default_hint = "Do not use this version; publish it again from its source."


class UntrustedError(ManifestCorruptedError):
    """A version is not signed, is signed wrongly, or by a key that is not trusted."""

    code = "untrusted"
    default_hint = "Ask its publisher to sign it (`warp publish --sign`), or open it with verify='off'."


class RollbackError(DatasetError):
    """A catalog shows an older state of a dataset than it did before."""

    code = "rollback"
    default_hint = (
        "Ask the owner of the catalog; if it is intended, open the dataset once with accept_rollback=True."
    )


class OfflineError(DatasetError):
    """The data is not on this machine and the network may not be used."""

    code = "offline"
    default_hint = "Run `warp warm` while online, or choose another mode."


class BudgetExceededError(DatasetError):
    """The next request would spend more than the caller allowed."""

    code = "budget_exceeded"
    default_hint = "Raise max_bytes or max_requests, or ask for fewer columns, rows or shards."


class TooLargeError(DatasetError):
    """A whole table exceeds the memory limit."""

    code = "too_large"
    default_hint = (
        "Stream it with batches(), ask for fewer rows with limit=, or raise max_rows and max_bytes."
    )


class RecordingError(WarpError):
    """A writer was used wrongly."""

    code = "recording"


class TimestampOrderError(RecordingError, ValueError):
    """A timestamp is not later than the one before it."""

    code = "timestamp_order"
    default_hint = "Give strictly increasing integer nanoseconds."


class SchemaMismatchError(RecordingError, ValueError):
    """A value does not have the dtype or shape of its channel."""

    code = "schema_mismatch"
    default_hint = "Convert the value to the dtype and shape the channel was declared with."


class WriterClosedError(RecordingError, RuntimeError):
    """The writer was closed or aborted before this call."""

    code = "writer_closed"
    default_hint = "Open a new writer."


class JournalInUseError(RecordingError):
    """A recording at this path belongs to a live process, or waits to be salvaged."""

    code = "journal_in_use"


class TimeRangeError(WarpError, KeyError):
    """The requested time is before the first sample."""

    code = "time_range"
    default_hint = "Ask at or after the first timestamp."


class NoStepsError(WarpError, LookupError):
    """An episode has no clock for its steps."""

    code = "no_steps"
    default_hint = "Choose one: episode.steps_at(clock=NAME) or episode.steps_at(rate_hz=20)."


class ResidencyError(WarpError):
    """The bytes in a bounded window are not those the cursor is at."""

    code = "residency"
    default_hint = "This is a bug: please report it. No row was handed out."


class MissingExtraError(WarpError, ImportError):
    """An optional library is not installed."""

    code = "missing_extra"

    @classmethod
    def for_extra(cls, library: str, extra: str) -> MissingExtraError:
        """The error for a `library` that comes with `warpdata[extra]`."""
        return cls(f"{library} is not installed", hint=f"Run: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that installs the libraries of an extra.

    It names the libraries: the package `warpdata` of the public index is another project.
    """
    metadata = importlib.import_module("importlib.metadata")  # slow to load, and rarely needed
    try:
        requirements = metadata.requires("warpdata") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        requirements = []
    ending = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    names = [f"'{item.partition(';')[0].strip()}'" for item in requirements if ending.search(item)]
    return f"pip install {' '.join(names)} (the libraries of warpdata[{extra}])"


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A defect of a file found by a check, or a note about it (`is_damage` false); the same for every format."""

    code: str
    message: str
    part: str | None = None
    """The block, segment or file concerned."""
    hint: str = ""
    is_damage: bool = True

    @classmethod
    def of(cls, error: WarpError, part: str | None = None) -> FileFinding:
        """The finding for an error that made a file, or this part of it, unreadable."""
        return cls(error.code, str(error), part or error.block, error.hint)


def __getattr__(name: str) -> Any:
    """The builtin's plain name for the error that is also the builtin."""
    if name == "PermissionError":
        return PermissionError_
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
