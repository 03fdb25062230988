"""Undo and redo as a person expects them, against a slow reference; drafts of episodes that cannot be changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.episodes.collection.draft import Draft, draft_source
from warpdata.episodes.collection.edits import Edits


def recorded(root: Path, count: int = 3) -> Path:
    for number in range(count):
        with wd.LocalDatasetWriter(root).new_episode() as writer:
            for k in range(10):
                writer.append("state", np.full(2, number, np.float32), k * 10)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("redo") / "root")


@given(st.lists(st.sampled_from(["drop 0", "drop 1", "note 2", "undo", "redo"]), max_size=14))
def test_undo_and_redo_are_those_of_an_editor(root: Path, words: list[str]) -> None:
    """The reference: a list of what was done and a list of what was taken back; a new edit forgets the second."""
    (root / "edits.jsonl").unlink(missing_ok=True)
    edits = Edits(root)
    done: list[str] = []
    back: list[str] = []
    for turn, word in enumerate(words):
        if word == "undo":
            if done:
                back.append(done.pop())
                edits.undo()
            else:
                with pytest.raises(ValueError, match="no edit to undo"):
                    edits.undo()
        elif word == "redo":
            if back:
                done.append(back.pop())
                edits.redo()
            else:
                with pytest.raises(ValueError, match="no edit to make again"):
                    edits.redo()
        else:
            back = []
            what, number = word.split()
            done.append(f"{word} {turn}")
            if what == "drop":
                edits.drop(int(number))
            else:
                edits.set_static(int(number), "note", turn)
        entries = {entry.id: entry for entry in Edits(root).apply(range(3))}
        dropped = {f"{int(each.split()[1]):012d}" for each in done if each.startswith("drop")}
        assert set(entries) == {f"{n:012d}" for n in range(3)} - dropped
        notes = [int(each.split()[2]) for each in done if each.startswith("note")]
        assert entries["000000000002"].static == ({"note": notes[-1]} if notes else {})


def shards(folder: Path) -> wd.Episodes:
    for name in ("b", "a-1", "7"):
        episode = wd.WShardEpisode(id=name, length=10)
        episode.observations["state"] = np.full((10, 2), ord(name[0]), np.float32)
        episode.actions["ctrl"] = np.zeros((10, 1), np.float32)
        folder.mkdir(exist_ok=True)
        wd.save_wshard(episode, folder / f"{name}.wshard", overwrite=True)
    return wd.open_episodes(folder)


def test_a_draft_shows_its_edits_and_changes_nothing(tmp_path: Path) -> None:
    episodes = shards(tmp_path / "shards")
    before = episodes.ids
    assert set(before) == {"7", "a-1", "b"}
    draft = Draft(episodes, tmp_path / "draft", of="lab/arm@1")
    assert draft.episodes() is episodes
    assert not (tmp_path / "draft").exists()
    draft.drop("a-1", dry_run=True)
    assert not (tmp_path / "draft").exists()
    draft.drop("a-1")
    middle = int(episodes.open("7").signals["state"].timestamps[5])
    draft.split("7", middle)
    draft.set_static("b", "note", "seen")
    again = Draft(shards(tmp_path / "shards"), tmp_path / "draft", of="lab/arm@1").episodes()
    assert again.ids == [
        each for name in before if name != "a-1" for each in ([name] if name != "7" else ["7-1", "7-2"])
    ]
    assert [len(again.open(name).signals["state"]) for name in ("7-1", "7-2", "b")] == [5, 5, 10]
    assert again.open("b").static["note"] == "seen"
    assert again.open("7-2").id == "7-2"
    assert again.where("note = 'seen'").ids == ["b"]
    draft.trim("7-2", middle + 1, None)
    with pytest.raises(KeyError, match="no episode 'c'"):
        draft.drop("c")
    for _ in range(4):
        draft.undo()
    assert draft.episodes().ids == before
    assert draft_source(tmp_path / "draft") == "lab/arm@1"


def test_a_draft_belongs_to_one_version(tmp_path: Path) -> None:
    episodes = shards(tmp_path / "shards")
    Draft(episodes, tmp_path / "draft", of="lab/arm@1").drop("b")
    with pytest.raises(wd.ConflictError, match="lab/arm@1"):
        Draft(episodes, tmp_path / "draft", of="lab/arm@2")
    (tmp_path / "draft" / "draft.json").write_bytes(b'{"of": 5}')
    with pytest.raises(wd.WarpError, match="does not name"):
        Draft(episodes, tmp_path / "draft", of="lab/arm@1")


def test_a_journal_that_is_being_written_is_not_mapped(tmp_path: Path) -> None:
    """Its writer cuts it when it ends: a reader that maps it would die of a fault."""
    from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader
    from warpdata.formats.journal.reader import JournalReader

    with wd.LocalDatasetWriter(tmp_path / "root").new_episode() as writer:
        writer.append("state", np.zeros(2), 0)
        place = next(Path(writer.path).rglob("signals.journal"))
        assert isinstance(JournalReader.open(place).reader, FileRangeReader)
        kept = tmp_path / "kept.journal"
        kept.write_bytes(place.read_bytes())
    assert isinstance(JournalReader.open(kept).reader, MmapRangeReader)
