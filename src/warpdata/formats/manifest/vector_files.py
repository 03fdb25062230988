"""Vector files among the shards of an artifact: one that was appended to may lie in parts (SPEC, *Vector indexes*)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from warpdata.formats.manifest.model import BlobRef

_PART = re.compile(r"(.+)\.part(\d{3})")


def vector_files(shards: Sequence[BlobRef]) -> dict[str, list[int]]:
    """File -> where its parts stand, in the order of its bytes."""
    found: dict[str, dict[int, int]] = {}
    for at, shard in enumerate(shards):
        match = _PART.fullmatch(str(shard.name))
        file, number = (str(shard.name), 0) if match is None else (match[1], int(match[2]))
        found.setdefault(file, {})[number] = at
    return {file: [parts[number] for number in sorted(parts)] for file, parts in found.items()}


def listed_files(files: Mapping[str, Sequence[BlobRef]]) -> tuple[BlobRef, ...]:
    """The shards of files; of one in parts the last comes first, which no reader takes for the file itself."""
    found = []
    for file, parts in files.items():
        if len(parts) == 1:
            found.append(replace(parts[0], name=file))
        else:
            named = [replace(part, name=f"{file}.part{number:03d}") for number, part in enumerate(parts)]
            found += reversed(named)
    return tuple(found)
