"""Where a command writes can be said as its last argument or as an option."""

from __future__ import annotations

import argparse

import pytest

from warpdata.cli.console import add_output


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
    parser.add_argument("file")
    add_output(parser, "where")
    assert parser.parse_args(given).output == expected
