"""Who may ask a viewer for what: other sites, other hosts, no token, long and wrong requests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.viewer.conftest import Answer, Client
from tests.viewer.samples import SCRIPT
from tests.waiting import LIMIT_S
from warpdata.viewer.access import AccessRules
from warpdata.viewer.server import CHANGES, MAX_BODY_BYTES, QUESTIONS

FIRST = "000000000000"
EVERY_QUESTION = [*QUESTIONS, "session", "live", "video"]


def bare(reader: Client) -> Client:
    return Client(reader.viewer)


def raw(reader: Client, request: bytes) -> bytes:
    """A request that no library would send."""
    with socket.create_connection(("127.0.0.1", reader.viewer.port), timeout=LIMIT_S) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # a server that has heard enough hangs up
            connection.sendall(request)
            while piece := connection.recv(1 << 16):
                answer += piece
    return answer


@pytest.mark.parametrize("name", EVERY_QUESTION)
def test_nothing_is_told_without_a_token(reader: Client, name: str) -> None:
    answer = bare(reader).get(name, episode=FIRST, signal=0)
    assert answer.status == 401
    assert "warp view" in answer.json()["error"]
    for wrong in ("Bearer x", "Bearer", f"Basic {reader.viewer.access.token}"):
        assert bare(reader).ask("GET", f"/api/{name}", None, {"Authorization": wrong}).status == 401


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_changed_without_a_token(reader: Client, name: str) -> None:
    assert bare(reader).post(name, {"op": "drop", "episode": FIRST}).status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "evil.example:80"]
)
@pytest.mark.parametrize("path", ["/", "/app.js", "/api/dataset", "/api/session", "/nothing"])
def test_a_name_that_points_here_is_refused(reader: Client, host: str, path: str) -> None:
    """DNS rebinding: the page of another site reaches this server under its own name, so its origin is its own."""
    answer = reader.ask("GET", path, None, {"Host": host})
    assert answer.status == 403, (host, path)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:99", "[::1]:80", "a.localhost:1", "LOCALHOST"])
def test_this_machine_may_be_called_what_it_is(reader: Client, host: str) -> None:
    assert reader.ask("GET", "/api/dataset", None, {"Host": host}).status == 200


def test_another_host_can_be_allowed(root: Path) -> None:
    with wd.view(root, open_browser=False, allow_hosts=["Lab.example"]) as viewer:
        reader = Client(viewer, {"Authorization": f"Bearer {viewer.access.token}"})
        assert reader.ask("GET", "/api/dataset", None, {"Host": "lab.example:8080"}).status == 200
        assert reader.ask("GET", "/api/dataset", None, {"Host": "other.example"}).status == 403


def cookie_of(reader: Client) -> str:
    return reader.get("session").headers["set-cookie"].partition(";")[0]


def test_the_cookie_stands_for_the_token(reader: Client) -> None:
    answer = reader.get("session")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"warp-view-{reader.viewer.port}=" in cookie
    assert reader.viewer.access.token not in cookie + answer.body.decode()
    with_cookie = {"Cookie": cookie_of(reader)}
    assert bare(reader).ask("GET", "/api/dataset", None, with_cookie).status == 200
    assert (
        bare(reader).ask("GET", "/api/dataset", None, {"Cookie": f"warp-view-{reader.viewer.port}=x"}).status
        == 401
    )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json"},
        {"Content-Type": "application/json", "X-Warp-Write": "guessed"},
        {"Content-Type": "application/json", "X-Warp-Write": "right", "Origin": "https://evil.example"},
        {"Content-Type": "application/json", "X-Warp-Write": "right", "Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "application/json", "X-Warp-Write": "right", "Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_cannot_change_anything(client: Client, headers: dict[str, str]) -> None:
    """Cross-site requests carry the cookie at best: never the write token, JSON and an origin of our own at once."""
    reader = client
    token = reader.get("session").json()["write_token"]
    sent = {k: token if v == "right" else v for k, v in headers.items()}
    sent["Cookie"] = cookie_of(reader)
    body = json.dumps({"op": "drop", "episode": FIRST}).encode()
    assert bare(reader).ask("POST", "/api/edit", body, sent).status in (403, 415)
    assert reader.get("dataset").json()["episodes"] == 3
    sent = {"Cookie": sent["Cookie"], "Content-Type": "application/json", "X-Warp-Write": token}
    assert bare(reader).ask("POST", "/api/edit", body, sent).status == 200


def test_no_get_changes_anything(reader: Client) -> None:
    for name in CHANGES:
        assert reader.ask("GET", f"/api/{name}?op=drop&episode={FIRST}").status == 405
    for name in QUESTIONS:
        assert reader.post(name, {}).status == 405


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_ask(reader: Client, site: str) -> None:
    assert reader.ask("GET", "/api/dataset", None, {"Sec-Fetch-Site": site}).status == 403


TRAVERSALS = [
    "/../../etc/passwd", "/..%2f..%2fetc/passwd", "/static/app.js", "/app.js/../server.py", "//etc/passwd",
    "/api/../app.py", "/%2e%2e/server.py", "/app.js%00.py", "/server.py", "/static/../access.py", "/api/__init__",
    "/api/_episode", "/api/shown",
]  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_of_a_client_reaches_a_file(reader: Client, path: str) -> None:
    answer = raw(reader, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]
    assert b"root:" not in answer
    assert b"import" not in answer


@pytest.mark.parametrize(
    "episode", ["../../000000000000", "/etc", "", "0", "000000000000/../000000000001", "a" * 5000]
)
def test_an_episode_is_named_not_found_by_path(reader: Client, episode: str) -> None:
    answer = reader.get("episode", episode=episode)
    assert answer.status in (400, 404), answer.body
    assert "error" in answer.json()


def test_every_answer_has_the_headers(reader: Client) -> None:
    for path in (
        "/",
        "/app.js",
        "/app.css",
        "/api/dataset",
        "/api/nothing",
        "/nothing",
        "/api/episode?episode=x",
    ):
        headers = reader.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "'unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


def test_the_page_has_no_script_of_its_own(reader: Client) -> None:
    page = reader.ask("GET", "/").body.decode()
    assert '<script type="module" src="app.js"></script>' in page
    assert page.count("<script") == 1
    assert "style=" not in page
    for text in (page, *(reader.ask("GET", f"/{name}").body.decode() for name in ("app.css", "icon.svg"))):
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_oversized_requests_are_refused(reader: Client) -> None:
    body = b'{"op": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert (
        b" 200 "
        not in raw(
            reader,
            b"POST /api/edit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + reader.viewer.access.token.encode() + b"\r\n"
            b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body,
        )[:20]
    )
    head = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: " + b"x" * (1 << 20) + b"\r\n\r\n"
    )
    assert b" 200 " not in raw(reader, head)[:20]
    assert reader.get("episodes", where="success" + " " * 5000).status == 400
    for query in ({"count": 10**9}, {"start": -1}, {"count": 0}):
        assert reader.get("episodes", **query).status == 400
    asked = {"episode": FIRST, "signal": 0, "from": 0, "to": 1}
    assert reader.get("points", **asked, width=10**6).status == 400
    assert reader.get("points", **{**asked, "to": 1 << 70}, width=10).status == 400
    assert reader.get("points", **{**asked, "signal": 10**6}, width=10).status == 400
    assert reader.get("dataset").status == 200


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"[" * 60_000, b'{"op": 5}', b'{"op": "rm"}', b'{"op": "trim"}', b"\xff\xfe",
             b'{"op": "mark", "episode": "000000000000", "name": "a", "value": {"a": 1}}',
             b'{"op": "mark", "episode": "000000000000", "name": "joints", "value": 1}',
             b'{"op": "trim", "episode": "000000000000", "start_ns": "5", "end_ns": "4"}',
             b'{"op": "undo", "seq": 99}', b'{"op": "redo"}'],
)  # fmt: skip
def test_nonsense_is_refused_with_a_reason(reader: Client, body: bytes) -> None:
    answer = reader.ask("POST", "/api/edit", body, {"Content-Type": "application/json"})
    assert 400 <= answer.status < 500, answer.body
    assert answer.json()["error"]
    assert reader.get("history").json()["edits"] == []


RANGES: list[tuple[str, Any]] = [
    ("bytes=0-9", (0, 10)), ("bytes=5-", (5, None)), ("bytes=-7", (-7, None)), ("bytes=0-99999999", (0, None)),
    ("bytes=0-1,3-4", 416), ("bytes=9-3", 416), ("bytes=99999999-", 416), ("bytes=-", 416), ("items=0-1", 416),
    ("bytes=a-b", 416), ("bytes=-0", 416), ("", 416),
]  # fmt: skip


@pytest.mark.parametrize(("header", "wanted"), RANGES)
def test_one_range_of_a_video(reader: Client, header: str, wanted: Any) -> None:
    signals = reader.get("episode", episode=FIRST).json()["signals"]
    number = next(each["number"] for each in signals if each["name"] == "front")
    path = f"/api/video?episode={FIRST}&signal={number}"
    whole = reader.ask("GET", path)
    assert whole.status == 200
    assert whole.body[4:8] == b"ftyp"
    answer = reader.ask("GET", path, None, {"Range": header})
    if wanted == 416:
        assert answer.status == 416
        assert answer.headers["content-range"] == f"bytes */{len(whole.body)}"
    else:
        assert answer.status == 206
        assert answer.body == whole.body[slice(*wanted)]


def test_a_video_is_not_made_of_what_is_none(reader: Client) -> None:
    signals = {
        each["name"]: each["number"] for each in reader.get("episode", episode=FIRST).json()["signals"]
    }
    assert reader.ask("GET", f"/api/video?episode={FIRST}&signal={signals['joints']}").status == 400


def test_others_are_only_served_with_a_token(root: Path) -> None:
    with pytest.raises(ValueError, match="--token"):
        wd.view(root, open_browser=False, host="0.0.0.0")
    with pytest.raises(ValueError, match="16"):
        wd.view(root, open_browser=False, token="short")


def test_tokens_are_new_every_time_and_long() -> None:
    tokens = {AccessRules(1).token for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 32


def test_texts_are_data(reader: Client) -> None:
    """What an episode says goes out as JSON, as text: the page makes text nodes of it (see the tests in a browser)."""
    answer = reader.get("episode", episode="000000000001")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["static"]["task"] == SCRIPT


def test_an_unexpected_fault_tells_nothing(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.viewer.answers import Answers

    def fail(*_: Any) -> Answer:
        raise RuntimeError(os.getcwd())

    monkeypatch.setattr(Answers, "dataset", fail)
    answer = reader.get("dataset")
    assert answer.status == 500
    assert os.getcwd() not in answer.body.decode()


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_is_none_is_refused_and_no_other_is_opened(port: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="65535"):
        wd.Viewer(tmp_path, port=port)
