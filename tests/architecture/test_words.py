"""Words that callers choose: what is misspelt is refused with the word that was meant, in Python as in the shell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.catalog.access import AccessKeywords, AccessOptions
from warpdata.catalog.read.refs import write_batches
from warpdata.corpora.source import SourceKeywords, SourceOptions
from warpdata.timeline.steps import check_align

MISSPELT: dict[str, Callable[[], Any]] = {
    "local": lambda: wd.dataset("a/b", catalog="c", mode="locl"),
    "require": lambda: wd.dataset("a/b", catalog="c", verify="requir"),
    "cache_dir": lambda: wd.dataset("a/b", catalog="c", cachedir="x"),  # type: ignore[call-arg]
    "image": lambda: wd.DatasetBuilder("a/b", catalog="c").bind("t", "c", "a", "imgae"),
    "range": lambda: wd.DatasetBuilder("a/b", catalog="c").bind("t", "c", "a", addressing="rang"),
    "parquet": lambda: write_batches([], None, "parqet", None),  # type: ignore[arg-type]
    "linear": lambda: check_align("linaer", None),  # type: ignore[arg-type]
    "simulated": lambda: wd.record("x", clock="simulatd"),  # type: ignore[arg-type]
    "same": lambda: wd.record("x", outcome="sam"),  # type: ignore[arg-type]
    "hevc": lambda: wd.VideoOptions(codec="hecv"),
    "rgb": lambda: wd.WShardEpisode(id="e", length=1).add_modality("head", "rbg", np.zeros((1, 2, 2, 3))),
    "batch_rows": lambda: wd.open_corpus("none", batchrows=3),  # type: ignore[call-arg]
    "shard_bytes": lambda: wd.CorpusWriter("none", 3, shardbytes=3),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("meant", MISSPELT)
def test_the_word_that_was_meant_is_named(
    meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError), match=f"Did you mean '{meant}'"):
        MISSPELT[meant]()
    assert not list(tmp_path.iterdir())


def test_parts_of_a_dataset_that_are_misspelt(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with wd.DatasetBuilder("a/b", catalog=tmp_path / "c") as builder:
        builder.add_table("main", {"x": [1]}).add_artifact("notes", tmp_path / "notes.txt").publish()
    with wd.dataset("a/b", catalog=tmp_path / "c") as ds:
        for look, meant in ((lambda: ds.table("mian"), "main"), (lambda: ds.artifact("note"), "notes")):
            with pytest.raises(wd.errors.DatasetError) as caught:
                look()
            assert f"Did you mean {meant!r}" in caught.value.hint


def test_channels_and_samples_that_are_misspelt() -> None:
    episode = wd.WShardEpisode(id="e", length=1)
    episode.observations["joint_pos"] = np.zeros((1, 2))
    episode.omens["joint_pos/dreamer"] = np.zeros((1, 2))
    for look in (
        lambda: episode.observations["joint_ps"],
        lambda: episode.omens["joint_ps"],
        lambda: episode.add_residual("joint_ps"),
        lambda: episode.in_time.sample(np.array([0]))["joint_ps"],
        lambda: episode.in_time["joint_ps"],
        lambda: episode.in_time.signals["joint_ps"],
    ):
        with pytest.raises(KeyError, match="Did you mean 'joint_pos"):
            look()
    with pytest.raises(KeyError, match="Did you mean 'dreamer'"):
        episode.omens["joint_pos"]["dremer"]
    assert episode.observations.get("other") is None
    assert "other" not in episode.omens


@pytest.mark.parametrize(
    ("keywords", "options", "without"),
    [
        (SourceKeywords, SourceOptions, set()),
        (AccessKeywords, AccessOptions, {"catalogs", "mode", "budget"}),
    ],
)
def test_keywords_are_the_fields_of_options(keywords: Any, options: Any, without: set[str]) -> None:
    assert set(keywords.__annotations__) == {field.name for field in dataclasses.fields(options)} - without
