"""Minari datasets: read as minari reads them, written again as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.convert.foreign import copied, expected, hdf5_content, imported, same_channel, sample
from tests.convert.sets import made_episode
from warpdata.convert import dreamer, hdf5, minari
from warpdata.convert.place import Place
from warpdata.convert.tables import parquet
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import STEPS, StepClock

SETS = ["dict-hdf5-v0", "box-arrow-v0", "dict-parquet-v0", "box-parquet-v0"]


def table(path: Path) -> Any:
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()


def check_same(target: Path, source: Path) -> None:
    assert json.loads((target / "data/metadata.json").read_text()) == json.loads(
        (source / "data/metadata.json").read_text()
    )
    if (source / "data/main_data.hdf5").exists():
        assert hdf5_content(target / "data/main_data.hdf5") == hdf5_content(source / "data/main_data.hdf5")
        return
    for number in range(3):
        ours, theirs = target / "data" / str(number), source / "data" / str(number)
        assert json.loads((ours / "metadata.json").read_text()) == json.loads(
            (theirs / "metadata.json").read_text()
        )
        part = next(theirs.glob("part-0.*"))
        assert table(ours / part.name).equals(table(part))
        assert table(ours / part.name).schema.equals(table(part).schema, check_metadata=True)


@pytest.mark.parametrize("name", SETS)
def test_datasets_are_read_as_minari_reads_them(name: str) -> None:
    source = sample("minari", "synth", name)
    assert minari.matches(Place.of(source))
    episodes = minari.read(source)
    told = expected("minari", f"{name}.expected.json")["episodes"]
    assert len(episodes) == len(told)
    for episode, each in zip(episodes, told, strict=True):
        assert len(episode.steps) == each["length"]
        assert set(episode.signals) == set(each["channels"])
        assert episode.static["seed"] == each["metadata"]["seed"]
        for channel, about in each["channels"].items():
            assert same_channel(episode[channel].values(), about), channel


@pytest.mark.parametrize("kind", ["root", "shards"])
def test_pictures_keep_their_pixels_when_they_are_imported(kind: str, tmp_path: Path) -> None:
    """JPEG pictures lie in a video then, and are still what minari decodes."""
    name = "dict-hdf5-v0"
    episodes = imported(minari.read(sample("minari", "synth", name)), tmp_path / kind, kind, "minari")
    told = expected("minari", f"{name}.expected.json")["episodes"]
    for episode, each in zip(episodes, told, strict=True):
        about = each["channels"]["observations/image"]
        assert same_channel(episode["observations/image"].values(), about)


@pytest.mark.parametrize("name", SETS)
def test_datasets_come_out_as_they_went_in(name: str, tmp_path: Path) -> None:
    source = sample("minari", "synth", name)
    for kind in ("straight", "root", "shards"):
        episodes = minari.read(source)
        if kind != "straight":
            episodes = imported(episodes, tmp_path / kind, kind, "minari")
        receipt = minari.write(episodes, tmp_path / f"{kind}-out")
        assert receipt.is_exact, str(receipt)
        check_same(tmp_path / f"{kind}-out", source)


def test_pictures_are_copied_not_encoded_again(tmp_path: Path) -> None:
    episodes = minari.read(sample("minari", "synth", "dict-hdf5-v0"))
    minari.write(episodes, tmp_path / "out", data_format="arrow", dataset_id="a/b-v1")
    again = minari.read(tmp_path / "out")
    assert again[1]["observations/image"].pictures(range(25)) == episodes[1]["observations/image"].pictures(
        range(25)
    )
    told = json.loads((tmp_path / "out/data/metadata.json").read_text())
    assert (told["data_format"], told["dataset_id"]) == ("arrow", "a/b-v1")
    assert again[0].meta["minari"]["episode"]["options"] == {"difficulty": 0}


def test_raw_pixels_stay_raw(tmp_path: Path) -> None:
    episodes = hdf5.read(sample("robomimic", "gen_lift_image.hdf5"))[:1]
    receipt = minari.write(episodes, tmp_path / "lift-v0")
    assert receipt.is_exact
    told = json.loads((tmp_path / "lift-v0/data/metadata.json").read_text())
    assert told["jpeg_encoding"] is False
    assert told["dataset_id"] == "lift-v0"
    again = minari.read(tmp_path / "lift-v0")[0]
    np.testing.assert_array_equal(
        again["observations/agentview_image"].values(), episodes[0]["obs/agentview_image"].values()
    )
    np.testing.assert_array_equal(again["rewards"].values(), episodes[0]["rewards"].values())


def test_a_row_that_is_an_observation_only_is_no_step(tmp_path: Path) -> None:
    episodes = dreamer.read(sample("dreamerv3", "replay"))
    minari.write(episodes, tmp_path / "out")
    again = minari.read(tmp_path / "out")
    assert [len(episode.steps) for episode in again] == [39, 24, 59, 32]
    np.testing.assert_array_equal(again[0]["rewards"].values(), episodes[0]["reward"].values()[1:])
    np.testing.assert_array_equal(again[0]["actions"].values(), episodes[0]["action"].values()[:-1])
    assert again[0]["terminations"].values().tolist() == [False] * 38 + [True]
    assert not again[0]["truncations"].values().any()


def test_what_minari_asks_for_and_nobody_has_is_told(tmp_path: Path) -> None:
    episodes = hdf5.read(sample("robomimic", "gen_libero_style_demo.hdf5"))[:1]
    receipt = minari.write(episodes, tmp_path / "repeated")
    assert receipt.signals["obs/ee_pos"].why == [
        "the last observation is repeated; called 'observations/ee_pos' there"
    ]
    assert "missing in the source" in receipt.signals["truncations"].why[0]
    seen = minari.read(tmp_path / "repeated")[0]["observations/ee_pos"].values()
    np.testing.assert_array_equal(seen[-1], seen[-2])
    minari.write(episodes, tmp_path / "dropped", final_observation="drop")
    assert len(minari.read(tmp_path / "dropped")[0].steps) == 39


def changed(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e999, "many", [7], {"a": 1}])
def test_seeds_that_are_no_numbers(value: Any, tmp_path: Path) -> None:
    source = copied(sample("minari", "synth", "box-arrow-v0"), tmp_path)
    changed(source / "data/1/metadata.json", {"seed": value})
    assert "seed" not in minari.read(source)[1].static


def other_column(path: Path, name: str, values: Any, metadata: dict[str, str] | None = None) -> None:
    """Put a column into the table of an episode, or others in its place; None takes it away."""
    found = table(path)
    if name in found.column_names:
        found = found.drop_columns([name])
    if values is not None:
        found = found.append_column(pa.field(name, values.type, metadata=metadata), values)
    with pa.ipc.new_file(path, found.schema) as out:
        out.write_table(found)


def test_tables_that_are_too_large_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 8)
    with pytest.raises(LimitExceededError, match=r"a group of rows of \d+ bytes.*data/0"):
        _ = minari.read(sample("minari", "synth", "box-parquet-v0"))[0]


def test_episodes_that_are_no_dataset_are_refused(tmp_path: Path) -> None:
    whole, bare = made_episode(0), made_episode(1, camera=False)
    with pytest.raises(CorruptLayoutError, match="at least one episode") as caught:
        minari.write(Episodes.of([]), tmp_path / "a")
    assert "another copy" not in str(caught.value.hint)
    with pytest.raises(SchemaMismatchError, match=f"'{bare.id}' has other signals than the first one"):
        minari.write(Episodes.of([whole, bare]), tmp_path / "a")
    no_action = Episode.of(
        {name: signal for name, signal in bare.signals.items() if name != "action"},
        id="x",
        steps=StepClock(STEPS),
    )
    with pytest.raises(CorruptLayoutError, match="there are no actions") as caught:
        minari.write(Episodes.of([no_action]), tmp_path / "a")
    assert "Episodes.map" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_episodes_that_cannot_be_read_are_skipped_and_named(tmp_path: Path) -> None:
    source = copied(sample("minari", "synth", "box-arrow-v0"), tmp_path)
    path = source / "data/1/part-0.arrow"
    other_column(path, "infos", pa.array([{"y": None}] + [{"y": 1}] * (len(table(path)) - 1)))
    episodes = minari.read(source)
    with pytest.raises(CorruptLayoutError, match=r"'infos/y' has missing values.*data/1"):
        minari.write(episodes, tmp_path / "out")
    receipt = minari.write(episodes, tmp_path / "out", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == ["episode_1"]
    kept = minari.read(tmp_path / "out")
    assert [len(each.steps) for each in kept] == [len(episodes[0].steps), len(episodes[2].steps)]
    with pytest.raises(ValueError, match="on_error is one of stop, skip, not 'skp'"):
        minari.write(episodes, tmp_path / "other", on_error="skp")  # type: ignore[arg-type]
