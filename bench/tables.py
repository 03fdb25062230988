"""Draw the tables of the Markdown pages in this folder from the JSON results: `python -m bench.tables`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGES = [HERE.parent / "README.md", *sorted(HERE.glob("*.md"))]
SLOT = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)


def table(report: dict[str, Any]) -> str:
    """Bars as rows if the report has them, else its plain numbers."""
    if "bars" in report:
        lines = ["| task | measured | bar | holds |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {row['value']:.3g} | {row['bar']} | {'yes' if row['holds'] else '**no**'} |"
            for name, row in report["bars"].items()
        ]
        rates = report.get("windows/s", {})
        lines += ["", "| loader | windows per s |", "|---|---|"] if rates else []
        lines += [
            f"| {name} | {each if isinstance(each, str) else f'{each:,.0f}'} |"
            for name, each in rates.items()
        ]
    else:
        lines = ["| what | number |", "|---|---|"]
        lines += [
            f"| {name.replace('_', ' ')} | {value:,} |" for name, value in report.items() if name != "machine"
        ]
    return "\n".join(lines) + "\n"


def before_and_after() -> str:
    """The bars that were judged before recordings and episodes by step became one, and what they are now."""
    lines = ["| area | task | before | now | bar |", "|---|---|---|---|---|"]
    for path in sorted((RESULTS / "before").glob("*.json")):
        before, now = (json.loads(each.read_text())["bars"] for each in (path, RESULTS / path.name))
        lines += [
            f"| {path.stem} | {name} | {row['value']:.3g} | {now[name]['value']:.3g} | {now[name]['bar']} |"
            for name, row in before.items()
            if name in now
        ]
    return "\n".join(lines) + "\n"


README_ROWS = {
    "write a record of seven numbers, time (MCAP = 1)": ("recording", "append vec7: p50 / mcap add_message"),
    "read a whole shard, speed (npz = 1)": ("episode_formats", "read everything raw: speed / npz"),
    "scan a table on S3, speed (raw reads = 1)": ("streaming", "scan S3 / raw"),
    "training windows per second (bare gather = 1)": (
        "training",
        "raw: windows per s / bare gather with two threads",
    ),
    "nearest neighbours, queries per second (best other = 1)": (
        "vectors",
        "128: QPS one by one, of the best other",
    ),
}
"""Rows of the README: what -> the report and its bar."""


def readme_table() -> str:
    lines = ["| task | measured |", "|---|---|"]
    for task, (report, row) in README_ROWS.items():
        value = json.loads((RESULTS / f"{report}.json").read_text())["bars"][row]["value"]
        lines.append(f"| {task} | {value:.2g} |")
    return "\n".join(lines) + "\n"


def redraw(page: Path) -> str:
    """The page with every table drawn from its results."""

    def fill(slot: re.Match[str]) -> str:
        results = RESULTS / f"{slot[2]}.json"
        if slot[2] == "before_and_after":
            drawn = before_and_after()
        elif slot[2] == "readme":
            drawn = readme_table()
        else:
            drawn = table(json.loads(results.read_text())) if results.exists() else "Not measured yet.\n"
        return f"{slot[1]}\n{drawn}\n{slot[4]}"

    return SLOT.sub(fill, page.read_text())


def main() -> None:
    for page in PAGES:
        page.write_text(redraw(page))


if __name__ == "__main__":
    main()
