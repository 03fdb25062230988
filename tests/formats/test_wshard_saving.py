"""Whatever is saved can be loaded: an episode comes back equal, or is refused before anything is written."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.formats import episodes
from tests.sweeps import enough_examples
from warpdata.errors import SchemaMismatchError

NUMBERS = st.none() | st.booleans() | st.integers(-2, 14) | st.floats(0, 3)
WILD: dict[str, st.SearchStrategy[Any]] = {
    "id": episodes.TEXT | st.none() | st.integers(0, 3) | st.just("\ud800"),
    "env_id": episodes.TEXT | st.none(),
    "length": NUMBERS,
    "chunk_index": NUMBERS,
    "total_chunks": NUMBERS,
    "timestep_range": st.none() | st.tuples(st.integers(-1, 12), st.integers(-1, 14)),
    "timestamps_ns": st.lists(st.integers(-5, 5), max_size=12).map(lambda each: np.array(each, np.int64)),
    "metadata": st.dictionaries(episodes.TEXT | st.integers(0, 3), episodes.JSON, max_size=3) | st.just([1]),
    "models": st.lists(episodes.JSON, max_size=2) | episodes.JSON,
    "about": st.dictionaries(
        st.sampled_from(["length_T", "id", "timebase", "metadata", "source", "mine", ""]), episodes.JSON
    ),
    "blocks": st.dictionaries(
        st.sampled_from(
            ["signal/x", "action/x", "omen/x/m", "residual/x", "reward", "aux/reward", "aux/done", "aux/mine",
             "time/ticks", "time/timestamps_ns", "meta/models", "meta/mine", "aux/crc32c/x", "aux/ends/x", "", "a\0b"]
        ),
        st.binary(max_size=48) | st.integers(0, 3) | st.text(max_size=3),
        max_size=2,
    ),
    "timebase": st.sampled_from(
        [wd.Timebase("timestamps_ns"), wd.Timebase("ticks", 1e-9), wd.Timebase("ticks", 1e300)]
    ),
}  # fmt: skip
ABOUT = st.dictionaries(
    st.sampled_from(["clock", "shape", "ends", "encoding", "content_type_code", "modality", "unit", "mine"]),
    episodes.JSON,
    max_size=2,
)


@st.composite
def wild_episodes(draw: st.DrawFn) -> wd.WShardEpisode:
    """Any episode with a few fields that may be anything."""
    episode = draw(episodes.episodes())
    for field in draw(st.lists(st.sampled_from(sorted(WILD)), max_size=2, unique=True)):
        setattr(episode, field, draw(WILD[field]))
    for _, channel in episode.lanes():
        if draw(st.integers(0, 3)) == 0:
            channel.about = draw(ABOUT)
    if draw(st.booleans()):
        count = draw(st.sampled_from([episode.length, 3]))
        words = st.lists(st.text(max_size=5), min_size=3, max_size=12)
        if isinstance(count, int) and 0 <= count <= 12:
            episode.observations[draw(episodes.TEXT)] = wd.Channel.text("w", (draw(words) * 4)[:count])
    return episode


@settings(max_examples=enough_examples(40))
@given(episode=wild_episodes(), strict=st.booleans())
def test_refused_or_equal(
    tmp_path_factory: pytest.TempPathFactory, episode: wd.WShardEpisode, strict: bool
) -> None:
    folder = tmp_path_factory.mktemp("wild")
    try:
        wd.save_wshard(episode, folder / "a.wshard", compat="strict" if strict else "default", durable=False)
    except (ValueError, TypeError):
        assert list(folder.iterdir()) == []
        return
    loaded = wd.load_wshard(folder / "a.wshard")
    assert loaded == episode
    assert loaded.in_time.signals is not None


def long_name(episode: wd.WShardEpisode) -> None:
    episode.observations["x" * 4089] = np.zeros(3)


def long_name_of_pieces(episode: wd.WShardEpisode) -> None:
    """The block fits, the block of its piece checksums does not."""
    episode.observations["x" * 4080] = np.zeros((3, 1 << 19))


def channel_about(key: str) -> Callable[[wd.WShardEpisode], None]:
    def change(episode: wd.WShardEpisode) -> None:
        episode.observations["x"] = wd.Channel("x", np.zeros(3), about={key: "mine"})

    return change


def setting(field: str, value: object, **more: object) -> Callable[[wd.WShardEpisode], None]:
    def change(episode: wd.WShardEpisode) -> None:
        for name, each in {field: value, **more}.items():
            setattr(episode, name, each)

    return change


def own_clock(episode: wd.WShardEpisode) -> None:
    clock = np.array([3, 2, 1], np.int64)
    episode.observations["x"] = wd.Channel("x", np.zeros(3), timestamps_ns=clock)


REFUSED: dict[str, tuple[Callable[[wd.WShardEpisode], None], str]] = {
    "inclusive range": (setting("timestep_range", (0, 2), chunk_index=0), "expected 3 steps"),
    "range of no chunk": (setting("timestep_range", (0, 3)), "no chunk_index"),
    "negative chunk": (setting("chunk_index", -1), "chunk_index is -1"),
    "length in about": (setting("about", {"length_T": 9}), "'length_T'"),
    "negative length": (setting("length", -1), "length is -1"),
    "a length that nothing backs": (setting("length", 2**60, observations={}), "too many at once"),
    "times past the last there is": (
        setting("length", 10, observations={}, timebase=wd.Timebase("ticks", 1e-9)),
        "too many at once",
    ),
    "clock in about": (channel_about("clock"), "'clock'"),
    "shape in about": (channel_about("shape"), "'shape'"),
    "block of a channel": (setting("blocks", {"signal/state": b"1234"}), "two blocks have this name"),
    "block that would be an action": (setting("blocks", {"action/x": bytes(12)}), "blocks would not"),
    "block of checksums": (setting("blocks", {"aux/crc32c/x": bytes(12)}), "blocks would not"),
    "block of text": (setting("blocks", {"aux/x": "text"}), "bytes were expected"),
    "long name": (long_name, "block name of 4096|block name of 4097|4096"),
    "long name of pieces": (long_name_of_pieces, "block name of"),
    "decreasing times": (setting("timestamps_ns", np.array([3, 2, 1])), "not later than"),
    "standing times": (setting("timestamps_ns", np.array([3, 3, 4])), "not later than"),
    "decreasing clock": (own_clock, "not later than"),
    "keys that are no strings": (setting("metadata", {1: 2}), "not a string"),
    "text that is no text": (setting("id", "\ud800"), "not JSON"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_loaded_replaces_nothing(tmp_path: Path, case: str) -> None:
    change, match = REFUSED[case]
    path = tmp_path / "a.wshard"
    episode = wd.WShardEpisode("x", length=3)
    episode.observations["state"] = np.zeros((3, 2))
    wd.save_wshard(episode, path)
    old = path.read_bytes()
    change(episode)
    if case == "long name":
        wd.save_wshard(episode, tmp_path / "fits.wshard")  # 4096 bytes with its lane: the longest there is
        assert wd.load_wshard(tmp_path / "fits.wshard") == episode
        (tmp_path / "fits.wshard").unlink()
        episode.observations["x" * 4090] = np.zeros(3)
    with pytest.raises(ValueError, match=match):
        wd.save_wshard(episode, path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.wshard"]


def test_what_is_said_of_every_channel_comes_back(tmp_path: Path) -> None:
    episode = episodes.simple(5)
    episode.omens["state/dreamer"].about = {"unit": "rad", "of": "state"}
    episode.rewards = wd.Channel("reward", np.arange(5.0), unit="points")
    episode.terminations = wd.Channel("done", np.arange(5) == 4, why="time")
    episode.about = {"source": "robot", "operator": "ann"}
    wd.save_wshard(episode, tmp_path / "a")
    loaded = wd.load_wshard(tmp_path / "a")
    assert loaded == episode
    assert loaded.omens["state/dreamer"].unit == "rad"
    assert loaded.rewards.unit == "points"
    listed = wd.chunk_episode(episode, tmp_path / "chunks", 2)
    assert wd.open_episode(listed).tensors == episode


def test_a_clone_stands_on_its_own(tmp_path: Path) -> None:
    episode = episodes.simple(5)
    episode.timestamps_ns = np.arange(5)
    other = episode.clone()
    assert other == episode
    other.observations["state"].data[0] = 7
    other.observations["state"].about["unit"] = "deg"
    other.metadata["task"] = "place"
    other.timestamps_ns[0] = -1
    del other.omens["state/dreamer"]
    assert episode != other
    unchanged = episodes.simple(5)
    unchanged.timestamps_ns = np.arange(5)
    assert episode == unchanged
    wd.save_wshard(episode, tmp_path / "a")
    assert wd.load_wshard(tmp_path / "a").clone() == episode
    assert not episode.is_chunked


def test_errors_of_two_models_stand_side_by_side() -> None:
    episode = episodes.simple(5)
    episode.omens["state/other"] = episode.omens["state/dreamer"].data + 1
    for model in ("dreamer", "other"):
        episode.add_residual("state", model=model)
    for model in ("dreamer", "other"):
        error = episode.observations["state"].data - episode.omens[f"state/{model}"].data
        assert np.allclose(episode.residuals[f"state/error/{model}"].data, error)


@pytest.mark.parametrize("kind", ["bfloat16", "float32", "int64", "bool"])
def test_tensors_of_torch(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.5, -2.0], [0.0, 3.25]]).to(getattr(torch, kind))
    if values.is_floating_point():
        values.requires_grad_()
    channel = wd.Channel("x", values)
    assert channel.data.astype(np.float64).tolist() == values.detach().double().tolist()
    assert str(channel.dtype) == {"bfloat16": "bf16", "float32": "f32", "int64": "i64", "bool": "bool"}[kind]
    with pytest.raises(ValueError, match="array"):
        wd.Channel("x", torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="array"):
        wd.Channel("x", [[1], [2, 3]])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("about", None), ("about", [1]), ("metadata", "text"), ("models", {"id": 1}), ("blocks", None),
        ("timebase", None), ("timebase", "tick"), ("timebase", {"hz": 3}), ("timestep_range", ("a", "b")),
        ("timestep_range", (0, 1, 2)),
        ("timestep_range", 3), ("timestamps_ns", [2**63] * 3), ("timestamps_ns", "abc"),
        ("timestamps_ns", np.arange(3).reshape(3, 1)),
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_named(tmp_path: Path, field: str, value: Any) -> None:
    episode = wd.WShardEpisode(id="kinds", length=3)
    with pytest.raises((SchemaMismatchError, TypeError, ValueError), match=field):
        setattr(episode, field, value)
        wd.save_wshard(episode, tmp_path / "a.wshard")
    assert list(tmp_path.iterdir()) == []


def test_a_timebase_is_named_or_described(tmp_path: Path) -> None:
    assert wd.WShardEpisode(id="a", timebase={"type": "ticks", "tick_hz": 20}).timebase.tick_hz == 20  # type: ignore[arg-type]
    channels = [{"id": "x", "dtype": "f32"}]
    with wd.WShardStreamWriter(tmp_path / "a.wshard", "a", channels, timebase="timestamps_ns") as writer:
        writer.begin_episode()
        writer.write_timestep({"x": 1.0}, timestamp_ns=7)
    assert wd.load_wshard(tmp_path / "a.wshard").timestamps_ns.tolist() == [7]
    with pytest.raises(ValueError, match="Did you mean 'timestamps_ns'"):
        wd.WShardStreamWriter(tmp_path / "b.wshard", "b", channels, timebase="timestamp_ns")


def test_steps_in_a_list_are_a_range_and_a_modality_may_be_anything(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="range", length=3, chunk_index=0, timestep_range=[np.int64(0), 3])  # type: ignore[arg-type]
    episode.observations["x"] = wd.Channel("x", np.zeros(3), modality=["left", "right"])
    episode.observations["cam/rgb"] = wd.Channel("cam/rgb", np.zeros(3), modality={"kind": "rgb"})
    wd.save_wshard(episode, tmp_path / "a.wshard")
    assert wd.load_wshard(tmp_path / "a.wshard") == episode
    assert episode.timestep_range == (0, 3)


def test_a_channel_of_one_episode_in_another_keeps_its_name(tmp_path: Path) -> None:
    first = wd.WShardEpisode(id="first", length=3)
    first.observations["rgb"] = wd.Channel("rgb", np.arange(3), unit="lux")
    wd.save_wshard(first, tmp_path / "a.wshard")
    loaded = wd.load_wshard(tmp_path / "a.wshard")
    second = wd.WShardEpisode(id="second", length=3)
    second.observations["camera"] = loaded.observations["rgb"]
    second.observations["camera"].about["unit"] = "candela"
    assert loaded == first
    assert second.observations["camera"].name == "camera"
    assert second.observations["camera"].data.tolist() == [0, 1, 2]


def test_tuples_in_metadata_equal_the_lists_that_json_has(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("a", length=1, metadata={"size": (640, {"a": (1, 2)})}, about={"tags": ("x",)})
    episode.observations["x"] = wd.Channel("x", np.zeros(1), limits=(0, 1))
    wd.save_wshard(episode, tmp_path / "a.wshard")
    assert wd.load_wshard(tmp_path / "a.wshard") == episode


@pytest.mark.parametrize("compression", [None, "zstd", "zstd-seekable"])
def test_an_open_file_gets_the_bytes_of_a_file(tmp_path: Path, compression: str | None) -> None:
    episode, stream = episodes.simple(20), io.BytesIO()
    wd.save_wshard(episode, stream, compression)
    wd.save_wshard(episode, tmp_path / "a.wshard", compression)
    assert stream.getvalue() == (tmp_path / "a.wshard").read_bytes()
    assert wd.load_wshard(stream) == episode
    with open(tmp_path / "b.wshard", "wb") as file:
        wd.save_wshard(episode, file, compression)
    assert wd.load_wshard(tmp_path / "b.wshard") == episode


@pytest.mark.parametrize("target", [5, None, io.StringIO()])
def test_a_target_that_is_no_file_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="expected a path or a binary file, got"):
        wd.save_wshard(episodes.simple(2), target)


def test_a_wrong_step_range_is_named_as_it_was_given(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("a", length=10, chunk_index=0, timestep_range=(0, 9))
    with pytest.raises(SchemaMismatchError, match=r"timestep_range: expected 10 steps, got \(0, 9\)"):
        wd.save_wshard(episode, tmp_path / "a.wshard")


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i8", ">i2", ">u4"])
def test_big_endian_arrays_are_stored(tmp_path: Path, dtype: str) -> None:
    values = np.array([1, 2, 300], dtype)
    episode = wd.WShardEpisode("a", length=3, rewards=values, timestamps_ns=np.array([1, 2, 3], ">i8"))
    episode.observations["x"] = wd.Channel("x", values, timestamps_ns=np.array([1, 2, 3], ">i8"))
    wd.save_wshard(episode, tmp_path / "a.wshard")
    loaded = wd.load_wshard(tmp_path / "a.wshard")
    assert loaded == episode
    assert loaded.observations["x"].data.tolist() == values.tolist()
    assert loaded.observations["x"].data.dtype == np.dtype(dtype).newbyteorder("<")


@pytest.mark.filterwarnings("error")
def test_values_too_large_for_their_type_become_infinite_without_a_warning(tmp_path: Path) -> None:
    large = np.array([3e38, -3e38, 3e38], np.float32)
    assert np.isinf(wd.error_residual(large, -large)).all()
    wd.compute_error_residual(np.array([1e308, 0, 0]), np.array([-1e308, 0, 1]))
    wd.sign2nddiff(np.array([1e308, -1e308, 1e308]))
    steps, scales = wd.quantize_delta(large.astype(np.float64), np.zeros(3))
    wd.reconstruct_from_omen_and_delta(large, steps, scales)
    wd.save_wshard(wd.WShardEpisode("a", length=1, rewards=np.array([1e300])), tmp_path / "a.wshard")
    assert wd.load_wshard(tmp_path / "a.wshard").rewards.data.tolist() == [1e300]


@pytest.mark.parametrize(
    ("name", "words"), [("a\0b", "contains a NUL byte"), ("a\ud800", "file name can contain")]
)
def test_a_path_that_no_file_can_have_is_refused_in_words(tmp_path: Path, name: str, words: str) -> None:
    path = f"{tmp_path}/{name}.wshard"
    calls: list[Callable[[], object]] = [
        lambda: wd.load_wshard(path),
        lambda: wd.open_episode(path),
        lambda: wd.save_wshard(episodes.simple(1), path),
        lambda: wd.record(path),
        lambda: wd.open(path),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert type(caught.value) is ValueError


def test_a_writer_is_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ChunkedEpisodeWriter cannot be pickled"):
        pickle.dumps(wd.ChunkedEpisodeWriter(tmp_path, "e"))
