"""`warp init`: a loader for a dataset that runs as it is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp init`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("--table")
    parser.add_argument("--out", help="file to write (default: workspace_name_loader.py)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the file."""
    from warpdata.bytekit.io.commit import write_file
    from warpdata.catalog.manage.scaffold import loader_code, loader_name
    from warpdata.cli.commands._dataset import open_named
    from warpdata.errors import ConflictError

    with open_named(args) as dataset:
        code, path = loader_code(dataset, args.table), Path(args.out or loader_name(dataset))
    if path.exists() and not args.overwrite:
        raise ConflictError("the file exists already", path=path, hint="Use --out or --overwrite.")
    write_file(path, code.encode())
    console.emit({"path": str(path)})
    console.print(f"wrote {path}; try: python {path}")
    return exits.OK
