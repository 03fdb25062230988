"""Names that some disks take for one: on macOS `Cam` and `cam` are the same file, however an accent is written."""

from __future__ import annotations

import os
import secrets
import unicodedata

from warpdata.bytekit.io.commit import TEMP_MARK, map_os_errors
from warpdata.errors import ConflictError


def folded(name: str) -> str:
    """What a name has in common with all that such a disk takes for it."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def keep_apart(name: str, taken: dict[str, str], folder: str | os.PathLike[str]) -> None:
    """Note in `taken` that `name` is used, or ConflictError where the disk of `folder` takes it for one that is."""
    other = taken.setdefault(folded(name), name)
    if other != name and not tells_apart(folder):
        raise ConflictError(
            f"this disk takes {name!r} and {other!r} for one name", path=folder,
            hint="Use names that differ in more than case.",
        )  # fmt: skip


def tells_apart(folder: str | os.PathLike[str]) -> bool:
    """Whether the disk of a folder has two files where names differ in case only; it is tried."""
    tried = os.path.join(folder, f".case{TEMP_MARK}{secrets.token_hex(6)}")
    with map_os_errors(folder):
        os.close(os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            return not os.path.lexists(os.path.join(folder, os.path.basename(tried).swapcase()))
        finally:
            os.unlink(tried)
