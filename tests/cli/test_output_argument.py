"""Where a command writes can be said as its last argument or as an option."""

from __future__ import annotations

import argparse

import pytest

from warpdata.cli.arguments import arg, command, output
from warpdata.cli.console import Output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["in"], None),
        (["in", "out"], "out"),
        (["in", "--output", "out"], "out"),
        (["--output", "out", "in"], "out"),
        (["-o", "out", "in"], "out"),
    ],
)
def test_output_is_the_last_argument_or_an_option(given: list[str], expected: str | None) -> None:
    parser = argparse.ArgumentParser()
    made = command("write", arg("file"), output("where"), example="warp write in out")
    made(lambda *_: Output()).add_to(parser)
    assert parser.parse_args(given).output == expected
