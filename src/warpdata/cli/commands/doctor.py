"""`warp doctor`: is everything here that reading and publishing need?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp doctor`."""
    from warpdata.cli.commands._dataset import add_catalog_argument
    from warpdata.cli.console import add_json_flag

    add_catalog_argument(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print every check; the exit code is 1 if something needed is broken."""
    from warpdata.catalog.access import access_options, catalog_tuple
    from warpdata.catalog.manage.doctor import examine
    from warpdata.settings import Settings

    settings = Settings.from_env()
    checks = examine(settings, access_options(settings, catalogs=catalog_tuple(args.catalog)))
    is_ok = all(check.is_ok for check in checks if check.is_needed)
    console.emit({"is_ok": is_ok, "checks": [asdict(check) for check in checks]})
    for check in checks:
        mark = (
            console.paint("ok  ", "green")
            if check.is_ok
            else console.paint("FAIL" if check.is_needed else "note", "red")
        )
        console.print(f"{mark}  {check.name}: {check.found}")
        if check.remedy:
            console.print(f"      {check.remedy}")
    return exits.OK if is_ok else exits.ERROR
