"""Read the byte tables of a SPEC.md and the records of a layout.py, so that a test can compare them."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

_TOKEN = re.compile(r"(\d*)([xcbB?hHiIlLqQefdspP])")


class Field(NamedTuple):
    offset: int
    size: int
    name: str


def spec_table(path: Path, heading: str) -> list[Field]:
    """The rows (offset, size, field) of the first table below the heading that begins with `heading`."""
    lines = path.read_text().splitlines()
    start = next(
        i for i, line in enumerate(lines) if line.startswith("#") and line.lstrip("# ").startswith(heading)
    )
    rows: list[Field] = []
    for line in lines[start + 1 :]:
        if line.startswith("#"):
            break
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"(0x[0-9A-Fa-f]+|\d+)", cells[0]) and cells[1].isdigit():
            rows.append(Field(int(cells[0], 0), int(cells[1]), cells[2]))
        elif rows and not line.startswith("|"):
            break
    return rows


def layout_fields(record: type, form: struct.Struct) -> list[Field]:
    """The fields of a NamedTuple with the offsets and sizes its struct gives them; pad bytes have no name."""
    names = iter(record._fields)
    fields: list[Field] = []
    offset = 0
    for count, code in _TOKEN.findall(form.format.lstrip("<>=!@")):
        repeats = 1 if code in "sp" or not count else int(count)
        size = int(count or 1) if code in "sp" else struct.calcsize("<" + code)
        for _ in range(repeats):
            if code != "x":
                fields.append(Field(offset, size, next(names)))
            offset += size
    assert next(names, None) is None, "the NamedTuple has more fields than its struct"
    return fields


def assert_spec_matches(path: Path, heading: str, record: type, form: struct.Struct) -> None:
    """The table in SPEC.md and the record in layout.py say the same, field by field."""
    documented = [field for field in spec_table(path, heading) if field.name != "(zero)"]
    assert documented, f"no table below {heading!r} in {path}"
    assert documented == layout_fields(record, form)
