"""Draw the table of docs/reference/accepted-by-originals.md from `results/`: `python tools/oracles/page.py`."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "reference" / "accepted-by-originals.md"
BEGIN, END = "<!-- table: oracles -->\n", "<!-- end -->"


def table() -> str:
    """A row per exported set: which library read it, and what was compared."""
    rows = ["| format | set | library | what was compared |", "|---|---|---|---|"]
    for path in sorted((HERE / "results").glob("*.json")):
        for name, about in json.loads(path.read_text()).items():
            rows.append(f"| {path.stem} | {name} | {about['library']} | {_compared(about)} |")
    return "\n".join(rows) + "\n"


def _compared(about: dict[str, object]) -> str:
    counts = {key: value for key, value in about.items() if key.endswith(" compared")}
    notes = [f"{key} {value}" for key, value in about.items() if key not in ("library", "skipped", *counts)]
    if not any(counts.values()):
        return ", ".join(["opened and read; nothing compared", *notes])
    return ", ".join([*(f"{value} {key}" for key, value in counts.items()), *notes])


def drawn(text: str) -> str:
    """The page with the table as the results say it."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
