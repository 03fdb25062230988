"""Draw the tables of docs/reference/accepted-by-originals.md from `results/`: `python tools/oracles/page.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "reference" / "accepted-by-originals.md"
BEGIN, END = "<!-- table: oracles -->\n", "<!-- end -->"
HEADINGS = {
    "library": "read by",
    "against": "held against",
    "largest difference of a frame, in levels of 255": "difference of frames (of 255)",
    "speed in items per CPU second, against lerobot's": "speed (lerobot = 1)",
    "the same with every frame decoded anew": "speed, every frame decoded",
    "levels between two decoders of JPEG": "levels between decoders of JPEG",
}
"""Shorter names of what the results have; the other names are headings as they are."""


def tables() -> str:
    """A section per format: a row per set that the original read, a column for everything the results hold of it."""
    return "\n".join(
        line
        for path in sorted((HERE / "results").glob("*.json"))
        for line in section(path.stem, json.loads(path.read_text()))
    )


def section(name: str, results: dict[str, dict[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(key for about in results.values() for key in about if key != "skipped"))
    columns = [*columns[:1], *sorted(columns[1:], key=lambda key: not key.endswith("compared"))]
    yield from (f"### {name}", "")
    yield f"| set | {' | '.join(HEADINGS.get(column, column) for column in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for each, about in results.items():
        cells = [str(about.get(column, "")) for column in columns]
        if not any(about[column] for column in about if column.endswith(" compared")):
            cells[1] = "nothing compared"
        yield f"| {each} | {' | '.join(cells)} |"
    yield ""
    skipped = sorted({field for about in results.values() for field in about.get("skipped", ())})
    if skipped:
        yield from (f"Not compared: {', '.join(f'`{field}`' for field in skipped)}.", "")


def drawn(text: str) -> str:
    """The page with the tables that the results give."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
