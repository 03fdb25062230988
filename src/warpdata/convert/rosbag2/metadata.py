"""metadata.yaml of a bag: the part of YAML that recorders write, and nothing that could run or grow."""

from __future__ import annotations

import re
from typing import Any

from warpdata.errors import CorruptLayoutError

_MAX_LINES = 1 << 20
_MAX_DEPTH = 32
_KEY = re.compile(r"((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s:#\-\[\]{}\"'][^:#]*?))\s*:(?:\s+(.*))?$")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "/": "/", "0": "\0", " ": " "}


def parse_metadata(text: str, path: str) -> dict[str, Any]:
    """The bag's information; CorruptLayoutError where it is not there, or not as recorders write it."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))
    ]
    if len(lines) > _MAX_LINES:
        raise CorruptLayoutError(f"{len(lines)} lines of metadata", path=path)
    try:
        found = _Parser(lines).block(0, 0)
    except (ValueError, IndexError, RecursionError) as error:
        raise CorruptLayoutError(f"the metadata of the bag cannot be read ({error})", path=path) from None
    told = found.get("rosbag2_bagfile_information") if isinstance(found, dict) else None
    if not isinstance(told, dict):
        raise CorruptLayoutError("the metadata of the bag says nothing of it", path=path)
    return told


class _Parser:
    """Lines of block YAML: maps, lists, scalars and texts over several lines."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def block(self, indent: int, depth: int) -> Any:
        """What stands at this indent, up to the first line that is less deep."""
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        if self._at >= len(self._lines):
            return None
        return (
            self._list(indent, depth)
            if self._text().startswith("- ") or self._text() == "-"
            else self._map(indent, depth)
        )

    def _indent(self) -> int:
        line = self._lines[self._at]
        return len(line) - len(line.lstrip(" "))

    def _text(self) -> str:
        return self._lines[self._at].strip()

    def _map(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._at < len(self._lines) and self._indent() == indent and not self._text().startswith("- "):
            matched = _KEY.match(self._text())
            if matched is None:
                raise ValueError(f"no key in {self._text()[:40]!r}")
            self._at += 1
            found[str(_scalar(matched[1]))] = self._value((matched[2] or "").strip(), indent, depth)
        return found

    def _list(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._at < len(self._lines) and self._indent() == indent and self._text().startswith("-"):
            rest = self._text()[1:].strip()
            if not rest:
                self._at += 1
                found.append(self._value("", indent, depth))
            elif _KEY.match(rest):
                line = self._lines[self._at]
                inner = indent + 1 + len(line[indent + 1 :]) - len(line[indent + 1 :].lstrip(" "))
                self._lines[self._at] = " " * inner + rest
                found.append(self.block(inner, depth + 1))
            else:
                self._at += 1
                found.append(_scalar(self._continued(rest, indent)))
        return found

    def _value(self, rest: str, indent: int, depth: int) -> Any:
        if rest and rest[0] in "|>":
            return self._folded(indent)
        if rest:
            return _scalar(self._continued(rest, indent))
        if self._at < len(self._lines):
            deeper = self._indent()
            if deeper > indent and not (_KEY.match(self._text()) or self._text().startswith("-")):
                return _scalar(self._continued("", indent))
            if deeper > indent or (deeper == indent and self._text().startswith("-")):
                return self.block(deeper, depth + 1)
        return None

    def _continued(self, rest: str, indent: int) -> str:
        """A scalar that goes on in deeper lines."""
        while self._at < len(self._lines) and self._indent() > indent:
            rest = f"{rest} {self._text()}".strip()
            self._at += 1
        return rest

    def _folded(self, indent: int) -> str:
        found = []
        while self._at < len(self._lines) and self._indent() > indent:
            found.append(self._lines[self._at])
            self._at += 1
        return "\n".join(found)


def _scalar(text: str) -> Any:
    if text in ("", "~", "null"):
        return None
    if text[0] == '"' and text[-1] == '"' and len(text) > 1:
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])
    if text[0] == "'" and text[-1] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"[-+]?\d{1,20}", text) else text
