"""edits.jsonl: one checksummed JSON object per line, only ever appended to."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process import locks
from warpdata.errors import ChecksumError, ConflictError, CorruptLayoutError, FormatError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Folder, read_document

CRC_KEY = "crc32c"
_LOCK_TIMEOUT_S = 60.0


def pack_line(edit: dict[str, Any]) -> bytes:
    """One line of the log."""
    body = {key: value for key, value in edit.items() if key != CRC_KEY}
    return dump_json({**body, CRC_KEY: f"{crc32c(dump_json(body)):08x}"}) + b"\n"


def read_log(root: Folder) -> tuple[list[dict[str, Any]], bool]:
    """All edits in order, and whether the log belongs to another program (it is then left alone)."""
    path, data = read_document(root, layout.EDITS_FILE)
    if data is None:
        return [], False
    whole, _, torn = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    if _is_foreign(lines, torn):
        return [], True
    edits = [_unpack(line, number, path) for number, line in enumerate(lines, 1)]
    for expected, edit in enumerate(edits, 1):
        if edit.get("seq") != expected:
            raise CorruptLayoutError(f"edit {expected} is missing in line {expected}", path=path)
    return edits, False


def append_edit(root: Path, edit: dict[str, Any]) -> None:
    """Add one line, durable when this returns, or ConflictError if another process added one meanwhile.

    A torn line of a crash before is cut off first.
    """
    path = root / layout.EDITS_FILE
    with locks.hold_lock(path, timeout_s=_LOCK_TIMEOUT_S):
        # Locks belong to the open file, not to its name: what is opened here does not end the one that is held.
        _, data = read_document(root, layout.EDITS_FILE)
        lines = (data or b"").count(b"\n")
        if edit["seq"] != lines + 1:
            raise ConflictError(f"the log has {lines} edits by now", path=path)
        with contextlib.closing(AppendFile.open(path, end=(data or b"").rfind(b"\n") + 1)) as log:
            log.append(pack_line(edit))
            log.sync()


def _unpack(line: bytes, number: int, path: str) -> dict[str, Any]:
    try:
        edit = parse_json_object(line)
    except FormatError as error:
        raise CorruptLayoutError(f"line {number} of the edits is {error.message}", path=path) from None
    stated = edit.pop(CRC_KEY, None)
    if stated != f"{crc32c(dump_json(edit)):08x}":
        raise ChecksumError(f"line {number} of the edits was changed after it was written", path=path)
    return edit


def _is_foreign(lines: list[bytes], torn: bytes) -> bool:
    """Logs of the existing library have the same name but neither sequence numbers nor checksums."""
    for line in (*lines, torn):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict) or "seq" in found or CRC_KEY in found:
            return False
    return bool(lines)
