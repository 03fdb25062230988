"""What notebooks, terminals and figures show of things: no script, every text escaped, short."""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.viewer.samples import SCRIPT, numbered_frame, record_one
from warpdata.bytekit.codec import encode_png
from warpdata.cli.main import main
from warpdata.cli.terminal import picture_lines
from warpdata.errors import UnsupportedDtypeError
from warpdata.settings import Settings


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cards") / "root"
    record_one(root, 0, {"task": SCRIPT, "note": SCRIPT}, steps=40)
    return root


def is_safe(text: str) -> bool:
    """Whether a browser runs nothing of it: no tag but ours, no attribute that is code."""
    tags = set(re.findall(r"<\s*/?\s*([a-zA-Z]+)", text))
    allowed = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p", "svg", "polyline", "img"}
    return tags <= allowed and not re.search(r"<[^>]*\son\w+\s*=", text) and "javascript:" not in text


def test_every_card_is_html_without_scripts(root: Path, local_catalog: str) -> None:
    episodes = wd.open_recordings(root)
    episode = episodes[0]
    with wd.DatasetBuilder("lab/arm", catalog=local_catalog) as builder:
        builder.add_table("main", {"text": [SCRIPT] * 3, SCRIPT: [1, 2, 3]})
        builder.add_episodes("demos", root)
        builder.publish()
    receipt = wd.LossReceipt(source="a", episode_id=SCRIPT, steps_lost=1, channels={SCRIPT: 4}, why=SCRIPT)
    samples = episode.sample(np.arange(5) * 10**8 + episode.first_ts_ns, ["joints", "front", "events"])
    with wd.dataset("lab/arm", catalog=local_catalog) as dataset:
        things: list[Any] = [
            episode, episodes, episodes[:0], dataset, dataset.table(), samples, receipt, dataset.episodes,
            wd.Episode.of({"odd": wd.ArraySignal([0, 1], [np.nan, np.inf]), SCRIPT: wd.ArraySignal([0], ["x"])}),
        ]  # fmt: skip
        for thing in things:
            card = thing._repr_html_()
            assert is_safe(card), card[:2000]
            assert len(repr(thing)) < 400, repr(thing)
            assert "<svg" in card or "<table" in card
        assert dataset._repr_html_().count("<img") == 1, "a picture of its episode"
    card = episode._repr_html_()
    assert card.count("<img") >= 10
    assert "<polyline" in card
    assert "&lt;script&gt;" in card


def test_pictures_are_png(root: Path) -> None:
    from PIL import Image

    depth = np.arange(60, dtype=np.uint16).reshape(6, 10) * 1001
    for pixels in (numbered_frame(5), numbered_frame(9)[:, :, 0], np.zeros((1, 1), np.uint8), depth):
        with Image.open(io.BytesIO(encode_png(pixels))) as image:
            assert np.array_equal(np.asarray(image), pixels)
    for wrong in (np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2)), np.zeros((0, 2), np.uint8)):
        with pytest.raises(UnsupportedDtypeError, match="a picture is"):
            encode_png(wrong)


def test_blocks_are_the_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
    cells = re.findall(
        r"38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", picture_lines(pixels, "blocks", 80)
    )
    seen = np.array(cells, int).reshape(3, 4, 2, 3).transpose(0, 2, 1, 3).reshape(6, 4, 3)
    assert np.array_equal(seen, pixels)


def test_kitty_and_iterm_get_the_picture() -> None:
    import base64

    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    kitty = picture_lines(pixels, "kitty", 40)
    pieces = re.findall(r"\x1b_G(?:a=T,f=100,c=40,)?m=([01]);([^\x1b]*)\x1b\\", kitty)
    assert [more for more, _ in pieces] == ["1"] * (len(pieces) - 1) + ["0"]
    assert base64.b64decode("".join(piece for _, piece in pieces)) == encode_png(pixels)
    iterm = picture_lines(pixels, "iterm", 40)
    assert base64.b64decode(iterm.split(":")[1].rstrip("\a\n")) == encode_png(pixels)


def test_sixels_are_the_picture() -> None:
    """Read back by the rules of the protocol: colours of the palette, six rows a band, runs, passes."""
    pixels = np.zeros((14, 20, 3), np.uint8)
    pixels[3:9, 5:15] = (255, 0, 0)
    pixels[10:] = (255, 255, 255)
    text = picture_lines(pixels, "sixel", 40)
    assert text.startswith("\x1bPq")
    assert text.endswith("\x1b\\\n")
    palette = {int(n): tuple(map(int, rgb)) for n, *rgb in re.findall(r"#(\d+);2;(\d+);(\d+);(\d+)", text)}
    body = re.sub(r"#\d+;2;\d+;\d+;\d+", "", text[text.index(";14") + 3 : -3])
    seen = np.zeros_like(pixels)
    x = y = colour = 0
    for number, count, sign in re.findall(r"#(\d+)|(?:!(\d+))?([?-~$-])", body):
        if number:
            colour = int(number)
        elif sign == "$":
            x = 0
        elif sign == "-":
            x, y = 0, y + 6
        else:
            for _ in range(int(count or 1)):
                for bit in range(6):
                    if ord(sign) - 63 >> bit & 1:
                        seen[y + bit, x] = [each * 255 // 100 for each in palette[colour]]
                x += 1  # noqa: SIM113 - a run counts on, other signs go back
    assert np.array_equal(seen, pixels)


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"), ({"KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "foot"}, "sixel"), ({"TERM": "xterm-256color"}, "blocks"), ({}, "blocks"),
    ],
)  # fmt: skip
def test_terminals_are_known_by_their_environment(env: dict[str, str], wanted: str) -> None:
    assert Settings.from_env(env).pictures == wanted


def test_show_paints_on_a_terminal_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for out, painted in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stdout", out)
        assert main(["show", f"{root}#0"]) == 0
        assert ("▀" in out.getvalue()) == painted


def test_a_figure_has_an_axis_per_signal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    episode = wd.open_recordings(root)[0]
    with pytest.raises(KeyError, match="joints"):
        _figure(episode, ["jonts"])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="matplotlib is not installed"):
        episode.plot()


def _figure(episode: wd.Episode, names: list[str]) -> Any:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return episode.plot(names)


def test_a_figure_draws_the_records(root: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figure = wd.open_recordings(root)[0].plot(["joints", "reward"])
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["joints", "reward"]
    assert len(figure.axes[0].lines) == 3
    assert len(figure.axes[0].lines[0].get_xdata()) == 40


def test_png_says_what_it_holds() -> None:
    made = encode_png(np.zeros((3, 5), np.uint8))
    assert struct.unpack(">II", made[16:24]) == (5, 3)
    assert zlib.decompress(made[made.index(b"IDAT") + 4 : -16]) == bytes(3 * 6)
