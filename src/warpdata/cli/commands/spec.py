"""`warp spec`: the law of a file format, as it stands beside the code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_FORMATS = Path(__file__).resolve().parents[2] / "formats"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp spec`."""
    parser.add_argument("format", nargs="?", choices=_names(), help="omit it to list the formats")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print one SPEC.md, or the names of all."""
    if args.format is None:
        console.print("\n".join(_names()))
    else:
        console.print((_FORMATS / args.format / "SPEC.md").read_text().rstrip())
    return exits.OK


def _names() -> list[str]:
    return sorted(spec.parent.name for spec in _FORMATS.glob("*/SPEC.md"))
