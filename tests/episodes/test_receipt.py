"""Every receipt is one kind of thing: lines for a person, JSON for a program, a card for a notebook."""

from __future__ import annotations

import json

import pytest

import warpdata as wd
from warpdata.convert.receipt import ConversionReceipt, Note
from warpdata.episodes.salvage.receipt import Receipt
from warpdata.search.file.rewrite import ExportReceipt


def conversion(*, skipped: bool) -> ConversionReceipt:
    made = ConversionReceipt("import", "npz", "there", "here")
    made.add({"joints": Note("kept", 10)})
    if skipped:
        made.skip("7", ValueError("torn"))
    return made


def salvage(**lost: int) -> wd.LossReceipt:
    return wd.LossReceipt(source="a.partial", output="a", episode_id="a", why="it was killed", **lost)


def export(*dropped: str) -> ExportReceipt:
    return ExportReceipt("b.rvf", "wire", 3, ("metadata",), dropped)


WHOLE = [conversion(skipped=False), salvage(), export()]
LOSSY = [conversion(skipped=True), salvage(steps_lost=4, bytes_dropped=99), export("signatures")]


@pytest.mark.parametrize("receipt", [*WHOLE, *LOSSY], ids=lambda each: type(each).__name__)
def test_every_receipt_speaks_to_all_who_ask(receipt: Receipt) -> None:
    assert receipt.is_complete == (receipt in WHOLE)
    assert str(receipt).splitlines() == list(receipt.lines())
    assert isinstance(json.loads(json.dumps(receipt.to_json())), dict)
    assert type(receipt).__name__ in repr(receipt)
    assert "<table" in receipt._repr_html_()


NAMED = ("skipped 7: torn", "4 steps and 99 bytes lost", "signatures")


@pytest.mark.parametrize(("receipt", "named"), list(zip(LOSSY, NAMED, strict=True)))
def test_what_was_lost_is_named(receipt: Receipt, named: str) -> None:
    assert named in str(receipt)
