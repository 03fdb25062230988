"""Sound and point clouds in the viewer: a WAV file by range, loudness and counts as plots, files of a site."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.viewer.conftest import Client, client_of

EPISODE = "000000000000"
BLOCKS = [np.full(80, 1000 * (1 + step % 3), np.int16) for step in range(30)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "root"
    with wd.record(folder, clock="simulated") as recorder:
        recorder.declare("mic/ä", kind="sound", rate_hz=8000)
        recorder.declare("cloud", ragged=True)
        for step, block in enumerate(BLOCKS):
            recorder.append("mic/ä", block, step * 10_000_000)
            recorder.append("cloud", np.zeros((step % 5, 3), np.float32), step * 10_000_000)
    return folder


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[Client]:
    with wd.view(root, open_browser=False) as viewer:
        yield client_of(viewer)


def number_of(client: Client, name: str) -> int:
    (found,) = (s for s in client.get("episode", episode=EPISODE).json()["signals"] if s["name"] == name)
    assert found["shows"] == "plot"
    return int(found["number"])


def test_sound_is_a_wav_file_that_can_be_read_in_parts(client: Client) -> None:
    number = number_of(client, "mic/ä")
    answer = client.get("video", episode=EPISODE, signal=number)
    assert (answer.status, answer.headers["content-type"]) == (200, "audio/wav")
    with wave.open(io.BytesIO(answer.body)) as file:
        assert (file.getframerate(), file.getnchannels()) == (8000, 1)
        assert np.array_equal(np.frombuffer(file.readframes(-1), np.int16), np.concatenate(BLOCKS))
    path = f"/api/video?episode={EPISODE}&signal={number}"
    part = client.ask("GET", path, headers={"Range": "bytes=44-47"})
    assert (part.status, part.body) == (206, answer.body[44:48])


def test_loudness_and_counts_are_plotted(client: Client) -> None:
    expected = {
        "mic/ä": [1000 * (1 + step % 3) / 32768 for step in range(30)],
        "cloud": [step % 5 for step in range(30)],
    }
    for name, values in expected.items():
        query = {"episode": EPISODE, "signal": number_of(client, name), "from": 0, "to": 10**9, "width": 500}
        _, arrays = client.get("points", **query).arrays()
        assert np.allclose(arrays["values"].reshape(-1), values)
    held = client.get("at", episode=EPISODE, at=45_000_000).json()["values"]
    assert {each["signal"]: each["values"] for each in held}[number_of(client, "cloud")] == [4]
    assert client.get("distribution", signal="cloud").json()["records"] == 30


def test_an_exported_site_has_the_sound_as_a_file(root: Path, client: Client, tmp_path: Path) -> None:
    site = wd.export_site(root, tmp_path / "site")
    number = number_of(client, "mic/ä")
    assert (site / "e" / f"0-{number}.wav").read_bytes() == client.get(
        "video", episode=EPISODE, signal=number
    ).body
    about = json.loads((site / "e" / "0.json").read_text())
    assert about["signals"][str(number)]["levels"]
    assert "media-src 'self'" in (site / "index.html").read_text()
