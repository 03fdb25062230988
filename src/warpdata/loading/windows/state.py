"""Names of samples in the state of a loader, and the file that holds one."""

from __future__ import annotations

import os
from typing import Any

from warpdata.bytekit.io.ranges import FileRangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError

NAME_CHARS, DATA_CHARS = 16, 6


def names_of(data_id: str, windows_id: str) -> str:
    """The name of samples in a state: the beginning of the hash of the episodes, then of the windows over them.

    For windows that grow the first is "" and only the second is used.
    """
    data = data_id[:DATA_CHARS]
    return data + windows_id[: NAME_CHARS - len(data)]


def saved_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that `save_state` wrote."""
    with FileRangeReader(path) as reader:
        try:
            return parse_json_object(reader.read(0, reader.size))
        except FormatError as error:
            hint = "Save it with loader.save_state()."
            raise CorruptLayoutError(f"not a saved state: {error.message}", path=path, hint=hint) from None
