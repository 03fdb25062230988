"""Publishing: every kind of source, bindings that hold, signatures, tags, diffs, garbage, cards."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.episodes.test_many_threads import THREADS, run_threads
from tests.memory_store import MemoryStore
from tests.published import publish_demo, rows
from tests.servers import S3Server, s3_store
from warpdata.catalog.access import Access, AccessOptions, access_options, parse_name, parse_size, staging_for
from warpdata.catalog.manage.doctor import examine
from warpdata.catalog.manage.versions import collect, delete_tag, list_datasets, list_tags, set_tag
from warpdata.catalog.publish.pointers import PointerState, move_pointer, read_pointer
from warpdata.errors import (
    ConflictError,
    CorruptLayoutError,
    DatasetError,
    ManifestCorruptedError,
    StoreError,
    TimeRangeError,
    UnavailableError,
)
from warpdata.formats.manifest.codec import Pointer, pack_pointer, unpack_pointer
from warpdata.settings import Settings


def read_back(catalog: str, name: str = "ws/x") -> pa.Table:
    with wd.dataset(name, catalog=catalog) as ds:
        return ds.table().arrow()


def test_parts_may_be_added_by_several_threads(local_catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*given: Any) -> Any:
        assert sum(range(1_000_000))  # other threads come here meanwhile
        return staging_for(*given)

    monkeypatch.setattr("warpdata.catalog.build.builder.staging_for", slowly)
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        run_threads(lambda thread, number: builder.add_table(f"t{thread}_{number}", {"x": [number]}), 40)
        builder.publish()
    with wd.dataset("ws/x", catalog=local_catalog) as ds:
        for thread, number in itertools.product(range(THREADS), range(40)):
            assert ds.table(f"t{thread}_{number}").arrow().to_pydict() == {"x": [number]}


def sources(tmp_path: Path) -> dict[str, object]:
    import pandas as pd
    import polars as pl

    table = rows(30)
    pq.write_table(table, tmp_path / "a.parquet")
    frame = {name: table[name].to_pylist() for name in table.column_names}
    return {
        "file": tmp_path / "a.parquet",
        "pattern": str(tmp_path / "*.parquet"),
        "list": [str(tmp_path / "a.parquet")],
        "folder": tmp_path,
        "arrow": table,
        "batch": table.to_batches()[0],
        "reader": table.to_reader(7),
        "pandas": pd.DataFrame(frame),
        "polars": pl.DataFrame(frame),
        "columns": frame,
    }


@pytest.mark.parametrize(
    "kind", ["file", "pattern", "list", "folder", "arrow", "batch", "reader", "pandas", "polars", "columns"]
)
def test_tables_come_from_anything(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", sources(tmp_path / "in")[kind]).publish()
    assert read_back(str(tmp_path / "cat")).to_pydict() == rows(30).to_pydict()


def test_large_tables_become_several_shards(tmp_path: Path) -> None:
    from warpdata.catalog.build.tables import ParquetOptions

    data = pa.table({"x": np.random.default_rng(0).random(100_000)})
    with wd.DatasetBuilder("ws/x", catalog=tmp_path) as builder:
        options = ParquetOptions(shard_bytes=200_000, row_group_rows=10_000)
        builder.add_table("main", data, options=options)
        assert len(builder.manifest().tables["main"].shards) == 4
        builder.publish()
    assert read_back(str(tmp_path)).equals(data)


def test_optimize_writes_for_range_reads(tmp_path: Path) -> None:
    pq.write_table(rows(5000), tmp_path / "a.parquet", row_group_size=100)
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", tmp_path / "a.parquet", optimize=True).publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        assert ds.table().files.file(0).metadata.num_row_groups == 1
        assert ds.table().arrow().to_pydict() == rows(5000).to_pydict()


def test_dangling_references_fail_the_publish(tmp_path: Path, picture_folder: Path) -> None:
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", {"image": ["a/000.png", "a/999.png", None]})
        builder.add_artifact("pictures", picture_folder).bind("main", "image", "pictures", "image")
        with pytest.raises(DatasetError, match=r"name no member.*a/999\.png"):
            builder.publish()
    assert not (tmp_path / "cat").exists()


def test_ranges_address_members_without_an_index(tmp_path: Path, picture_folder: Path) -> None:
    from warpdata.bytekit.checksum import crc32c

    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("pictures", picture_folder)
        members = builder._artifacts["pictures"].members
        places = [
            {"shard": m.shard, "offset": m.offset, "length": m.length, "crc32c": m.crc32c}
            for m in members.values()
        ]
        builder.add_table("main", {"image": places})
        builder.bind("main", "image", "pictures", "image", addressing="range").publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        batch = next(iter(ds.table().batches(10)))
        name, first = next(iter(members.items()))
        assert crc32c(batch["image"][0].read_bytes()) == first.crc32c
        assert batch["image"][0].read_bytes() == (picture_folder / name).read_bytes()
    with wd.DatasetBuilder("ws/y", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("pictures", picture_folder)
        builder.add_table("main", {"image": [{"shard": 0, "offset": 10**9, "length": 5}]})
        builder.bind("main", "image", "pictures", "image", addressing="range")
        with pytest.raises(DatasetError, match="outside"):
            builder.publish()


def test_hostile_tars_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../../evil"))
    with (
        wd.DatasetBuilder("ws/x", catalog=tmp_path) as builder,
        pytest.raises(CorruptLayoutError, match="unsafe"),
    ):
        builder.add_artifact("raw", [tmp_path / "x.tar"])


def make_webdataset(folder: Path, picture_folder: Path) -> list[Path]:
    import webdataset

    paths = [folder / f"wds-{i}.tar" for i in range(2)]
    for number, path in enumerate(paths):
        with webdataset.TarWriter(str(path)) as sink:
            for i in range(20):
                key = number * 20 + i
                png = (picture_folder / f"a/{key:03d}.png").read_bytes()
                sink.write({"__key__": f"sample{key:03d}", "png": png, "cls": key % 10, "json": {"k": key}})
    return paths


def test_webdataset_tars_are_published_as_they_are(tmp_path: Path, picture_folder: Path) -> None:
    paths = make_webdataset(tmp_path, picture_folder)
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_webdataset("main", paths).publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        assert ds.artifact("main_shards").kind == "webdataset_shards"
        table = ds.table().arrow()
        assert table["__key__"].to_pylist() == [f"sample{i:03d}" for i in range(40)]
        assert table["cls"].to_pylist() == [i % 10 for i in range(40)]
        assert json.loads(table["json"][3].as_py()) == {"k": 3}
        batch = next(iter(ds.table().batches(40)))
        assert batch["png"][7].as_numpy()[0, 0, 0] == 35
        shard = ds.artifact("main_shards").shard_reader(0)
        assert bytes(shard.read(0, shard.size)) == paths[0].read_bytes()


def test_other_kinds_are_named_blobs(tmp_path: Path) -> None:
    (tmp_path / "eps/sub").mkdir(parents=True)
    (tmp_path / "eps/a.wshard").write_bytes(b"first")
    (tmp_path / "eps/sub/b.wshard").write_bytes(b"second")
    (tmp_path / "index.rvf").write_bytes(b"vectors")
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("episodes", tmp_path / "eps", kind="wshard_episodes")
        builder.add_artifact("vectors", tmp_path / "index.rvf", kind="vector_index")
        builder.add_table("main", {"episode": ["a.wshard", "sub/b.wshard"]})
        builder.bind("main", "episode", "episodes", "episode").publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        assert list(ds.artifact("episodes").members()) == ["a.wshard", "sub/b.wshard"]
        ref = next(iter(ds.table().batches(5)))["episode"][1]
        assert isinstance(ref, wd.EpisodeFileRef)
        assert ref.read_bytes() == b"second"
        assert ref.local_path().read_bytes() == b"second"
        assert ds.ref("vectors", "index.rvf").read_bytes() == b"vectors"


def test_episodes_open_through_their_reference(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="ep", length=5)
    episode.observations["joint"] = np.arange(5, dtype=np.float32)
    wd.save_wshard(episode, tmp_path / "ep.wshard")
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("episodes", [tmp_path / "ep.wshard"], kind="wshard_episodes")
        builder.add_table("main", {"episode": ["ep.wshard"]})
        builder.bind("main", "episode", "episodes", "episode").publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        found = next(iter(ds.table().batch_dicts(1)))["episode"][0].open()
        assert isinstance(found, wd.Episode)
        assert found["joint"].values().tolist() == [0, 1, 2, 3, 4]
        assert found.tensors == episode


def test_compressed_tars_read_the_same(tmp_path: Path, picture_folder: Path) -> None:
    from warpdata.formats.tarshard.writer import PackOptions

    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("pictures", picture_folder, options=PackOptions(compression="zstd"))
        builder.add_table("main", rows(40)).bind("main", "image", "pictures", "image").publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        for batch in ds.table().batches(16):
            for i, ref in enumerate(batch["image"].refs()):
                assert ref.read_bytes() == (picture_folder / batch["image"].storage[i].as_py()).read_bytes()
                assert ref.open().read() == ref.read_bytes()


def test_parts_of_an_old_version_are_kept_without_sending_them(
    local_catalog: str, picture_folder: Path
) -> None:
    publish_demo(local_catalog, picture_folder)
    with (
        wd.dataset("ws/demo", catalog=local_catalog) as old,
        wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder,
    ):
        builder.keep(old).add_table("labels", {"id": [1, 2], "label": ["a", "b"]})
        done = builder.publish()
        assert done.blobs_sent == 2
        new = wd.dataset("ws/demo", catalog=local_catalog)
        diff = old.diff(new)
        assert [(c.name, c.change, c.rows_after) for c in diff.tables] == [("labels", "added", 2)]
        assert diff.bytes_removed == 0
        assert diff.bytes_shared > 0
        query = "select label, value from main join labels using (id) order by id"
        assert new.sql(query).arrow().to_pydict() == {"label": ["a", "b"], "value": [0.5, 1.0]}


def test_diff_names_what_changed(local_catalog: str, picture_folder: Path) -> None:
    old = publish_demo(local_catalog, picture_folder, count=400)
    with wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder:
        builder.add_table("main", rows(10).drop_columns(["name"]).append_column("extra", pa.array(range(10))))
        builder.publish()
    with wd.dataset("ws/demo", catalog=local_catalog) as ds:
        diff = wd.dataset(f"ws/demo@{old.version[:10]}", catalog=local_catalog).diff(ds)
        (table,) = diff.tables
        assert (table.columns_added, table.columns_removed) == (("extra",), ("name",))
        assert (diff.rows_before, diff.rows_after) == (400, 10)
        assert diff.artifacts[0].change == "removed"
        assert diff.bindings_removed == ("main.image -> pictures (image)",)
        assert ds.diff(ds).is_empty
        assert json.dumps(diff.as_dict())
        assert ds.diff(old.version[:12]).after == old.version


def test_tags_point_and_move(local_catalog: str, picture_folder: Path) -> None:
    one = publish_demo(local_catalog, picture_folder, count=400)
    two = publish_demo(local_catalog, picture_folder, count=800)
    access = Access(AccessOptions((local_catalog,)))
    catalog, name = access.catalogs[0], parse_name("ws/demo")
    set_tag(access, catalog, parse_name(f"ws/demo@{one.version[:12]}"), "good")
    assert list_tags(catalog, name) == {"good": one.version}
    set_tag(access, catalog, name, "good")
    assert list_tags(catalog, name) == {"good": two.version}
    delete_tag(catalog, name, "good")
    assert list_tags(catalog, name) == {}
    for bad in ("deadbeef", "-x", "a/b", ""):
        with pytest.raises(ValueError, match="not a tag"):
            set_tag(access, catalog, name, bad)
    assert [d.dataset_id for d in list_datasets(catalog, "ws/")] == ["ws/demo"]
    assert list_datasets(catalog, "other/") == []


def test_an_expected_version_may_be_named_by_its_first_digits(tmp_path: Path) -> None:
    with wd.DatasetBuilder("ws/x", catalog=tmp_path) as builder:
        one = builder.add_table("main", {"a": [1]}).publish().version
        with pytest.raises(ConflictError, match=f"latest is {one[:12]}, not 00000000 as expected"):
            builder.publish(expect_latest="0" * 8)
        for wrong in (one[:7], one.upper(), f"{one}0", "latest", "", 5, b"0" * 64):
            with pytest.raises(ValueError, match="8 digits are enough"):
                builder.publish(expect_latest=wrong)
        two = builder.add_table("more", {"a": [1]}).publish(expect_latest=one[:12]).version
        assert builder.add_table("most", {"a": [1]}).publish(expect_latest=two).is_latest


def test_publishing_without_latest_leaves_the_pointer(local_catalog: str, picture_folder: Path) -> None:
    one = publish_demo(local_catalog, picture_folder, count=400)
    publish_demo(local_catalog, picture_folder, count=800, set_latest=False)
    assert wd.dataset("ws/demo", catalog=local_catalog).version == one.version
    with pytest.raises(ConflictError, match="not"):
        publish_demo(local_catalog, picture_folder, count=800, expect_latest="0" * 64)


def test_garbage_is_listed_and_only_deleted_when_asked(local_catalog: str, picture_folder: Path) -> None:
    done = publish_demo(local_catalog, picture_folder)
    stray = Path(local_catalog) / "blobs/sha256/aa" / ("aa" * 32)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"nobody uses this")
    access = Access(AccessOptions((local_catalog,)))
    found = collect(access.catalogs[0])
    assert (found.blobs, found.young_blobs, found.versions) == ((), 1, 1)
    found = collect(access.catalogs[0], grace_s=-1)
    assert found.blobs == (f"blobs/sha256/aa/{'aa' * 32}",)
    assert stray.exists()
    assert collect(access.catalogs[0], grace_s=-1, delete=True).is_deleted
    assert not stray.exists()
    with wd.dataset(f"ws/demo@{done.version[:12]}", catalog=local_catalog) as ds:
        assert ds.verify() == []


def test_an_unreadable_manifest_stops_garbage_collection(local_catalog: str, picture_folder: Path) -> None:
    done = publish_demo(local_catalog, picture_folder)
    (Path(local_catalog) / f"datasets/ws/demo/versions/{done.version}.json").write_text("{}")
    access = Access(AccessOptions((local_catalog,)))
    with pytest.raises(ManifestCorruptedError):
        collect(access.catalogs[0], grace_s=-1, delete=True)
    assert len(list(Path(local_catalog).glob("blobs/sha256/*/*"))) == 7


def test_cards_and_croissant_are_made(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        done = builder.add_table("main", rows(5)).describe(description="Rows", license="CC0-1.0").publish()
    folder = Path(local_catalog) / "datasets/ws/x/versions"
    card = (folder / f"{done.version}.card.md").read_text()
    assert "# ws/x" in card
    assert "| value | double |" in card
    croissant = json.loads((folder / f"{done.version}.croissant.json").read_text())
    assert croissant["license"] == "CC0-1.0"
    assert croissant["distribution"][0]["sha256"] in {
        b.hash for b in wd.dataset("ws/x", catalog=local_catalog).manifest.blobs().values()
    }


class TestPointer:
    def test_moves_and_conflicts(self) -> None:
        store = MemoryStore()
        one = move_pointer(store, "p", "a" * 64, PointerState(None, None))
        seen = read_pointer(store, "p")
        two = move_pointer(store, "p", "b" * 64, seen)
        assert (one.sequence, two.sequence, two.previous) == (1, 2, "a" * 64)
        with pytest.raises(ConflictError, match=r"aaaaaaaaaaaa to bbbbbbbbbbbb while cccccccccccc"):
            move_pointer(store, "p", "c" * 64, seen)
        assert move_pointer(store, "p", "b" * 64, read_pointer(store, "p")) == two

    def test_a_lost_answer_is_recognised(self) -> None:
        class Lossy(MemoryStore):
            def compare_and_swap(self, key, data, etag):
                super().compare_and_swap(key, data, etag)
                raise ConflictError("the answer was lost and the retry saw our own write")

        assert move_pointer(Lossy(), "p", "a" * 64, PointerState(None, None)).version == "a" * 64

    def test_a_lost_answer_is_recognised_after_the_next_move(self) -> None:
        """Or whoever adds rows to the newest version would add them to one that has them."""

        class Lossy(MemoryStore):
            def compare_and_swap(self, key, data, etag):
                super().compare_and_swap(key, data, etag)
                if unpack_pointer(data, key).version == "a" * 64:
                    move_pointer(self, key, "b" * 64, read_pointer(self, key))
                    raise ConflictError("the answer was lost, and the retry saw what somebody made of it")

        store = Lossy()
        assert move_pointer(store, "p", "a" * 64, PointerState(None, None)).version == "a" * 64
        assert read_pointer(store, "p").pointer == Pointer("b" * 64, 2, "a" * 64)

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b'{"version":"x","sequence":1}', b'{"version":"' + b"a" * 64 + b'"}']
    )
    def test_damaged_pointers_are_refused(self, data: bytes) -> None:
        store = MemoryStore()
        store.put_if_absent("p", data)
        with pytest.raises(ManifestCorruptedError):
            read_pointer(store, "p")

    def test_pack_is_stable(self) -> None:
        assert (
            pack_pointer(Pointer("a" * 64, 3))
            == b'{"version":"' + b"a" * 64 + b'","sequence":3,"previous":null}\n'
        )


def test_sizes() -> None:
    assert [parse_size(t) for t in ("10", "1k", "200GB", "1.5 GiB", 7)] == [10, 1000, 200 * 10**9, 3 << 29, 7]
    with pytest.raises(ValueError, match="not a size"):
        parse_size("lots")


def test_doctor_finds_a_healthy_and_a_broken_machine(
    s3_catalog: str, s3_server: S3Server, tmp_path: Path
) -> None:
    settings = Settings.from_env()
    good = {c.name: c for c in examine(settings, access_options(settings, catalogs=(s3_catalog,)))}
    assert all(check.is_ok for check in good.values() if check.is_needed)
    assert good[f"catalog {s3_catalog}: conditional put"].is_ok
    assert good[f"catalog {s3_catalog}: range read"].is_ok
    assert list(s3_store(s3_server, s3_catalog.rpartition("/")[2]).list("probe/")) == []
    (tmp_path / "file").write_text("")
    bad = access_options(
        settings, catalogs=("http://127.0.0.1:1/x",), cache_dir=str(tmp_path / "file" / "sub")
    )
    broken = [c for c in examine(settings, bad) if c.is_needed and not c.is_ok]
    assert {c.name for c in broken} == {"cache folder", "catalog http://127.0.0.1:1/x"}
    assert all(c.remedy for c in broken)


def test_audio_and_video_references(tmp_path: Path) -> None:
    import av
    import soundfile

    (tmp_path / "raw").mkdir()
    samples = np.sin(np.arange(800) / 10).astype(np.float32)
    soundfile.write(tmp_path / "raw/tone.wav", samples, 8000, subtype="FLOAT")
    with av.open(str(tmp_path / "raw/clip.mp4"), "w") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for i in range(20):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), i * 12, np.uint8), format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("raw", tmp_path / "raw").add_table(
            "main", {"s": ["tone.wav"], "v": ["clip.mp4"]}
        )
        builder.bind("main", "s", "raw", "audio").bind("main", "v", "raw", "video").publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        batch = next(iter(ds.table().batches(1)))
        sound, video = batch["s"][0], batch["v"][0]
        assert sound.sample_rate == 8000
        np.testing.assert_allclose(sound.as_array(), samples, atol=1e-6)
        for second in (0.0, 0.5, 1.45, 1.9):
            assert abs(int(video.frame(second).mean()) - int(second * 10 + 1e-9) * 12) < 12
        for never in (-0.1, math.inf, math.nan):
            with pytest.raises(TimeRangeError, match=f"no frame at {never} s: clip.mp4"):
                video.frame(never)


def _sound(format: str, claimed_frames: int | None = None) -> bytes:  # noqa: A002 - the word of soundfile
    """A short sound of eight channels; FLAC may claim another length in its head."""
    import io

    import soundfile

    out = io.BytesIO()
    soundfile.write(out, np.zeros((100, 8), np.float32), 8000, format=format)
    made = bytearray(out.getvalue())
    if claimed_frames is not None:  # the last 36 of 64 bits
        head = int.from_bytes(made[18:26], "big")
        made[18:26] = (head >> 36 << 36 | claimed_frames).to_bytes(8, "big")
    return bytes(made)


@pytest.mark.parametrize(
    ("data", "kind", "ask", "words"),
    [
        (lambda: b"no picture", "image", lambda ref: ref.as_pil(), "not a readable picture"),
        (lambda: b"no sound", "audio", lambda ref: ref.as_array(), r"not readable sound \(Format not recognised.\): x"),
        (lambda: b"no sound", "audio", lambda ref: ref.sample_rate, "not readable sound"),
        (
            lambda: _sound("FLAC", (1 << 36) - 1), "audio", lambda ref: ref.as_array(),
            "sound of 68719476735 samples of 8 channels is refused: x",
        ),
        (lambda: b"no video", "video", lambda ref: ref.frame(0), "not a readable video"),
        (lambda: _sound("WAV"), "video", lambda ref: ref.frame(0), "the file has no video stream: x"),
    ],
)  # fmt: skip
def test_broken_media_is_a_typed_error(
    tmp_path: Path, data: Callable[[], bytes], kind: Any, ask: Callable[[Any], Any], words: str
) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x").write_bytes(data())
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("raw", tmp_path / "raw").publish()
    with (
        wd.dataset("ws/x", catalog=tmp_path / "cat") as ds,
        pytest.raises(CorruptLayoutError, match=words),
    ):
        ask(ds.ref("raw", "x", kind))


def test_an_unreachable_catalog_is_unavailable(picture_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdata.stores.blobstore.time.sleep", lambda _: None)
    monkeypatch.setattr("warpdata.stores.blobstore.RetryPolicy.wait", lambda *_: None)
    with pytest.raises(UnavailableError):
        wd.dataset("ws/x", catalog="http://127.0.0.1:1/cat")


STAGE = """
import os, sys, warpdata as wd
builder = wd.DatasetBuilder("ws/x", catalog=sys.argv[1]).add_table("main", {"x": [1, 2, 3]})
print(builder._staging, flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.exit()
if sys.argv[2] == "fork":
    os.wait()
    assert builder._staging.exists(), "a child took its parent's folder"
"""


@pytest.mark.parametrize("end", ["exit", "fork", "kill"])
def test_nothing_staged_outlives_its_process(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no such folder"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no such folder"))
    with wd.DatasetBuilder("ws/y", catalog=tmp_path / "cat") as alive:
        alive.add_table("main", {"x": [1]})
        done = subprocess.run(
            [sys.executable, "-c", STAGE, str(tmp_path / "cat"), end], capture_output=True, text=True
        )
        assert done.returncode == (-9 if end == "kill" else 0), done.stderr
        left = Path(done.stdout.split()[0])
        assert left.parent == tmp_path / "cat" / ".staging"
        assert left.exists() == (end == "kill")
        with wd.DatasetBuilder("ws/z", catalog=tmp_path / "cat") as later:
            later.add_table("main", {"x": [1]})
            assert not left.exists(), "the next builder sweeps what a killed one left"
        staged = alive._staging
        assert staged.exists(), "and nothing of those that live"
    assert not staged.exists()
    assert not (tmp_path / "cat").exists(), "and no trace of a catalog to which nothing was published"


class TestPipes:
    """Whoever opens a pipe to read waits for a writer."""

    @pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl", "a.*"])
    def test_one_is_no_table(self, tmp_path: Path, local_catalog: str, name: str) -> None:
        os.mkfifo(tmp_path / name.replace("*", "parquet"))
        with (
            wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder,
            pytest.raises(StoreError, match="not a regular file but a pipe"),
        ):
            builder.add_table("main", tmp_path / name)

    def test_a_file_that_became_one_is_told(self, tmp_path: Path, local_catalog: str) -> None:
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"a": [1]}), path)
        with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
            builder.add_table("main", path)
            path.unlink()
            os.mkfifo(path)
            with pytest.raises(StoreError, match="not a regular file but a pipe"):
                builder.publish()
