"""`warp view`: episodes in the browser, served from this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, naming_errors

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp view`."""
    add_address(parser, "a root, an episode, a .wshard or a published dataset", inside=False)
    parser.add_argument("--port", type=int, default=0, help="where to listen; default: any free port")
    parser.add_argument("--no-open", action="store_true", help="only print the link")
    parser.add_argument("--host", default="127.0.0.1", help="which address to listen on; others need --token")
    parser.add_argument("--token", help="the token of the link; default: a new one at every start")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name under which it may be reached (may be repeated); addresses and localhost always are",
    )
    parser.add_argument(
        "--export",
        metavar="FOLDER",
        help="write a site of files that any server with range requests shows, instead of serving",
    )
    parser.add_argument(
        "--data-url",
        metavar="URL",
        help="with --export: where browsers find the published data, if not at its own address",
    )
    parser.add_argument(
        "--copy",
        action="store_true",
        help="with --export: put copies of published data into the site, for browsers that cannot reach it",
    )
    parser.add_argument(
        "--index",
        metavar="FILE",
        help="a vector file of these episodes, for moments like this; default: one published with them or beside them",
    )
    parser.add_argument(
        "--draft",
        metavar="FOLDER",
        help="where edits of a published dataset are kept; default: a folder named after it, here",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the link and serve until Ctrl-C."""
    import warpdata as wd

    if args.export is not None:
        with console.progress("exporting") as progress:
            wd.export_site(
                args.address, args.export, data_url=args.data_url, copy=args.copy or None, catalog=args.catalog,
                progress=progress,
            )  # fmt: skip
        console.print(f"{args.export}: put it on any server of files")
        return exits.OK
    with naming_errors():
        viewer = wd.view(
            args.address, port=args.port, host=args.host, token=args.token, allow_hosts=args.allow_host,
            draft=args.draft, index=args.index, catalog=args.catalog, open_browser=False,
        )  # fmt: skip
    with viewer:
        console.print(viewer.url)
        console.out.flush()
        console.err.write("serving until Ctrl-C\n")
        if not args.no_open:
            viewer.open_browser()
        try:
            viewer.wait()
        except KeyboardInterrupt:
            console.err.write("\n")
    return exits.OK
