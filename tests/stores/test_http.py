"""The web as it is: signed addresses, redirects to a CDN, proxies, kept connections, servers that hang."""

from __future__ import annotations

import base64
import contextlib
import http.server
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.catalog.test_faults import in_fork
from tests.memory_store import MemoryStore
from tests.servers import serving
from tests.waiting import LIMIT_S
from warpdata.errors import (
    AuthenticationError,
    PermissionError_,
    SettingsError,
    StoreError,
    UnavailableError,
    WarpError,
)
from warpdata.settings import Settings
from warpdata.stores.address import StoreOptions, open_store
from warpdata.stores.blobstore import ReliableStore, RetryPolicy
from warpdata.stores.http import HttpStore
from warpdata.stores.webclient import Proxies, retry_after_s

DATA = bytes(range(256)) * 40


class _Web(http.server.BaseHTTPRequestHandler):
    """Answers with `server.data` or as `server.script` says; notes what it was asked and over how many lines."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.lines += 1

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, {k.title(): v for k, v in self.headers.items()}))
        if refusal := self.server.script(self):
            status, headers, *body = refusal
            self._answer(status, headers, *body or [b""])
            return
        start, _, last = self.headers.get("Range", "bytes=0-99999999").removeprefix("bytes=").partition("-")
        body = self.server.data[int(start) : int(last) + 1]
        span = f"bytes {start}-{int(start) + len(body) - 1}/{len(self.server.data)}"
        self._answer(206 if "Range" in self.headers else 200, {"Content-Range": span}, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_CONNECT(self) -> None:
        self.do_GET()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def run_web() -> Iterator[Any]:
    with serving(_Web) as server:
        server.asked, server.lines, server.data, server.script = [], 0, DATA, lambda _: None
        yield server


@pytest.fixture
def web() -> Iterator[Any]:
    with run_web() as server:
        yield server


@pytest.fixture
def cdn() -> Iterator[Any]:
    with run_web() as server:
        yield server


def signed_for_get(request: Any) -> tuple[int, dict[str, str]] | None:
    """A server that lets in whom the address names, for GET only."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query)
    is_right = query == {"sig": ["a/b+c=="], "exp": ["9"]} and request.command == "GET"
    return None if is_right else (403, {})


class TestSignedAddresses:
    QUERY = "sig=a%2Fb%2Bc%3D%3D&exp=9"

    def test_the_query_is_kept_and_never_shown(self, web: Any) -> None:
        web.script = signed_for_get
        store = open_store(f"{web.url}/folder?{self.QUERY}")
        assert store.head("x").size == len(DATA)
        assert bytes(store.get("x", max_bytes=1 << 20).data) == DATA
        assert [bytes(v) for v in store.get_ranges("x", [(3, 9), (50, 60)])] == [DATA[3:9], DATA[50:60]]
        assert "sig" not in store.address
        web.script = lambda _: (403, {})
        with pytest.raises(StoreError) as caught:
            store.get("x", max_bytes=9)
        assert "a%2Fb" not in f"{caught.value}{caught.value.hint}{store!r}"

    def test_an_empty_blob(self, web: Any) -> None:
        web.script = lambda _: (416, {"Content-Range": "bytes */0"})
        assert open_store(f"{web.url}/folder?{self.QUERY}").head("x").size == 0

    def test_through_the_front_door(self, web: Any, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        made = wd.WShardEpisode(id="e", length=4)
        made.observations["joint"] = np.arange(12.0).reshape(4, 3)
        wd.save_wshard(made, path)
        web.data, web.script = path.read_bytes(), signed_for_get
        episode = wd.load_wshard(f"{web.url}/some%20folder/e.wshard?{self.QUERY}")
        assert np.array_equal(episode.observations["joint"].data, np.arange(12.0).reshape(4, 3))


class TestRedirects:
    def test_to_another_host_without_credentials(self, web: Any, cdn: Any) -> None:
        web.script = lambda request: (302, {"Location": f"{cdn.url}/edge/x?token=t%2F1"})
        store = HttpStore(f"{web.url}/a?sig=s")
        assert [bytes(v) for v in store.get_ranges("x", [(5, 25)])] == [DATA[5:25]]
        (_, path, headers) = cdn.asked[0]
        assert path == "/edge/x?token=t%2F1", "the address of the redirect, and nothing else"
        assert headers["Range"] == "bytes=5-24"
        assert "sig=s" not in str(headers)

    def test_circles_end(self, web: Any) -> None:
        web.script = lambda _: (302, {"Location": f"{web.url}/again"})
        with pytest.raises(StoreError, match="redirects more than"):
            HttpStore(web.url).head("x")
        assert len(web.asked) < 10

    @pytest.mark.parametrize(
        "target", ["file:///etc/passwd", "ftp://h/x", "http://u:p@127.0.0.1/x", "http://[x", "http://h:a/x"]
    )
    def test_what_is_no_web_address_is_refused(self, web: Any, target: str) -> None:
        web.script = lambda _: (302, {"Location": target})
        with pytest.raises(StoreError, match="invalid web address"):
            HttpStore(web.url).get("x", max_bytes=9)


def signed_elsewhere(request: Any) -> tuple[int, dict[str, str]] | None:
    """A server that redirects to an address signed for GET only."""
    if "?" not in request.path:
        return 302, {"Location": f"{request.path}?sig=1"}
    return None if request.command == "GET" else (403, {})


def knows_no_head(request: Any) -> tuple[int, dict[str, str]] | None:
    return (405, {}) if request.command == "HEAD" else None


@pytest.mark.parametrize("script", [signed_elsewhere, knows_no_head])
def test_where_head_is_refused_the_first_byte_tells_the_size(web: Any, script: Any) -> None:
    web.script = script
    store = HttpStore(web.url)
    assert store.head("x").size == len(DATA)
    assert [bytes(view) for view in store.get_ranges("x", [(3, 9)])] == [DATA[3:9]]


def test_what_is_forbidden_stays_so(web: Any) -> None:
    web.script = lambda _: (403, {})
    with pytest.raises(PermissionError_, match="forbids"):
        HttpStore(web.url).head("x")


@pytest.mark.parametrize("address", ["http://", "http://[half", "https://h:99999/x", "s3://[half/x"])
def test_an_address_that_is_none_is_named(address: str, tmp_path: Path) -> None:
    for ask in (wd.open, wd.load_wshard, lambda url: wd.dataset("a/b", catalog=url, cache_dir=tmp_path)):
        with pytest.raises(ValueError, match=r"not an address|invalid web address"):
            ask(f"{address}?sig=secret")


class TestProxies:
    def test_the_proxy_is_asked(self, cdn: Any) -> None:
        """`cdn` plays the proxy: it is asked with the whole address and its own password."""
        port = urllib.parse.urlsplit(cdn.url).port
        settings = Settings.from_env({"http_proxy": f"http://me:pass%21@127.0.0.1:{port}"})
        proxies = Proxies(settings.proxies, settings.no_proxy)
        store = open_store("http://data.invalid/folder", StoreOptions(proxies=proxies))
        assert bytes(store.get("x", max_bytes=1 << 20).data) == DATA
        (_, path, headers) = cdn.asked[0]
        assert path == "http://data.invalid/folder/x"
        assert headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"me:pass!").decode()
        assert "pass" not in f"{settings!r}{proxies!r}"

    @pytest.mark.parametrize("without", ["127.0.0.1", "*", "example.org, 127.0.0.1"])
    def test_some_hosts_are_asked_directly(self, web: Any, without: str) -> None:
        settings = Settings.from_env({"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": without})
        store = HttpStore(web.url, proxies=Proxies(settings.proxies, settings.no_proxy))
        assert store.head("x")

    @pytest.mark.parametrize(
        ("url", "without", "is_direct"),
        [
            ("http://data.example.org/x", "example.org", True),
            ("http://data.example.org/x", ".example.org", True),
            ("http://data.example.org/x", "*.example.org", True),
            ("http://example.org:8080/x", "example.org:8080", True),
            ("http://example.org:8080/x", "example.org:8081", False),
            ("http://badexample.org/x", "example.org", False),
            ("http://10.1.2.3/x", "10.0.0.0/8", True),
            ("http://11.1.2.3/x", "10.0.0.0/8", False),
            ("http://h/x", "", False),
            ("http://h/x", " , ", False),
            ("http://h/x", "*", True),
        ],
    )
    def test_which_hosts_are_asked_directly(self, url: str, without: str, is_direct: bool) -> None:
        found = Proxies({"http": "p:1"}, without).of(urllib.parse.urlsplit(url))
        assert found == ("" if is_direct else "http://p:1")

    def test_a_proxy_that_is_not_there_is_named_as_the_cause(self, web: Any) -> None:
        store = HttpStore(web.url, proxies=Proxies({"http": "127.0.0.1:1"}))
        with pytest.raises(
            UnavailableError, match=r"the proxy http://127.0.0.1:1 failed: nothing listens there"
        ):
            store.head("x")

    def test_a_login_of_any_letters_is_sent_as_the_address_has_it(self, cdn: Any) -> None:
        port = urllib.parse.urlsplit(cdn.url).port
        login = urllib.parse.quote("ünïc") + ":" + urllib.parse.quote("漢:@/ ", safe="")
        store = HttpStore(
            "http://data.invalid", proxies=Proxies({"http": f"http://{login}@127.0.0.1:{port}"})
        )
        store.get("x", max_bytes=1 << 20)
        sent = cdn.asked[0][2]["Proxy-Authorization"].removeprefix("Basic ")
        assert base64.b64decode(sent).decode() == "ünïc:漢:@/ "

    @pytest.mark.parametrize("scheme", ["http", "https"])
    @pytest.mark.parametrize(
        ("status", "error", "said"),
        [
            (407, AuthenticationError, "requires credentials"),
            (403, StoreError, "answered 403|forbids"),
            (502, UnavailableError, "502"),
        ],
    )
    def test_a_proxy_that_refuses_is_told_from_the_server(
        self, cdn: Any, scheme: str, status: int, error: type[Exception], said: str
    ) -> None:
        """Plainly, and where a line to the server is asked for (CONNECT)."""
        cdn.script = lambda _: (status, {})
        proxy = f"http://me:secret@{urllib.parse.urlsplit(cdn.url).netloc}"
        with pytest.raises(error, match=said) as raised:
            HttpStore(f"{scheme}://data.invalid", proxies=Proxies({scheme: proxy})).get("x", max_bytes=9)
        assert "secret" not in str(raised.value)
        if scheme == "https" or status == 407:
            assert f"the proxy {cdn.url}" in str(raised.value)
        if status == 407:
            assert "_PROXY" in raised.value.hint  # type: ignore[attr-defined]

    @pytest.mark.parametrize("proxy", ["http://h:99999", "http://[half", "http://", "http://me:secret@h:x"])
    def test_an_address_that_is_none_is_an_error_of_the_settings(self, web: Any, proxy: str) -> None:
        with pytest.raises(SettingsError, match="proxy") as raised:
            HttpStore(web.url, proxies=Proxies({"http": proxy})).head("x")
        assert "secret" not in str(raised.value)

    def test_other_kinds_of_proxy_are_refused_when_used(self, web: Any) -> None:
        settings = Settings.from_env({"ALL_PROXY": "socks5://127.0.0.1:1"})
        with pytest.raises(SettingsError, match="socks5"):
            HttpStore(web.url, proxies=Proxies(settings.proxies)).head("x")


PART = DATA[10:60]


@pytest.mark.parametrize(
    ("status", "headers", "body", "says"),
    [
        (206, {"Content-Range": "bytes 10-29/200"}, PART[:20], "came back as 20 bytes"),
        (206, {"Content-Range": "bytes 10-59/200"}, PART[:20], "came back as 20 bytes"),
        (206, {"Content-Range": "bytes 0-49/200"}, DATA[:50], "another range"),
        (206, {"Content-Range": "bytes 10-59/*"}, PART, "another range"),
        (206, {"Content-Range": f"bytes 10-59/{'9' * 5000}"}, PART, "another range"),
        (206, {}, PART, "another range"),
        (204, {}, b"", "answered 204"),
        (304, {}, b"", "answered 304"),
    ],
)
def test_an_answer_that_does_not_fit_the_range(
    web: Any, status: int, headers: dict[str, str], body: bytes, says: str
) -> None:
    web.script = lambda request: (status, headers, body)
    with pytest.raises(WarpError, match=says):
        HttpStore(web.url).get_ranges("x", [(10, 60)])


@pytest.mark.parametrize(
    ("status", "headers"),
    [(206, {"Content-Range": "bytes 0-9/200"}), (304, {}), (416, {"Content-Range": "bytes */200"})],
)
def test_a_part_that_nobody_asked_for_is_not_the_whole(
    web: Any, status: int, headers: dict[str, str]
) -> None:
    """Of a pointer the first bytes would be believed, and nothing new where nothing was known."""
    web.script = lambda request: (status, headers, DATA[:10])
    for ask in (lambda store: store.get("x", max_bytes=100), lambda store: store.head("x")):
        with pytest.raises(StoreError, match=f"answered {status}"):
            ask(HttpStore(web.url))
    if status == 304:
        assert HttpStore(web.url).get("x", max_bytes=100, unless_etag='"a"') is None


@pytest.mark.parametrize("length", ["-5", "abc", "9" * 5000])
def test_a_length_that_is_none(web: Any, length: str) -> None:
    web.script = lambda request: (200, {"Content-Length": length}, b"")
    with pytest.raises(StoreError, match="invalid Content-Length"):
        HttpStore(web.url).head("x")


class _NoParts(http.server.BaseHTTPRequestHandler):
    """Sends the whole blob whatever part of it is asked for, as `python -m http.server` does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA)

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.parametrize("address", ["/folder", "/folder?sig=a"])
@pytest.mark.parametrize("part", [(0, 9), (0, len(DATA))])
def test_a_server_without_parts_is_told_from_a_large_blob(address: str, part: tuple[int, int]) -> None:
    with serving(_NoParts) as server:
        store = open_store(f"{server.url}{address}")
        with pytest.raises(StoreError, match="does not support range requests"):
            store.get_ranges("x", [part])
        if "?" in address:  # of which the size is asked by the first byte
            with pytest.raises(StoreError, match="does not support range requests"):
                store.head("x")


def test_connections_are_kept(web: Any) -> None:
    store = HttpStore(web.url)
    for start in range(30):
        store.get_ranges("x", [(start, start + 9)])
    assert (web.lines, len(web.asked)) == (1, 30)


def test_a_child_has_lines_of_its_own(web: Any) -> None:
    store = HttpStore(web.url)
    store.head("x")
    assert in_fork(lambda: 17 if bytes(store.get_ranges("x", [(1, 9)])[0]) == DATA[1:9] else 1) == 17
    store.head("x")
    assert web.lines == 2


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class TestNames:
    """Hosts by name, with a system whose name servers do as the tests say."""

    @pytest.fixture
    def names(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        known: dict[str, Any] = {}
        real = socket.getaddrinfo

        def look_up(host: str, port: int, *rest: Any, **more: Any) -> Any:
            found = known.get(host)
            if callable(found):
                found()
            return [
                entry for one in found or [host] for entry in real(one, port, *rest, **more)
            ]  # an address needs no name server

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return known

    def test_a_name_server_that_hangs_is_not_waited_for(self, names: dict[str, Any]) -> None:
        ended = threading.Event()
        names["slow.example"] = lambda: ended.wait(LIMIT_S)
        with pytest.raises(UnavailableError, match="no name server answered in time"):
            HttpStore("http://slow.example", timeout_s=0.05).head("x")
        ended.set()

    def test_every_address_of_a_host_is_tried(self, web: Any, names: dict[str, Any]) -> None:
        names["many.example"] = ["127.0.0.2", "127.0.0.1"]
        port = urllib.parse.urlsplit(web.url).port
        store = HttpStore(f"http://many.example:{port}")
        assert bytes(store.get_ranges("x", [(1, 9)])[0]) == DATA[1:9]
        assert web.asked[0][2]["Host"] == f"many.example:{port}", "the server is asked by its name"

    def test_a_name_that_is_not_known(self, names: dict[str, Any]) -> None:
        def unknown() -> None:
            raise socket.gaierror(-2, "Name or service not known")

        names["none.example"] = unknown
        with pytest.raises(UnavailableError, match="its name is not known"):
            HttpStore("http://none.example").head("x")


@pytest.mark.parametrize(
    "headers", [{"Last-Modified": "yesterday"}, {"Last-Modified": "Mon, 99 Foo 99999 99:99:99 GMT"}]
)
def test_a_time_that_is_none_is_no_time(web: Any, headers: dict[str, str]) -> None:
    web.script = lambda _: (200, headers)
    assert HttpStore(web.url).head("x").modified_s == 0.0


@pytest.mark.parametrize("asked", ["\u00b2", "soon", "9" * 400, "Mon, 99 Foo 99999 99:99:99 GMT"])
def test_waits_that_a_server_cannot_mean(asked: str) -> None:
    assert retry_after_s(asked) in (None, float("inf"))


class TestHangingServers:
    @pytest.mark.parametrize("form", ["{}", "s3://tst/x?endpoint={}"])
    def test_the_cause_is_named(self, hanging: str, form: str) -> None:
        secrets = {"access_key_id": "a", "secret_access_key": "b"}
        store = open_store(form.format(hanging), StoreOptions(secrets=secrets, timeout_s=0.2))
        for ask in (
            store.head,
            lambda key: store.get(key, max_bytes=9),
            lambda key: store.get_ranges(key, [(0, 1)]),
        ):
            with pytest.raises(UnavailableError, match="did not answer in time") as caught:
                ask("x")
            assert hanging in str(caught.value)

    def test_all_attempts_together_stay_below_the_limit(self) -> None:
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        class Hanging(MemoryStore):
            def head(self, key: str) -> Any:
                sleep(StoreOptions().timeout_s)
                raise UnavailableError("it did not answer in time", path=key)

        policy = RetryPolicy(sleep=sleep, clock=lambda: now)
        store = ReliableStore(Hanging(), policy=policy)
        with pytest.raises(UnavailableError, match="tried 3 times in 6"):
            store.head("x")
        assert now <= policy.max_total_s + StoreOptions().timeout_s < 100

    def test_a_wait_that_would_pass_the_limit_is_not_begun(self) -> None:
        now, waits = 0.0, []

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            waits.append(seconds)

        class Busy(MemoryStore):
            def head(self, key: str) -> Any:
                error = UnavailableError("busy", path=key)
                error.retry_after_s = 25.0
                raise error

        policy = RetryPolicy(sleep=sleep, clock=lambda: now)
        with pytest.raises(UnavailableError):
            ReliableStore(Busy(), policy=policy).head("x")
        assert len(waits) == 2
        assert now <= policy.max_total_s


class _Simple(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` runs: it sends whole files, whatever range is asked for."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("query", ["", "?signature=1"])
@pytest.mark.parametrize("size", [60, 200_000])
def test_a_server_without_ranges_is_called_so(tmp_path: Path, size: int, query: str) -> None:
    (tmp_path / "a.wshard").write_bytes(b"SHRD" + bytes(size))
    with (
        serving(lambda *args: _Simple(*args, directory=str(tmp_path))) as server,
        pytest.raises(StoreError, match="does not support range requests") as raised,
    ):
        wd.load_wshard(f"{server.url}/a.wshard{query}")
    assert "http.server" in raised.value.hint
