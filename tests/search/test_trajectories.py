"""Episodes found by behaviour, in a file and on a server: nearest first, each once, within the bounds asked for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.search.deepdata import PublicServer, Server, run_deepdata
from warpdata.errors import (
    AuthenticationError,
    BlobNotFoundError,
    LimitExceededError,
    PermissionError_,
    SchemaMismatchError,
    StoreError,
    UnavailableError,
)
from warpdata.search.moments import trajectories
from warpdata.search.moments.behaviour import Channels, Observation
from warpdata.stores.blobstore import RetryPolicy
from warpdata.stores.webclient import JsonService


def embed(observation: Any) -> np.ndarray:
    return np.concatenate([observation["state"], [1.0]])


def embed_array(observation: Any) -> np.ndarray:
    return np.append(observation * 1.0, 1.0)


def record(folder: Path, number: int, *, steps: int = 40, env: str = "A", reward: float = 0.5) -> Path:
    episode = wd.WShardEpisode(id=f"ep_{number}", env_id=env, length=steps)
    angle = number * 0.4 + np.linspace(0, 0.1, steps)
    episode.observations["state"] = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32) * 5
    episode.observations["other"] = np.zeros((steps, 3), np.float32)
    episode.rewards = np.full(steps, reward / steps, np.float32)
    path = folder / f"ep_{number}.wshard"
    wd.save_wshard(episode, path, overwrite=True)
    return path


def query(number: float) -> dict[str, np.ndarray]:
    return {"state": np.array([np.cos(number * 0.4), np.sin(number * 0.4)], np.float32) * 5}


@pytest.fixture
def server() -> Iterator[Server]:
    with run_deepdata() as running:
        yield running


@pytest.fixture
def public_server() -> Iterator[Server]:
    with run_deepdata(PublicServer()) as running:
        yield running


@pytest.fixture(params=["file", "server", "public_server"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "t.rvf")
    running: Server = request.getfixturevalue(request.param)
    return f"{running.url}/"


@pytest.fixture
def index(target: str, tmp_path: Path) -> str:
    with wd.TrajectoryIngestor(target, embedder=embed) as ingestor:
        for number in range(8):
            path = record(tmp_path, number, steps=20 + number, env="AB"[number % 2], reward=number / 8)
            assert ingestor.ingest_episode(path) == f"ep_{number}"
            assert ingestor.ingest_timesteps(path, window_size=8, stride=8)[0] == f"ep_{number}#0@0"
    return target


def test_the_nearest_episode_comes_first_and_each_once(index: str) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        found = retriever.search_similar_episodes(query_obs=query(3), top_k=4)
    assert found[0].episode_id == "ep_3"
    assert isinstance(found[0], wd.EpisodeRef)
    assert len({each.file_path for each in found}) == 4
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert found[0].score == pytest.approx(1, abs=0.01)
    assert found[0].metadata["length_T"] == 23
    assert found[0].metadata["total_reward"] == pytest.approx(3 / 8)
    assert wd.load_wshard(found[0].file_path).id == "ep_3"


def test_bounds(index: str) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        ask = retriever.search_similar_episodes
        assert {each.episode_id for each in ask(query(3), env_id="A")} == {"ep_0", "ep_2", "ep_4", "ep_6"}
        assert {each.episode_id for each in ask(query(3), min_length=26)} == {"ep_6", "ep_7"}
        found = ask(query(3), 10, None, 0, (0.2, 0.45))
        assert {each.episode_id for each in found} == {"ep_2", "ep_3"}
        assert ask(query(3), env_id="none") == []
        with pytest.raises(ValueError, match="at least 1"):
            ask(query(3), top_k=0)


def test_arrays_and_several_steps_ask_as_dicts_do(index: str) -> None:
    state = query(3)["state"]
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        by_name = retriever.search_similar_episodes({"state": state}, top_k=3)
        with pytest.raises(KeyError, match="give a dict"):
            retriever.search_similar_episodes(state)
    with wd.TrajectoryRetriever(index, embedder=embed_array) as retriever:
        one = retriever.search_similar_episodes(state, top_k=3)
        several = retriever.search_similar_episodes(np.stack([state - 0.1, state + 0.1]), top_k=3)
    assert [each.episode_id for each in one] == [each.episode_id for each in by_name]
    assert [each.episode_id for each in several] == [each.episode_id for each in by_name]
    assert several[0].score == pytest.approx(one[0].score, abs=1e-5)


def test_windows_reach_the_end_and_are_found(index: str) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        found = retriever.search_similar_timesteps(query(3), top_k=100)
        assert len(retriever.search_similar_timesteps(query(3), top_k=5, env_id="B")) == 5
        ends = {each.metadata["window_end"] for each in found if each.episode_id == "ep_3"}
    assert found[0].episode_id == "ep_3"
    assert found[0].step == 0
    assert ends == {8, 16, 23}
    assert len(found) == 8 * 3 + 3  # 20 to 24 steps are three windows of eight, 25 to 27 four


def test_adding_again_replaces(index: str, tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(index, embedder=embed) as ingestor:
        ingestor.ingest_episode(record(tmp_path, 3, steps=10))
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        found = [
            each for each in retriever.search_similar_episodes(query(3), top_k=8) if each.episode_id == "ep_3"
        ]
    assert len(found) == 1
    assert found[0].metadata["length_T"] == 10


def test_an_episode_that_cannot_be_added_again_stays_as_it_was(index: str, tmp_path: Path) -> None:
    path = record(tmp_path, 3, steps=10)
    with wd.TrajectoryIngestor(index, embedder=lambda seen: seen["state"]) as ingestor:
        with pytest.raises((ValueError, StoreError), match="dimension"):
            ingestor.ingest_episode(path)
        with pytest.raises((ValueError, StoreError), match="dimension"):
            ingestor.ingest_timesteps(path)
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        assert retriever.search_similar_episodes(query(3), top_k=1)[0].metadata["length_T"] == 23
        assert retriever.search_similar_timesteps(query(3), top_k=1)[0].episode_id == "ep_3"


def test_an_episode_is_replaced_in_one_commit(tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=embed) as ingestor:
        ingestor.ingest_episode(record(tmp_path, 3, steps=20))
        ingestor.ingest_episode(record(tmp_path, 3, steps=10))
    with wd.VectorStore.open(tmp_path / "t.rvf") as store:
        held = []
        for epoch in store.epochs():
            with store.at(epoch) as state:
                held.append(len(state))
    assert held == [0, 20, 10]


def test_windows_by_position_and_numbers_of_numpy(target: str, tmp_path: Path) -> None:
    path = record(tmp_path, 1, steps=20)
    with wd.TrajectoryIngestor(target, embedder=embed) as ingestor:
        ingestor.ensure_collection(np.int64(3))
        assert ingestor.ingest_timesteps(path, np.int64(8), np.int32(8)) == [
            "ep_1#0@0",
            "ep_1#0@8",
            "ep_1#0@16",
        ]
        for wrong, error in ((0, ValueError), (2.5, TypeError), ("4", TypeError)):
            with pytest.raises(error, match="dim"):
                ingestor.ensure_collection(wrong)  # type: ignore[arg-type]
            with pytest.raises(error, match="window_size"):
                ingestor.ingest_timesteps(path, wrong)  # type: ignore[arg-type]
            with pytest.raises(error, match="max_steps"):
                ingestor.ingest_episode(path, max_steps=wrong)  # type: ignore[arg-type]


def test_what_is_added_later_is_found(index: str, tmp_path: Path) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        assert retriever.search_similar_episodes(query(9), top_k=1)[0].episode_id == "ep_7"
        with wd.TrajectoryIngestor(index, embedder=embed) as ingestor:
            ingestor.ingest_episode(record(tmp_path, 9))
        assert retriever.search_similar_episodes(query(9), top_k=1)[0].episode_id == "ep_9"


def test_few_steps_of_a_long_episode(tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=embed) as ingestor:
        ingestor.ingest_episode(record(tmp_path, 1, steps=3000))
    with wd.VectorStore.open(tmp_path / "t.rvf") as store:
        assert len(store) == trajectories.MAX_STEPS


def test_chunks_of_an_episode_do_not_collide(target: str, tmp_path: Path) -> None:
    keys = []
    with wd.TrajectoryIngestor(target, embedder=embed) as ingestor:
        for chunk in range(2):
            episode = wd.WShardEpisode(id="long", env_id="A", length=10)
            episode.observations["state"] = np.full((10, 2), chunk + 1, np.float32)
            episode.chunk_index, episode.total_chunks = chunk, 2
            episode.timestep_range = (10 * chunk, 10 * chunk + 10)
            wd.save_wshard(episode, tmp_path / f"{chunk}.wshard")
            keys.append(ingestor.ingest_episode(tmp_path / f"{chunk}.wshard"))
            keys += ingestor.ingest_timesteps(tmp_path / f"{chunk}.wshard")
    assert keys == ["long#0", "long#0@0", "long#1", "long#1@0"]
    with wd.TrajectoryRetriever(target, embedder=embed) as retriever:
        found = retriever.search_similar_episodes({"state": np.full(2, 2.0)})
    assert [each.metadata["chunk_index"] for each in found] == [1, 0]


def test_files_of_the_first_release_are_asked_too(tmp_path: Path) -> None:
    with wd.VectorStore.create(tmp_path / "old.rvf", dim=3, metric="cosine") as store:
        rows = [
            {
                "episode_id": f"e{i}",
                "file_path": f"/e{i}",
                "env_id": "A",
                "length": 10 * i,
                "reward": 0.5,
                "step": i,
            }
            for i in range(3)
        ]
        store.add(np.eye(3), metadata=rows)
    with wd.TrajectoryRetriever(tmp_path / "old.rvf", embedder=lambda obs: obs) as retriever:
        found = retriever.search_similar_episodes([0.0, 1.0, 0.1], min_length=10)
        assert [each.episode_id for each in found] == ["e1", "e2"]
        assert (found[0].step, found[0].metadata["length_T"]) == (1, 10)
        assert retriever.search_similar_timesteps([0.0, 1.0, 0.1], top_k=1)[0].step == 1


# -- the wire --------------------------------------------------------------------------------------------


def test_the_wire(server: Server, tmp_path: Path) -> None:
    path = record(tmp_path, 1, steps=5)
    with wd.TrajectoryIngestor(server.url, embedder=embed_array, headers={"X-Token": "t"}) as ingestor:
        ingestor.ensure_collection(3)
        ingestor.ingest_episode(path)
        ingestor.ingest_episode(path)
    mean = wd.load_wshard(path).observations["state"].data.mean(axis=0)
    assert [each[0] for each in server.requests] == [
        "/v2/collections", "/v2/collections/traj_episodes/insert", "/v2/collections/traj_episodes/insert",
    ]  # fmt: skip
    assert server.requests[0][1] == {"name": "traj_episodes", "dimension": 3, "index_type": "hnsw"}
    body = server.requests[1][1]
    assert body["ids"] == ["ep_1"]
    assert np.allclose(body["vectors"], [[*mean, 1.0]])
    assert body["metadata"] == [
        {
            "episode_id": "ep_1", "env_id": "A", "length_T": 5, "file_path": str(path),
            "total_reward": pytest.approx(0.5),
        }
    ]  # fmt: skip
    assert server.headers[0]["X-Token"] == "t"
    with wd.TrajectoryRetriever(server.url, embedder=embed_array) as retriever:
        retriever.search_similar_episodes(mean, top_k=7, env_id="A")
        retriever.search_similar_episodes(mean, top_k=7, min_length=2, reward_range=(0.0, 1.0))
        with pytest.raises(BlobNotFoundError, match="traj_timesteps"):
            retriever.search_similar_timesteps(mean)
    one, many = server.requests[-3][1], server.requests[-2][1]
    assert one == {
        "vector": pytest.approx([*mean, 1.0]), "top_k": 7, "filter": {"field": "env_id", "$eq": "A"},
    }  # fmt: skip
    assert many["filter"] == {
        "$and": [
            {"field": "length_T", "$gte": 2},
            {"field": "total_reward", "$gte": 0.0},
            {"field": "total_reward", "$lte": 1.0},
        ]
    }


def test_a_collection_that_exists_is_used(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        with wd.TrajectoryIngestor(server.url, embedder=embed) as ingestor:
            ingestor.ingest_episode(record(tmp_path, 1))
    assert len(server.collections["traj_episodes"]["rows"]) == 1


def test_large_inserts_are_sent_in_batches(server: Server, tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(server.url, embedder=embed) as ingestor:
        keys = ingestor.ingest_timesteps(record(tmp_path, 1, steps=600), window_size=1, stride=1)
    sizes = [len(body["ids"]) for path, body in server.requests if path.endswith("insert")]
    assert len(keys) == 600 == sum(sizes)
    assert max(sizes) <= 256


def service(server: Server, **options: Any) -> JsonService:
    policy = RetryPolicy(attempts=3, sleep=lambda _: None)
    return JsonService(server.url, policy=policy, **options)


def test_passing_failures_are_tried_again(server: Server) -> None:
    server.failures = [(503, b"busy", {"Retry-After": "1"}), (429, b"", {})]
    assert service(server).post("/v2/collections", {"name": "x", "dimension": 2, "index_type": "hnsw"}) == {}
    assert len(server.requests) == 3
    server.failures = [(500, b"broken", {})] * 3
    with pytest.raises(UnavailableError, match="500: broken"):
        service(server).post("/v2/collections", {"name": "x"})


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        ((401, b"who are you", {}), AuthenticationError, "401: who are you"),
        ((403, b"", {}), PermissionError_, "403"),
        ((400, b"wrong dimension", {}), StoreError, "wrong dimension"),
        ((200, b"<html>", {}), StoreError, "not a JSON object"),
        ((200, b"[1]", {}), StoreError, "not a JSON object"),
        ((200, b'{"results": [{"id": 1}]}', {}), StoreError, "no id, score or metadata"),
        ((200, b'{"results": 5}', {}), StoreError, "no list of results"),
        ((200, b'{"results": false}', {}), StoreError, "no list of results"),
        ((200, b'{"error": "lost"}', {}), StoreError, "no list of results"),
        ((200, b'{"results": ["abc"]}', {}), StoreError, "no id, score or metadata"),
        ((200, b'{"results": [{"id": null, "score": 1, "metadata": {}}]}', {}), StoreError, "no id"),
        ((200, b'{"results": [{"id": "a", "score": true, "metadata": {}}]}', {}), StoreError, "score"),
        ((200, b'{"results": [{"id": "a", "score": "1", "metadata": {}}]}', {}), StoreError, "score"),
        ((200, b'{"results": [{"id": "a", "score": 1e999, "metadata": {}}]}', {}), StoreError, "too large"),
        (
            (200, b'{"results": [{"id": "a", "score": 1%s, "metadata": {}}]}' % (b"0" * 400), {}),
            StoreError,
            "score",
        ),
        ((200, b'{"results": [{"id": false, "score": 1, "metadata": {}}]}', {}), StoreError, "no id"),
        ((200, b'{"results": [{"id": "a", "score": NaN, "metadata": {}}]}', {}), StoreError, "NaN"),
        ((200, b'{"results": [{"id": "a", "score": 1, "metadata": []}]}', {}), StoreError, "metadata"),
    ],
)
def test_wrong_answers_have_a_name(server: Server, failure: Any, kind: type[Exception], words: str) -> None:
    server.failures = [failure]
    with (
        wd.TrajectoryRetriever(server.url, embedder=embed_array) as retriever,
        pytest.raises(kind, match=words),
    ):
        retriever.search_similar_episodes(np.ones(2))


def test_more_results_than_were_asked_for_are_cut_and_null_is_none(server: Server) -> None:
    one = {"id": "a", "score": 1, "metadata": {}}
    many = json.dumps({"results": [{**one, "score": each} for each in range(50)]}).encode()
    server.failures = [(200, many, {}), (200, b'{"results": null}', {}), (204, b"", {})]
    with wd.TrajectoryRetriever(server.url, embedder=embed_array) as retriever:
        found = retriever.search_similar_timesteps(np.ones(2), top_k=3)
        assert [each.score for each in found] == [49, 48, 47]
        assert retriever.search_similar_timesteps(np.ones(2)) == []
        assert retriever.search_similar_timesteps(np.ones(2)) == []


def test_a_server_that_began_anew_gets_its_collection_again(server: Server, tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(server.url, embedder=embed) as ingestor:
        ingestor.ingest_episode(record(tmp_path, 1))
        server.collections.clear()
        assert ingestor.ingest_episode(record(tmp_path, 2)) == "ep_2"
    with wd.TrajectoryRetriever(server.url, embedder=embed) as retriever:
        assert [each.episode_id for each in retriever.search_similar_episodes(query(2))] == ["ep_2"]


def test_numbers_of_numpy_and_open_ranges_ask_alike(index: str) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        ask = retriever.search_similar_episodes
        assert len(ask(query(1), top_k=np.int64(3), min_length=np.int32(1))) == 3  # type: ignore[arg-type]
        assert len(retriever.search_similar_timesteps(query(1), top_k=np.int64(3))) == 3  # type: ignore[arg-type]
        assert len(ask(query(1), reward_range=(0.5, np.inf))) == 4
        assert len(ask(query(1), reward_range=(-np.inf, 0.4))) == 4
        assert len(ask(query(1), reward_range=(-np.inf, np.inf))) == 8
        wrong: dict[str, Any]
        for wrong in ({"top_k": 2.5}, {"top_k": "3"}, {"top_k": None}, {"min_length": 2.5}, {"env_id": 5}):
            with pytest.raises(TypeError, match=next(iter(wrong))):
                ask(query(1), **wrong)
        for bounds in ((np.nan, 1), (0,), 5, "ab", (np.inf, 1)):
            with pytest.raises(ValueError, match="reward_range is two numbers"):
                ask(query(1), reward_range=bounds)  # type: ignore[arg-type]


def test_an_episode_with_endless_rewards_and_an_odd_name_is_found(target: str) -> None:
    name = "ünï/côdé 機械 \"'#@"
    made = wd.WShardEpisode(id=name, env_id="环", length=5)
    made.observations["state"] = np.ones((5, 2), np.float32)
    made.rewards = np.array([1, np.inf, np.nan, -np.inf, 2], np.float32)
    with wd.TrajectoryIngestor(target, embedder=embed) as ingestor:
        for _ in range(2):
            assert ingestor.ingest_episode(made) == name
    with wd.TrajectoryRetriever(target, embedder=embed) as retriever:
        [found] = retriever.search_similar_episodes(query(1), top_k=100, env_id="环")
    assert (found.episode_id, found.metadata["total_reward"]) == (name, 3.0)


@pytest.mark.parametrize("given", [None, "abc", [], 1j * np.ones(3), np.array([{}] * 3), np.full(3, 1e39)])
def test_what_is_no_vector_is_refused(target: str, tmp_path: Path, given: Any) -> None:
    with (
        wd.TrajectoryIngestor(target, embedder=lambda _: given) as ingestor,
        pytest.raises(ValueError, match="a vector of finite numbers"),
    ):
        ingestor.ingest_episode(record(tmp_path, 1))


def test_vectors_of_one_episode_have_one_length(target: str, tmp_path: Path) -> None:
    sizes = itertools.count(2)
    with (
        wd.TrajectoryIngestor(target, embedder=lambda _: np.ones(next(sizes))) as ingestor,
        pytest.raises(ValueError, match="vectors of 2 and 3 and 4 and 5 and 6 numbers for one episode"),
    ):
        ingestor.ingest_timesteps(record(tmp_path, 1), window_size=8, stride=8)


def test_an_endless_answer_is_not_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdata.stores.webclient._MAX_JSON_BYTES", 1000)
    server.failures = [(200, b" " * 2000, {})]
    with pytest.raises(LimitExceededError):
        service(server).post("/x", {})


def test_a_silent_or_absent_server(server: Server) -> None:
    server.delay_s = 0.5
    with pytest.raises(UnavailableError, match="did not answer in time"):
        service(server, timeout_s=0.05).post("/x", {})
    gone = JsonService("http://127.0.0.1:9", policy=RetryPolicy(attempts=1))
    with pytest.raises(UnavailableError, match=r"connection .* failed"):
        gone.post("/x", {})


def test_the_time_limit_is_for_all_attempts_together(server: Server) -> None:
    server.delay_s = 0.1
    server.failures = [(503, b"", {})] * 20
    with pytest.raises(UnavailableError, match="did not answer in time"):
        JsonService(server.url, timeout_s=0.35, policy=RetryPolicy(attempts=20, first_wait_s=0.01)).post(
            "/x", {}
        )
    assert 1 <= len(server.requests) <= 6


def test_the_public_server_replaces_the_vectors_of_a_file(public_server: Server, tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(public_server.url, embedder=embed) as ingestor:
        for _ in range(2):
            ingestor.ingest_episode(record(tmp_path, 1))
            ingestor.ingest_timesteps(record(tmp_path, 1), window_size=8, stride=8)
        assert ingestor.ingest_episode(record(tmp_path, 2)) == "ep_2"
    assert [len(each["rows"]) for each in public_server.collections.values()] == [2, 5]
    paths = {path for path, _ in public_server.requests}
    assert paths == {"/v2/collections", "/v2/insert/batch", "/v2/search", "/v2/delete"}
    with (
        wd.TrajectoryIngestor(public_server.url, embedder=lambda _: np.ones(7)) as other,
        pytest.raises(SchemaMismatchError, match="has dimension 3, got vectors of 7"),
    ):
        other.ingest_episode(record(tmp_path, 3))


@pytest.mark.parametrize(
    "response",
    [
        {"inserted": 0, "failed": 1, "errors": {"0": "full"}},
        {"documents": [{}], "scores": []},
        {"documents": 5},
    ],
)
def test_a_public_server_that_answers_wrongly(
    public_server: Server, tmp_path: Path, response: dict[str, Any]
) -> None:
    with wd.TrajectoryIngestor(public_server.url, embedder=embed) as ingestor:
        ingestor.ensure_collection(3)
        public_server.failures = [(200, json.dumps(response).encode(), {})] * 2
        with pytest.raises(StoreError, match=r"inserted 0 of 1|no documents with scores"):
            ingestor.ingest_episode(record(tmp_path, 1))


def test_wrong_places_and_vectors_are_refused(tmp_path: Path) -> None:
    for place in ("ftp://somewhere", "http://user:secret@host", "http://"):
        with pytest.raises(ValueError, match=r"http|URL"):
            wd.TrajectoryIngestor(place, embedder=embed)
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=lambda _: [np.nan]) as ingestor:
        with pytest.raises(ValueError, match="finite"):
            ingestor.ingest_episode(record(tmp_path, 1))
        with pytest.raises(ValueError, match="at least 1"):
            ingestor.ingest_timesteps(record(tmp_path, 1), stride=0)


def test_misspelt_options_get_the_right_name(tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=embed) as ingestor:
        ingestor.ingest_episode(record(tmp_path, 1))
        with pytest.raises(TypeError, match="Did you mean 'window_size'"):
            ingestor.ingest_timesteps(record(tmp_path, 1), windowsize=3)  # type: ignore[call-arg]
    with (
        wd.TrajectoryRetriever(tmp_path / "t.rvf", embedder=embed) as retriever,
        pytest.raises(TypeError, match="Did you mean 'top_k'"),
    ):
        retriever.search_similar_episodes({}, topk=3)  # type: ignore[call-arg]


def test_observations_are_arrays_with_names() -> None:
    found = Observation({"a": np.arange(4).reshape(2, 2), "b": np.ones(3)})
    assert found.tolist() == [0, 1, 2, 3]
    assert found["b"].tolist() == [1, 1, 1]
    assert (found.keys(), "a" in found, "c" in found) == (["a", "b"], True, False)
    assert dict(**found).keys() == {"a", "b"}
    assert (found + 1).keys() == []
    with pytest.raises(KeyError, match="Did you mean 'joint'"):
        Observation({"joint": np.ones(1)})["jiont"]
    with pytest.raises(ValueError, match="no observations"):
        Channels().query({})
    with pytest.raises(ValueError, match="array of numbers"):
        Channels().query("text")


def test_a_service_is_asked_through_a_proxy(server: Server) -> None:
    """The proxy here is the server itself, which is asked for a host that does not exist."""
    far = "http://behind.invalid:8080"
    with (
        wd.TrajectoryRetriever(far, embedder=embed_array, proxy=server.url) as retriever,
        pytest.raises(BlobNotFoundError),
    ):
        retriever.search_similar_episodes(np.ones(2))
    assert server.requests[-1][0].endswith("/search")


def test_a_redirect_of_a_service_is_not_followed(server: Server) -> None:
    server.failures = [(307, b"over there", {"Location": "http://127.0.0.1:9/x"})]
    with pytest.raises(StoreError, match="answered 307"):
        service(server).post("/x", {})


# -- channels --------------------------------------------------------------------------------------------


def record_channels(folder: Path, number: int, *, swapped: bool = False) -> Path:
    random = np.random.default_rng(number)
    channels = {"arm": random.normal(size=(12, 3)), "base": random.normal(size=(12, 2))}
    episode = wd.WShardEpisode(id=f"ep_{number}", env_id="A", length=12)
    for name in sorted(channels, reverse=swapped):
        episode.observations[name] = channels[name].astype(np.float32)
    path = folder / f"ep_{number}.wshard"
    wd.save_wshard(episode, path, overwrite=True)
    return path


def everything(observation: Any) -> np.ndarray:
    return np.concatenate(observation.values())


def first(observation: Any) -> np.ndarray:
    return np.asarray(observation)


@pytest.mark.parametrize("embedder", ["state", everything, first], ids=["state", "values", "first"])
def test_recorded_moments_find_themselves_in_any_order_of_channels(tmp_path: Path, embedder: Any) -> None:
    paths = [record_channels(tmp_path, number, swapped=number % 2 == 1) for number in range(6)]
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=embedder, metric="l2") as ingestor:
        for path in paths:
            ingestor.ingest_episode(path)
    with wd.TrajectoryRetriever(tmp_path / "t.rvf", embedder=embedder) as retriever:
        for number, path in enumerate(paths):
            episode = wd.open_episode(path)
            moment = episode.steps.row(5)["observations"]
            for names in (sorted(moment), sorted(moment, reverse=True)):
                asked = {name: moment[name] for name in names}
                found = retriever.search_similar_episodes(asked, top_k=1)[0]
                assert (found.episode_id, found.step, str(found.score)) == (f"ep_{number}", 5, "0.0")
            found = retriever.search_similar_episodes(episode.steps.row(5), top_k=1)[0]
            assert (found.episode_id, found.step) == (f"ep_{number}", 5)
        with pytest.raises(ValueError, match="unknown channel 'amr'"):
            retriever.search_similar_episodes({"amr": np.ones(3), "base": np.ones(2)})
        with pytest.raises(ValueError, match="missing channel 'arm'"):
            retriever.search_similar_timesteps({"base": np.ones(2)})


@pytest.mark.parametrize("embedder", ["state", everything], ids=["state", "values"])
def test_channels_of_embedded_sets_are_matched_by_name(tmp_path: Path, embedder: Any) -> None:
    for number in range(4):
        record_channels(tmp_path, number)
    wd.embed(tmp_path, embedder, output=tmp_path / "e.rvf", metric="l2")
    with wd.TrajectoryRetriever(tmp_path / "e.rvf", embedder=embedder) as retriever:
        row = wd.open_episode(tmp_path / "ep_2.wshard").steps.row(7)
        swapped = dict(reversed(row["observations"].items()))
        assert retriever.search_similar_episodes(swapped, top_k=1)[0].episode_id == "ep_2"
        assert retriever.search_similar_timesteps(row, top_k=1)[0].step == 7
        with pytest.raises(ValueError, match="missing channel 'base'"):
            retriever.search_similar_episodes({"arm": np.ones(3)})
    report = wd.embed(tmp_path, embedder, output=tmp_path / "e.rvf", metric="l2")
    assert (report.computed, report.reused) == (0, 4)


def test_an_episode_without_a_channel_is_refused(tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder="state") as ingestor:
        ingestor.ingest_episode(record_channels(tmp_path, 1))
        other = wd.WShardEpisode(id="other", env_id="A", length=4)
        other.observations["leg"] = np.ones((4, 5), np.float32)
        wd.save_wshard(other, tmp_path / "other.wshard")
        with pytest.raises(ValueError, match="channel mismatch: expected arm, base, got leg"):
            ingestor.ingest_episode(tmp_path / "other.wshard")


def test_an_index_of_whole_episodes_has_no_timesteps(tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder="state") as ingestor:
        ingestor.ingest_episode(record_channels(tmp_path, 1), max_steps=1)
    with (
        wd.TrajectoryRetriever(tmp_path / "t.rvf", embedder="state") as retriever,
        pytest.raises(ValueError, match="no windows"),
    ):
        retriever.search_similar_timesteps({"arm": np.ones(3), "base": np.ones(2)})


def test_a_server_without_channels_refuses_what_depends_on_their_order(
    server: Server, tmp_path: Path
) -> None:
    with wd.TrajectoryIngestor(server.url, embedder=first) as ingestor:
        ingestor.ingest_episode(record_channels(tmp_path, 1))
    with (
        wd.TrajectoryRetriever(server.url, embedder=first) as retriever,
        pytest.raises(ValueError, match="first channel"),
    ):
        retriever.search_similar_episodes({"arm": np.ones(3), "base": np.ones(2)})
