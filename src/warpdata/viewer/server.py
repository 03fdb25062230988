"""The server of the viewer. The adapter of tornado: HTTP in and out, nothing else."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import re
import threading
import time
import webbrowser
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warpdata.bytekit.io.ranges import Closing
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.threads import ThreadPool, start_thread
from warpdata.errors import MissingExtraError, StoreError, WarpError, suggests
from warpdata.viewer.access import AccessRules, check_binding
from warpdata.viewer.answers import Answers, ViewRequest
from warpdata.viewer.framing import sendable
from warpdata.viewer.health import live_state
from warpdata.viewer.shown import Shown, describe_error

try:
    from tornado.httpserver import HTTPServer
    from tornado.iostream import StreamClosedError
    from tornado.netutil import bind_sockets
    from tornado.web import Application, RequestHandler
except ImportError:
    raise MissingExtraError.for_extra("tornado", "serve") from None

if TYPE_CHECKING:
    import os

T = TypeVar("T")

STATIC = Path(__file__).parent / "static"
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "app.js": ("app.js", "text/javascript; charset=utf-8"),
    "app.css": ("app.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Files of the page, by request path."""

QUESTIONS = (
    *("dataset", "episodes", "statistics", "distribution", "checks", "thumbnail", "episode", "events"),
    *("points", "at", "times", "frame", "packets", "errors", "history", "moments"),
)
CHANGES = ("edit", "check")

MAX_BODY_BYTES = 64 << 10
MAX_HEAD_BYTES = 16 << 10
MAX_AT_ONCE = 64
MAX_FOLLOWERS = 16
_WORKERS = 4
_PIECE_BYTES = 1 << 20
_LIVE_S = 0.5
_FIRST_ROWS_S = 3.0
"""Seconds that background work waits for a page to load its first rows."""
_REST_S, _MOST_REST_S = 0.5, 5.0
"""How long pages ask for nothing before an episode is checked, and how long that is waited for."""
_UNASKED = ("checks", "dataset")
"""What pages ask again and again by themselves."""
_MOST_PORT = 65_535
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Viewer(Closing):
    """A running viewer: `url` opens it, `close` ends it. In a notebook it shows itself."""

    def __init__(
        self,
        thing: Any,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str | None = None,
        allow_hosts: Collection[str] = (),
        draft: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | None = None,
        catalog: str | os.PathLike[str] | None = None,
        is_embedded: bool = False,
    ) -> None:
        check_binding(host, token)
        if not isinstance(port, int) or not 0 <= port <= _MOST_PORT:
            raise ValueError(f"a port is a whole number from 0 (any) to {_MOST_PORT}, not {port!r}")
        self._answers = Answers(Shown(thing, draft=draft, index=index, catalog=catalog))
        try:
            self._sockets = bind_sockets(port, host)
        except OSError as error:
            fact = f"cannot listen on {host}:{port} ({error.strerror})"
            raise StoreError(fact, hint="Choose another --port, or 0 for any.") from None
        self.port: int = self._sockets[0].getsockname()[1]
        self.access = AccessRules(self.port, frozenset(allow_hosts), token, is_embedded=is_embedded)
        shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self.port}/"
        """The address without its token."""
        self.url = f"{self.address}#t={self.access.token}"
        """The link that opens the viewer; its token stays in the browser, no request or log has it."""
        self._pool = ThreadPool(_WORKERS, "warp-view")
        self._busy = _Busy()
        self._stop: Callable[[], object] = lambda: None
        self._ended = threading.Event()
        started = threading.Event()
        self._thread = start_thread(lambda: asyncio.run(self._serve(started)), "warp-view")
        started.wait()

    def open_browser(self) -> bool:
        """Open the link in a browser of this machine; False if it has none."""
        return webbrowser.open(self.url)

    def wait(self) -> None:
        """Serve until the viewer is closed or Ctrl-C."""
        while not self._ended.wait(0.5):
            pass

    def close(self) -> None:
        """Stop serving."""
        self._stop()
        self._thread.join()
        self._pool.close()

    def __repr__(self) -> str:
        return f"<Viewer of {self._answers.shown.name} at {self.address}>"

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.url}" width="100%" height="720" style="border:0"></iframe>'

    async def _serve(self, started: threading.Event) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # it ended before
                loop.call_soon_threadsafe(stop.set)

        self._stop = end
        shared = {
            "answers": self._answers,
            "access": self.access,
            "pool": self._pool,
            "stop": stop,
            "busy": self._busy,
        }
        routes = [
            (r"/api/session", _Session, shared),
            (r"/api/live", _Live, shared),
            (r"/api/video", _Video, shared),
            (rf"/api/({'|'.join(QUESTIONS)})", _Ask, shared),
            (rf"/api/({'|'.join(CHANGES)})", _Change, shared),
            (rf"/({'|'.join(map(re.escape, FILES))})", _File, shared),
        ]
        application = Application(
            routes, default_handler_class=_Nothing, default_handler_args=shared, log_function=lambda _: None
        )
        server = HTTPServer(
            application, max_body_size=MAX_BODY_BYTES, max_header_size=MAX_HEAD_BYTES, max_buffer_size=1 << 20
        )
        server.add_sockets(self._sockets)
        others = [asyncio.create_task(work(stop)) for work in (self._know_all, self._check_all)]
        started.set()
        await stop.wait()
        server.stop()
        for other in others:
            other.cancel()
        await server.close_all_connections()
        self._ended.set()

    async def _know_all(self, stop: asyncio.Event) -> None:
        """Read the facts of all episodes once the first ones are shown: before that it would only keep them waiting."""
        answers = self._answers
        await self._first_rows(stop)
        while not stop.is_set():
            snapshot = answers.shown.snapshot
            if not snapshot.has_facts:
                await self._busy.at_rest(_REST_S / 4, _REST_S)
                with contextlib.suppress(WarpError, OSError, RuntimeError):  # a request for them reports it
                    await asyncio.wrap_future(self._pool.submit(snapshot.facts))
            await asyncio.sleep(0.5)

    async def _check_all(self, stop: asyncio.Event) -> None:
        """Check episodes one after the other while no request is waiting.

        A long episode takes seconds of the one interpreter, which would delay requests.
        """
        answers = self._answers
        await self._first_rows(stop)
        while not stop.is_set():
            more = False
            if answers.health.is_wanted:
                await self._busy.at_rest(_REST_S, _MOST_REST_S)
                with contextlib.suppress(WarpError, OSError, RuntimeError):
                    more = await asyncio.wrap_future(
                        self._pool.submit(answers.health.step, answers.shown.snapshot)
                    )
            await asyncio.sleep(0.01 if more else 1.0)

    async def _first_rows(self, stop: asyncio.Event) -> None:
        """Wait until a page has shown rows of the list, or none connects."""
        until = time.monotonic() + _FIRST_ROWS_S
        while not self._answers.is_listed and time.monotonic() < until and not stop.is_set():
            await asyncio.sleep(0.1)


class _Busy:
    """How many requests are being answered, and when the last of them was."""

    def __init__(self) -> None:
        self.requests = 0
        self.followers = 0
        self.asked_s = time.monotonic()

    async def at_rest(self, rest_s: float, most_s: float) -> None:
        """Wait until no request came for a while, at most for a fixed time."""
        until = time.monotonic() + most_s
        while (now := time.monotonic()) < until and (self.requests or now - self.asked_s < rest_s):
            await asyncio.sleep(rest_s / 4)


class _Guarded(RequestHandler):  # type: ignore[misc]
    """Every request comes through here: host, caller, and the headers of each answer."""

    needs_token = True

    def initialize(
        self, answers: Answers, access: AccessRules, pool: ThreadPool, stop: asyncio.Event, busy: _Busy
    ) -> None:
        self.answers, self.access, self.pool, self.stop, self.busy = answers, access, pool, stop, busy

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        access: AccessRules | None = getattr(self, "access", None)
        for name, value in (access.headers() if access else {}).items():
            self.set_header(name, value)

    def prepare(self) -> None:
        self.set_default_headers()
        headers = dict(self.request.headers)
        cookies = {name: morsel.value for name, morsel in self.request.cookies.items()}
        refusal = self.access.refusal(self.request.method, headers, cookies, needs_token=self.needs_token)
        if refusal is not None:
            self.refuse(*refusal)

    def refuse(self, status: int, why: str, hint: str = "") -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(dump_json(sendable({"error": why, "hint": hint})))

    def write_error(self, status_code: int, **_: Any) -> None:
        self.refuse(status_code, self._reason)

    async def work(self, call: Callable[[], T]) -> T | None:
        """The result of a call in another thread; None if it failed, which is answered already."""
        if self.busy.requests >= MAX_AT_ONCE:
            self.set_header("Retry-After", "1")
            self.refuse(503, "too many requests at once")
            return None
        self.busy.requests += 1
        try:
            return await asyncio.wrap_future(self.pool.submit(call))
        except (WarpError, ValueError, KeyError, OSError) as error:
            self.refuse(_status(error), *describe_error(error))
            return None
        finally:
            self.busy.requests -= 1

    async def answer(self, name: str, ask: Any) -> None:
        """Send the answer to a question."""
        reply = await self.work(lambda: self.answers.answer(name, ask))
        if reply is None:
            return
        self.set_header("Content-Type", reply.content_type)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        with contextlib.suppress(StreamClosedError):
            self.finish(reply.body)

    def question(self) -> ViewRequest:
        values = {name: self.get_query_argument(name, strip=False) for name in self.request.query_arguments}
        return ViewRequest(values)


class _Nothing(_Guarded):
    needs_token = False

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.refuse(404, "there is nothing here")


class _File(_Guarded):
    needs_token = False

    def get(self, name: str) -> None:
        file, kind = FILES[name]
        self.set_header("Content-Type", kind)
        self.finish((STATIC / file).read_bytes())


class _Session(_Guarded):
    """The exchange of the token for a cookie, and the token that changes need."""

    def get(self) -> None:
        if self.access.has_token(dict(self.request.headers)):
            self.set_cookie(
                self.access.cookie_name, self.access.cookie, httponly=True, samesite="Strict", path="/"
            )
        self.set_header("Content-Type", "application/json")
        self.finish(dump_json({"write_token": self.access.write_token}))


class _Ask(_Guarded):
    async def get(self, name: str) -> None:
        if name not in _UNASKED:
            self.busy.asked_s = time.monotonic()
        await self.answer(name, self.question())


class _Change(_Guarded):
    async def post(self, name: str) -> None:
        try:
            ask = json.loads(self.request.body)
        except (ValueError, RecursionError):
            ask = None
        if not isinstance(ask, dict):
            self.refuse(400, "the body is a JSON object")
            return
        await self.answer(name, ask)


class _Video(_Guarded):
    """A camera as a file; one range of it, or all."""

    async def get(self) -> None:
        question = self.question()
        video = await self.work(lambda: self.answers.video(question))
        if video is None:
            return
        reader, kind, name = video
        wanted = _range(self.request.headers.get("Range"), reader.size)
        if wanted is None:
            self.set_header("Content-Range", f"bytes */{reader.size}")
            self.refuse(416, "one range of bytes that are there")
            return
        start, stop = wanted
        if "Range" in self.request.headers:
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {start}-{stop - 1}/{reader.size}")
        self.set_header("Content-Type", kind)
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("Content-Length", str(stop - start))
        plain = re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII)
        self.set_header("Content-Disposition", f'inline; filename="{plain}"')
        with contextlib.suppress(StreamClosedError):
            for at in range(start, stop, _PIECE_BYTES):
                end = min(at + _PIECE_BYTES, stop)
                self.write(bytes(await asyncio.wrap_future(self.pool.submit(reader.read, at, end))))
                await self.flush()
            self.finish()


class _Live(_Guarded):
    """Server-sent events: what is being recorded, whenever it changed."""

    async def get(self) -> None:
        if self.busy.followers >= MAX_FOLLOWERS:
            self.refuse(503, "too many pages follow at once")
            return
        self.busy.followers += 1
        self.set_header("Content-Type", "text/event-stream")
        before, silent = b"", 0
        try:
            while not self.stop.is_set():
                state = await asyncio.wrap_future(
                    self.pool.submit(live_state, self.answers.shown, self.answers.health)
                )
                now = dump_json(sendable({key: value for key, value in state.items() if key != "free_bytes"}))
                if now != before or silent > 20:
                    before, silent = now, 0
                    self.write(b"data: " + dump_json(sendable(state)) + b"\n\n")
                    await self.flush()
                silent += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), _LIVE_S)
        except (StreamClosedError, WarpError, OSError):
            pass  # the page is gone, or the root is
        finally:
            self.busy.followers -= 1


def _status(error: Exception) -> int:
    if isinstance(error, PermissionError):
        return 403
    if isinstance(error, KeyError) and not isinstance(error, WarpError):
        return 404
    if isinstance(error, StoreError):
        return 502
    return 400 if isinstance(error, ValueError) else 500 if isinstance(error, OSError) else 422


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes that a Range header names; None for several ranges or nonsense."""
    if header is None:
        return 0, size
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    start = max(0, size - int(last)) if not first else int(first)
    stop = size if not first or not last else min(size, int(last) + 1)
    return (start, stop) if start < stop else None


@suggests
def view(
    thing: Any,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    token: str | None = None,
    allow_hosts: Collection[str] = (),
    draft: str | os.PathLike[str] | None = None,
    index: str | os.PathLike[str] | None = None,
    catalog: str | os.PathLike[str] | None = None,
    open_browser: bool | None = None,
) -> Viewer:
    """Show episodes in the browser: an address, an Episode, Episodes or a Dataset; returns the running Viewer.

    `index` is a vector file of the episodes for "moments like this"; one published with them or stored beside
    them is found without it; `catalog` is where published datasets are looked for.

    In a notebook the viewer shows itself inline, elsewhere the browser is opened unless
    `open_browser` is False.
    """
    find_shell = getattr(builtins, "get_ipython", None)
    in_notebook = find_shell is not None and type(find_shell()).__name__ == "ZMQInteractiveShell"
    made = Viewer(
        thing,
        port=port,
        host=host,
        token=token,
        allow_hosts=allow_hosts,
        draft=draft,
        index=index,
        catalog=catalog,
        is_embedded=in_notebook,
    )
    if open_browser or (open_browser is None and not in_notebook):
        made.open_browser()
    return made
