"""What a viewer answers: episodes of every form, exact frames, values that hold, edits, drafts, live recordings."""

from __future__ import annotations

import errno
import itertools
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.viewer.conftest import Client, client_of
from tests.viewer.samples import BITS, SCRIPT, START_NS, STEP_NS, numbered_frame, record_one, tensor_shard
from tests.waiting import LIMIT_S, until
from warpdata.errors import CorruptLayoutError, StoreError, UnavailableError
from warpdata.timeline.source import EpisodeSource
from warpdata.viewer.answers import Answers, BadViewRequest, ViewRequest, ViewResponse
from warpdata.viewer.framing import sendable
from warpdata.viewer.shown import Shown

FIRST = "000000000000"


def signals_of(client: Client, episode: str = FIRST) -> dict[str, Any]:
    return {each["name"]: each for each in client.get("episode", episode=episode).json()["signals"]}


def number_in(pixels: Any) -> int:
    row = np.asarray(pixels)[8]
    blocks = [row[bit * 16 + 8].mean() > 127 for bit in range(BITS)]
    return sum(int(each) << bit for bit, each in enumerate(blocks))


def test_the_list_is_filtered_and_sorted(reader: Client) -> None:
    everything = reader.get("episodes").json()
    assert [row["id"] for row in everything["rows"]] == [f"{n:012d}" for n in range(3)]
    assert everything["total"] == 3
    found = reader.get("episodes", where="success and length > 90", sort="length", order="down").json()
    assert [row["length"] for row in found["rows"]] == [120]
    assert [r["success"] for r in reader.get("episodes", sort="success").json()["rows"]] == [
        False,
        True,
        True,
    ]
    part = reader.get("episodes", start=1, count=1).json()
    assert [row["id"] for row in part["rows"]] == ["000000000001"]
    for wrong in ("nothing = 3", "length >", "length > 3; drop table x", "id in (select 1)"):
        answer = reader.get("episodes", where=wrong)
        assert 400 <= answer.status < 500, wrong
        assert answer.json()["error"]
    assert reader.get("episodes", sort="nothing").status == 404


def test_statistics_say_what_is_selected(reader: Client) -> None:
    found = reader.get("statistics").json()
    assert found["episodes"] == 3
    assert sum(found["measures"]["length"]["counts"]) == 3
    assert {each["value"]: each["count"] for each in found["success"]} == {True: 2, False: 1}
    assert {each["value"] for each in found["task"]} == {"pick the cube", SCRIPT}
    assert reader.get("statistics", where="not success").json()["episodes"] == 1


def test_distributions_are_those_of_the_selected_records(reader: Client, recorded: Path) -> None:
    everything = wd.open_recordings(recorded)
    for where, chosen in (("", everything), ("not success", everything.where("not success"))):
        found = reader.get("distribution", signal="joints", where=where).json()
        values = np.concatenate([each["joints"].values() for each in chosen]).astype(np.float64)
        assert (found["episodes"], found["records"], found["unreadable"]) == (len(chosen), len(values), 0)
        for channel, column in zip(found["channels"], values.T, strict=True):
            counts, edges = np.histogram(column, bins=len(channel["counts"]))
            assert channel["counts"] == counts.tolist()
            assert (channel["low"], channel["high"], channel["mean"]) == pytest.approx(
                (edges[0], edges[-1], column.mean())
            )
    for other in ("front", "events", "nothing"):
        assert reader.get("distribution", signal=other).json()["channels"] == []


def test_distributions_of_very_many_records_are_made_of_some() -> None:
    rows = np.arange(50_000, dtype=np.float64)
    episodes = [
        wd.Episode.of({"x": wd.ArraySignal(np.arange(len(rows)), rows)}, id=f"e{n}") for n in range(60)
    ]
    other = wd.Episode.of({"x": wd.ArraySignal([1, 2], np.zeros((2, 3)))}, id="wider")
    empty = wd.Episode.of({"x": wd.ArraySignal([1], [np.nan])}, id="nan")
    answers = Answers(Shown(wd.Episodes.of([*episodes, other, empty])))
    found = sendable(answers.distribution(ViewRequest({"signal": "x"})))
    assert 40 < found["episodes"] <= 48
    assert found["records"] <= 48 * 512
    assert (found["channels"][0]["low"], found["channels"][0]["high"]) == (0, 49_999)
    assert sum(found["channels"][0]["counts"]) >= found["records"] - 1
    nothing = sendable(Answers(Shown(empty)).distribution(ViewRequest({"signal": "x"})))
    assert nothing["channels"] == [None]


@pytest.mark.parametrize("lengths", [[10, 11, 12, 10, 11, 12, 400], [10] * 9 + [400]])
def test_what_is_far_from_the_others_is_marked(lengths: list[int]) -> None:
    episodes = [
        wd.Episode.of({"x": wd.ArraySignal(np.arange(n) * 10**9, np.zeros(n))}, id=f"e{at}")
        for at, n in enumerate(lengths)
    ]
    answers = Answers(Shown(wd.Episodes.of(episodes)))
    assert sendable(answers.checks(ViewRequest({})))["far"] == {}
    answers.shown.snapshot.facts()
    far = sendable(answers.checks(ViewRequest({})))["far"]
    assert list(far) == [f"e{len(lengths) - 1}"]
    assert "duration_s" in far[f"e{len(lengths) - 1}"]


@pytest.mark.parametrize(("camera", "every"), [("front", 2), ("wrist", 3), ("depth", 4)])
def test_every_frame_is_the_one_that_was_asked_for(reader: Client, camera: str, every: int) -> None:
    signal = signals_of(reader)[camera]
    times = reader.get("times", episode=FIRST, signal=signal["number"], base=START_NS).arrays()[1]["times"]
    assert len(times) == signal["count"]
    for row in (0, 1, signal["count"] // 2, signal["count"] - 1):
        head, arrays = reader.get("frame", episode=FIRST, signal=signal["number"], row=row).arrays()
        assert int(head["ts_ns"]) == START_NS + int(times[row])
        number = number_in(arrays["pixels"])
        offset = {"front": 3_000_000, "wrist": 7_000_000, "depth": 1_000_000}[camera]
        assert number * every * STEP_NS + offset == times[row]


def test_encoded_groups_hold_the_frame_and_decode_to_it(reader: Client) -> None:
    import av

    number = signals_of(reader)["front"]["number"]
    for row in (0, 9, 10, 37, 59):
        head, arrays = reader.get("packets", episode=FIRST, signal=number, row=row).arrays()
        assert head["codec"].startswith("avc1.")
        assert row in head["rows"]
        assert sum(head["sizes"]) == len(arrays["data"])
        context = av.CodecContext.create("h264", "r")
        import base64

        context.extradata = base64.b64decode(head["description"])
        at, shown = 0, {}
        for size, wanted in zip(head["sizes"], head["rows"], strict=True):
            packet = av.Packet(arrays["data"][at : at + size].tobytes())
            packet.pts = wanted
            at += size
            for picture in context.decode(packet):
                shown[picture.pts] = picture.to_ndarray(format="rgb24")
        for picture in context.decode(None):
            shown[picture.pts] = picture.to_ndarray(format="rgb24")
        assert {each: number_in(pixels) for each, pixels in shown.items()} == {
            each: each for each in head["rows"]
        }
    depth = signals_of(reader)["depth"]["number"]
    assert reader.get("packets", episode=FIRST, signal=depth, row=0).arrays()[0]["codec"] is None


def test_groups_of_a_trimmed_episode_keep_to_it(client: Client) -> None:
    start = START_NS + 33 * STEP_NS
    assert (
        client.post("edit", {"op": "trim", "episode": FIRST, "start_ns": str(start), "end_ns": None}).status
        == 200
    )
    number = signals_of(client)["front"]["number"]
    head, _ = client.get("packets", episode=FIRST, signal=number, row=0).arrays()
    assert head["rows"][:8] == [-1] * 7 + [0]
    frame = client.get("frame", episode=FIRST, signal=number, row=0).arrays()
    assert number_in(frame[1]["pixels"]) == 17
    assert int(frame[0]["ts_ns"]) == START_NS + 34 * STEP_NS + 3_000_000


def test_values_are_those_that_hold_with_their_age(reader: Client) -> None:
    signals = signals_of(reader)
    at = START_NS + 35 * STEP_NS + 11
    held = {each["signal"]: each for each in reader.get("at", episode=FIRST, at=at).json()["values"]}
    joints = held[signals["joints"]["number"]]
    assert joints["age_ns"] == 11
    assert joints["values"] == np.sin(35 / 20 + np.arange(3)).astype(np.float32).tolist()
    assert held[signals["front"]["number"]]["row"] == 17
    assert held[signals["front"]["number"]]["age_ns"] == STEP_NS - 3_000_000 + 11
    assert held[signals["events"]["number"]]["text"] == "grasp"
    early = {each["signal"]: each for each in reader.get("at", episode=FIRST, at=START_NS).json()["values"]}
    assert early[signals["front"]["number"]] == {"signal": signals["front"]["number"], "row": -1}


def test_points_are_exact_where_they_fit(reader: Client) -> None:
    number = signals_of(reader)["joints"]["number"]
    query = {
        "episode": FIRST,
        "signal": number,
        "base": START_NS,
        "from": START_NS,
        "to": START_NS + 119 * STEP_NS,
    }
    head, arrays = reader.get("points", **query, width=60).arrays()
    assert head["exact"] is True
    assert arrays["times"].tolist() == [k * STEP_NS for k in range(120)]
    assert arrays["values"].shape == (3, 120)
    head, arrays = reader.get("points", **query, width=20).arrays()
    assert head["exact"] is False
    assert arrays["values"].shape == (3, 40)


def test_marks_and_the_worst_prediction(reader: Client) -> None:
    signals = signals_of(reader)
    found = reader.get("events", episode=FIRST).json()
    assert [each["text"] for each in found["events"]] == ["grasp", SCRIPT]
    gap = next(each for each in found["gaps"] if each["signal"] == signals["depth"]["number"])
    assert int(gap["from_ns"]) == START_NS + 40 * STEP_NS + 1_000_000
    assert int(gap["to_ns"]) == START_NS + 80 * STEP_NS + 1_000_000
    told = [each for each in signals.values() if each["has_residual"]]
    assert [each["role"] for each in told] == ["prediction"]
    at = START_NS + 70 * STEP_NS
    query = {"episode": FIRST, "signal": told[0]["number"], "residual": 1, "base": START_NS}
    _, arrays = reader.get("points", **query, **{"from": at, "to": at, "width": 8}).arrays()
    held = reader.get("at", episode=FIRST, at=at).json()["values"]
    values = {
        bool(each.get("is_residual")): each["values"] for each in held if each["signal"] == query["signal"]
    }
    truth = next(each["values"] for each in held if each["signal"] == signals["joints"]["number"])
    assert values[True] == pytest.approx(np.array(values[False]) - truth)
    place = arrays["times"].tolist().index(70 * STEP_NS)
    assert arrays["values"][:, place].tolist() == pytest.approx(values[True])
    assert reader.get("points", **{**query, "signal": 0, "from": at, "to": at, "width": 8}).status == 400
    worst = reader.get("errors", episode=FIRST).json()["errors"][0]
    assert int(worst["at_ns"]) == START_NS + 70 * STEP_NS
    assert worst["error"] == pytest.approx(3 * np.sqrt(3), rel=1e-3)


def test_edits_go_through_the_log_and_back(client: Client, root: Path) -> None:
    def ids() -> list[str]:
        return [row["id"] for row in client.get("episodes").json()["rows"]]

    before = ids()
    assert client.post("edit", {"op": "drop", "episode": FIRST}).status == 200
    assert ids() == before[1:] == wd.open_recordings(root).ids
    assert client.post("edit", {"op": "undo"}).status == 200
    assert ids() == before
    assert client.post("edit", {"op": "redo"}).status == 200
    assert ids() == before[1:]
    assert client.post("edit", {"op": "redo"}).status == 400
    assert client.get("history").json()["dropped"] == [FIRST]
    assert client.post("edit", {"op": "undrop", "episode": FIRST}).status == 200
    assert client.get("history").json()["dropped"] == []
    at = START_NS + 50 * STEP_NS
    assert client.post("edit", {"op": "split", "episode": FIRST, "at_ns": str(at)}).status == 200
    assert ids()[:2] == [f"{FIRST}-1", f"{FIRST}-2"]
    assert client.get("episode", episode=f"{FIRST}-2").json()["start_ns"] == str(at)
    body = {"op": "mark", "episode": before[1], "name": "notes", "value": SCRIPT}
    assert client.post("edit", body).status == 200
    assert wd.open_recordings(root).open(before[1]).static["notes"] == SCRIPT
    log = client.get("history").json()["edits"]
    assert [each["op"] for each in log] == ["set_static", "split", "undrop", "drop", "undo", "drop"]
    assert (log[-1]["is_undone"], log[-3]["redoes"]) == (True, 1)


def test_a_root_that_cannot_be_written_is_only_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: False if mode == os.W_OK else real(path, mode))
    with wd.view(root, open_browser=False) as viewer:
        client = client_of(viewer)
        assert "read-only" in client.get("dataset").json()["refusal"]
        assert client.post("edit", {"op": "drop", "episode": FIRST}).status == 403
        assert client.get("dataset").json()["episodes"] == 3


@pytest.mark.parametrize("form", ["file", "opened", "tensors", "packed", "folder", "inside"])
def test_every_form_of_an_episode_can_be_viewed(form: str, recorded: Path, tmp_path: Path) -> None:
    shard = tensor_shard(tmp_path / "raw.wshard")
    thing: Any = {
        "file": shard, "opened": wd.open_episode(shard), "tensors": wd.load_wshard(shard), "folder": tmp_path,
        "packed": tmp_path / "packed.wshard", "inside": f"{recorded}#2",
    }[form]  # fmt: skip
    if form == "packed":
        wd.pack_episode(wd.open_recordings(recorded)[0], tmp_path / "packed.wshard")
    with wd.view(thing, open_browser=False) as viewer:
        client = client_of(viewer)
        about = client.get("dataset").json()
        rows = client.get("episodes").json()["rows"]
        chosen = about["selected"] or rows[0]["id"]
        signals = signals_of(client, chosen)
        cameras = [each for each in signals.values() if each["shows"] == "camera"]
        assert len(cameras) == 3
        for each in cameras:
            _, arrays = client.get("frame", episode=chosen, signal=each["number"], row=5).arrays()
            assert number_in(arrays["pixels"]) == 5, each["name"]
        assert client.get("thumbnail", episode=chosen).arrays()[1]["pixels"].ndim in (2, 3)
        if form == "inside":
            assert (about["selected"], about["refusal"], len(rows)) == ("000000000002", None, 3)
        else:
            assert client.post("edit", {"op": "drop", "episode": chosen}).status == 403


def test_what_holds_no_episodes_is_refused(tmp_path: Path) -> None:
    with wd.CorpusWriter(tmp_path / "corpus", 4) as corpus:
        corpus.append(np.zeros((10, 4), np.float32))
    with pytest.raises(ValueError, match="holds no episodes"):
        wd.view(tmp_path / "corpus", open_browser=False)
    with pytest.raises(KeyError, match="no episode"):
        wd.view(f"{record_small(tmp_path)}#9", open_browser=False)


def record_small(tmp_path: Path) -> Path:
    record_one(tmp_path / "small", 0, steps=20)
    return tmp_path / "small"


def test_edits_of_a_published_dataset_are_a_draft(recorded: Path, local_catalog: str, tmp_path: Path) -> None:
    with wd.DatasetBuilder("lab/arm", catalog=local_catalog) as builder:
        builder.add_episodes("demos", recorded)
        builder.add_table("main", {"a": [1, 2]})
        builder.publish()
    draft = tmp_path / "draft"
    with (
        wd.dataset("lab/arm", catalog=local_catalog) as dataset,
        wd.view(dataset, open_browser=False, draft=draft) as viewer,
    ):
        client = client_of(viewer)
        assert client.get("dataset").json()["name"].startswith("lab/arm@")
        assert not draft.exists()
        elsewhere = Shown(dataset, draft=draft)
        assert not elsewhere.refresh()
        assert client.post("edit", {"op": "drop", "episode": FIRST}).status == 200
        assert elsewhere.refresh()
        assert elsewhere.snapshot.ids == ["000000000001", "000000000002"]
        assert not elsewhere.refresh()
        cut = str(START_NS + 10**12 + 10 * STEP_NS)
        body = {"op": "trim", "episode": "000000000001", "start_ns": cut, "end_ns": None}
        assert client.post("edit", body).status == 200
        assert [row["id"] for row in client.get("episodes").json()["rows"]] == [
            "000000000001",
            "000000000002",
        ]
        assert client.get("history").json()["dropped"] == [FIRST]
        assert client.get("episode", episode="000000000001").json()["start_ns"] == cut
        assert len(dataset.episodes) == 3
    assert [json.loads(line)["op"] for line in (draft / "edits.jsonl").read_text().splitlines()] == [
        "drop",
        "trim",
    ]
    from warpdata.cli.main import main

    assert main(["publish", "lab/arm", "--catalog", local_catalog, "--draft", str(draft)]) == 0
    with wd.dataset("lab/arm", catalog=local_catalog) as dataset:
        assert dataset.episodes.ids == ["000000000001", "000000000002"]
        assert dataset.episodes[0].first_ts_ns == int(cut)
        assert dataset.table("main").row_count == 2


def test_a_recording_under_way_is_seen_growing(root: Path) -> None:
    go_on, end = threading.Event(), threading.Event()

    def recorder() -> None:
        with wd.record(root, static={"task": "live"}, clock="simulated") as rec:
            for k in range(200):
                if k == 50:
                    go_on.wait()
                rec.append("state", np.full(2, k, np.float32), k * 1_000_000)
                rec.append("camera", numbered_frame(k), k * 1_000_000)
            end.wait()

    thread = threading.Thread(target=recorder)
    with wd.view(root, open_browser=False) as viewer:
        client = client_of(viewer)
        thread.start()
        name = "000000000003"

        def count(signal: str) -> int:
            viewer._answers.shown.refresh()
            if not any(row["id"] == name for row in client.get("episodes").json()["live"]):
                return 0
            found = signals_of(client, name)
            return int(found[signal]["count"]) if signal in found else 0

        until(lambda: count("state") == 50)
        assert client.post("edit", {"op": "drop", "episode": name}).status == 403
        go_on.set()
        until(lambda: count("state") == 200)
        until(lambda: count("camera") >= 100)
        number = signals_of(client, name)["camera"]["number"]
        assert number_in(client.get("frame", episode=name, signal=number, row=60).arrays()[1]["pixels"]) == 60
        end.set()
        thread.join()
        viewer._answers.shown.refresh()
        assert client.get("dataset").json()["episodes"] == 4
        assert client.get("episodes").json()["live"] == []


def test_a_recording_into_one_file_is_seen_growing_and_then_the_file(tmp_path: Path) -> None:
    from warpdata.viewer.health import live_state

    target = tmp_path / "take.wshard"
    with wd.record(target, clock="simulated") as rec:
        rec.append("state", np.zeros(2, np.float32), 0)
        until(lambda: (tmp_path / "take.wshard.recording" / "meta.json").exists())
        with wd.view(target, open_browser=False) as viewer:
            client = client_of(viewer)
            assert client.get("episodes").json()["live"] == [{"id": "take", "live": True}]
            for k in range(1, 100):
                rec.append("state", np.full(2, k, np.float32), k * 1_000_000)
            until(lambda: int(signals_of(client, "take")["state"]["count"]) == 100)
            [state] = live_state(viewer._answers.shown, viewer._answers.health)["recordings"]
            assert (state["id"], state["is_live"]) == ("take", True)
            assert client.post("edit", {"op": "drop", "episode": "take"}).status == 403
            rec.close()
            viewer._answers.shown.refresh()
            assert client.get("episodes").json()["live"] == []
            assert client.get("dataset").json()["episodes"] == 1
            assert int(signals_of(client, "take")["state"]["count"]) == 100


def test_the_command_prints_its_link_first(root: Path) -> None:
    import signal
    import subprocess
    import sys

    command = [sys.executable, "-m", "warpdata", "view", str(root), "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        assert link.startswith("http://127.0.0.1:")
        port, token = link.removeprefix("http://127.0.0.1:").split("/#t=")
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        connection.request("GET", "/api/dataset", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0


def test_in_a_notebook_it_shows_itself(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    with wd.view(root) as viewer:
        assert f'src="{viewer.url}"' in viewer._repr_html_()
        answer = Client(viewer).ask("GET", "/")
        assert (
            "frame-ancestors http://localhost:* http://127.0.0.1:*"
            in answer.headers["content-security-policy"]
        )
        assert viewer.access.token not in repr(viewer)


def test_the_first_rows_are_there_before_everything_is_known(recorded: Path) -> None:
    snapshot = Shown(recorded).snapshot
    rows = np.arange(len(snapshot.ids))
    before = snapshot.list_rows(rows)
    assert not snapshot.has_facts
    snapshot.facts()
    assert snapshot.has_facts
    after = [
        {name: value for name, value in row.items() if value is not None} for row in snapshot.list_rows(rows)
    ]
    assert [{name: value for name, value in row.items() if value is not None} for row in before] == after


@pytest.mark.parametrize("knows_all", [False, True])
def test_a_filter_that_nothing_satisfies_gives_nothing(recorded: Path, knows_all: bool) -> None:
    answers = Answers(Shown(recorded))
    if knows_all:
        answers.shown.snapshot.facts()
    ask = ViewRequest({"where": "length > 100000", "sort": "length"})
    found = sendable(answers.episodes(ask))
    assert (found["total"], found["rows"]) == (0, [])
    assert sendable(answers.statistics(ask))["episodes"] == 0


def test_only_the_packets_that_a_frame_takes_are_sent_where_that_is_asked(reader: Client) -> None:
    episode = reader.get("episode", episode="000000000000").json()
    front = next(each["number"] for each in episode["signals"] if each["name"] == "front")
    for row in (0, 7, 12):
        whole, _ = reader.get("packets", episode="000000000000", signal=front, row=row).arrays()
        part, _ = reader.get("packets", episode="000000000000", signal=front, row=row, needed=1).arrays()
        at = whole["rows"].index(row)
        assert (part["rows"], part["sizes"]) == (whole["rows"][: at + 1], whole["sizes"][: at + 1])
    assert reader.get("packets", episode="000000000000", signal=front, row=0, needed=2).status == 400


def test_the_groups_that_follow_come_with_one_where_that_is_asked(reader: Client) -> None:
    front = signals_of(reader)["front"]
    ask = {"episode": FIRST, "signal": front["number"]}
    head, arrays = reader.get("packets", **ask, row=13, many=1).arrays()
    assert head["rows"] == list(range(10, front["count"]))
    starts = [*head["starts"], len(head["rows"])]
    ends = np.cumsum([0, *head["sizes"]])
    for start, stop in itertools.pairwise(starts):
        row = head["rows"][start]
        alone, one = reader.get("packets", **ask, row=row).arrays()
        assert (alone["rows"], alone["starts"]) == (head["rows"][start:stop], [0])
        assert one["data"].tolist() == arrays["data"][ends[start] : ends[stop]].tolist()
    assert len(starts) > 3


def test_not_everything_is_sent_at_once(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    front = signals_of(reader)["front"]
    ask = {"episode": FIRST, "signal": front["number"], "row": 0, "many": 1}
    monkeypatch.setattr("warpdata.viewer.answers.MANY_BYTES", 1)
    assert len(reader.get("packets", **ask).arrays()[0]["starts"]) == 2


@pytest.mark.parametrize("kind", ["whole file", "one page"])
def test_a_damaged_signal_leaves_the_others_to_be_seen(root: Path, kind: str) -> None:
    (path,) = root.glob(f"*/{FIRST}/joints.parquet")
    data = bytearray(path.read_bytes())
    if kind == "whole file":
        path.write_bytes(b"damaged")
    else:
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(bytes(data))
    with wd.view(root, open_browser=False) as viewer:
        client = client_of(viewer)
        about = client.get("episode", episode=FIRST).json()
        names = {each["number"]: each["name"] for each in about["signals"]}
        held = client.get("at", episode=FIRST, at=START_NS + 35 * STEP_NS).json()["values"]
        told = {names[each["signal"]] for each in held if each["row"] >= 0}
        assert {"torque", "front", "events"} <= told
        assert "joints" not in told or kind == "one page"
        events = client.get("events", episode=FIRST).json()
        assert [each["text"] for each in events["events"]] == ["grasp", SCRIPT]
        assert client.get("thumbnail", episode=FIRST).arrays()[1]["pixels"].size
        assert client.get("errors", episode=FIRST).status == 200
        number = next(each for each, name in names.items() if name == "joints")
        asked = {"episode": FIRST, "signal": number, "from": START_NS, "to": START_NS + 10**9, "width": 100}
        refused = client.get("points", **asked)
        assert refused.status == 422, "its plot says what is wrong"
        assert "joints" in refused.json()["error"]


def test_a_text_that_is_told_at_every_step_is_one_event() -> None:
    times, words = np.arange(6) * 10, ["reach", "reach", "grasp", "grasp", "reach", "reach"]
    told = wd.ArraySignal(times, words, role="observation")
    bumps = wd.ArraySignal(times, ["bump"] * 6, role="event")
    answers = Answers(Shown(wd.Episode.of({"phase": told, "bumps": bumps}, id="x")))
    found = sendable(answers.events(ViewRequest({"episode": "x"})))["events"]
    phases = [(each["text"], int(each["at_ns"])) for each in found if each["text"] != "bump"]
    assert phases == [("reach", 0), ("grasp", 20), ("reach", 40)]
    assert len(found) == 3 + 6


class _Halfway(dict[str, wd.Signal]):
    """Signals of which some cannot be opened."""

    def __getitem__(self, name: str) -> wd.Signal:
        if name.startswith("bad"):
            raise CorruptLayoutError(f"{name} is damaged", hint="Mend it.")
        return super().__getitem__(name)


def test_a_damaged_signal_hides_no_other() -> None:
    times = np.arange(4) * STEP_NS
    plain = wd.ArraySignal(times, np.arange(4.0))
    made = {
        "bad": wd.ArraySignal(times, np.zeros(4)),
        "empty": wd.ArraySignal(times[:0], np.zeros(0)),
        "good": plain,
        "guess": wd.ArraySignal(times, np.arange(4.0), replace(plain.meta, role="prediction", of="bad")),
    }
    signals = {name: each.named(name) for name, each in made.items()}
    episode = wd.Episode(EpisodeSource("half", _Halfway(signals), {}, {}))
    answers = Answers(Shown(wd.Episodes.of([episode])))
    about = sendable(answers.episode(ViewRequest({"episode": "half"})))
    assert about["problems"] == [{"signal": "bad", "message": "bad is damaged", "hint": "Mend it."}]
    assert [each["name"] for each in about["signals"]] == ["empty", "good", "guess"]
    assert [each["has_residual"] for each in about["signals"]] == [False, False, False]
    at = sendable(answers.at(ViewRequest({"episode": "half", "at": "0"})))
    assert [each["signal"] for each in at["values"]] == [2, 3]
    events = sendable(answers.events(ViewRequest({"episode": "half"})))
    assert {each["signal"] for each in events["gaps"]} <= {2, 3}
    spread = sendable(answers.distribution(ViewRequest({"signal": "bad"})))
    assert spread["unreadable"] == 1
    with pytest.raises(BadViewRequest, match="episode is missing"):
        answers.episode(ViewRequest({}))


def test_a_busy_viewer_says_so_and_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with wd.view(root, open_browser=False) as viewer:
        client = client_of(viewer)
        monkeypatch.setattr("warpdata.viewer.server.MAX_AT_ONCE", 0)
        monkeypatch.setattr("warpdata.viewer.server.MAX_FOLLOWERS", 0)
        refused = client.get("episodes")
        assert (refused.status, refused.json()["error"]) == (503, "too many requests at once")
        assert refused.headers["retry-after"] == "1"
        refused = client.get("live")
        assert (refused.status, refused.json()["error"]) == (503, "too many pages follow at once")
        monkeypatch.undo()
        assert client.get("episodes").status == 200


def test_a_port_that_is_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr("warpdata.viewer.server.bind_sockets", taken)
    with pytest.raises(
        StoreError, match=r"cannot listen on 127.0.0.1:8123 \(Address already in use\)"
    ) as told:
        wd.view(root, open_browser=False, port=8123)
    assert told.value.hint == "Choose another --port, or 0 for any."


def test_a_store_that_does_not_answer_is_no_fault_of_the_question(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Answers, __: ViewRequest) -> ViewResponse:
        raise UnavailableError("no answer")

    monkeypatch.setattr(Answers, "episode", fail)
    found = client.get("episode", episode=FIRST)
    assert (found.status, found.json()["error"]) == (502, "no answer")


def test_a_warning_of_every_episode_flags_none_of_them(tmp_path: Path) -> None:
    """Episodes without actions: the rule is named once for the set; what only one of them has flags that one."""
    for number in range(4):
        with wd.record(tmp_path / "root", clock="simulated") as rec:
            for k in range(40):
                late = number == 2 and k >= 30
                rec.append("state", np.array([np.sin(k), np.cos(k)]), k * 10_000_000 + late * 1_000_000_000)
    with wd.view(tmp_path / "root", open_browser=False) as viewer:
        client = client_of(viewer)
        client.post("check", {})
        until(lambda: client.get("checks").json()["checked"] == 4)
        until(lambda: list(client.get("checks").json()["worst"]) == ["000000000002"])
        until(lambda: client.get("checks").json()["usual"] == ["no-actions"])

        def rules_of_the_first() -> list[str]:
            findings = client.get("episode", episode="000000000000").json()["findings"]
            return [finding["rule"] for finding in findings]

        until(lambda: "no-actions" in rules_of_the_first())
