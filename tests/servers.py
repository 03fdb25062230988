"""Real servers for tests: an S3 server, an HTTP server with ranges, and a TCP proxy that slows and cuts."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.waiting import until

KEY, SECRET = "testkey", "testsecret-7f3a"
BUCKET = "tst"


class S3Server:
    """SeaweedFS, a real S3 server, on this machine's loopback."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            **extra,
        }


def _free_base() -> int:
    """Five ports in a row that are free, and those ten thousand higher, which the server uses too.

    All below 32,768: from there on Linux gives ports to whoever connects to something.
    """
    for _ in range(200):
        base = random.randint(12_000, 22_000)
        ports = [base + i for i in range(5)] + [base + 10_000 + i for i in range(5)]
        if all(_is_free(port) for port in ports):
            return base
    raise RuntimeError("no free ports")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def run_s3() -> Iterator[S3Server]:
    """A fresh S3 server with one bucket; killed and wiped afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="warp-s3-"))
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": actions}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    try:
        server, process = _started(folder)
        try:
            yield server
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, tries: int = 5) -> tuple[S3Server, subprocess.Popen[bytes]]:
    """A server that answers; another one may take a port between looking for it and using it."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert weed is not None, "the S3 server is not installed (seaweedfs, in the extra `test`)"
    ports = {"master": 0, "volume": 1, "filer": 2, "s3": 3, "admin": 4}
    for attempt in range(tries):
        base, data, log_path = _free_base(), folder / f"data-{attempt}", folder / f"log-{attempt}"
        data.mkdir()
        command = [
            str(weed), "-logtostderr=true", "mini", f"-dir={data}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-master.telemetry=false", f"-s3.config={folder / 's3.json'}", f"-bucket={BUCKET}",
            *[f"-{name}.port={base + offset}" for name, offset in ports.items()],
        ]  # fmt: skip
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        server = S3Server(base + 3)
        if _answers(server, process):
            return server, process
    raise AssertionError(log_path.read_text()[-2000:])


def _answers(server: S3Server, process: subprocess.Popen[bytes]) -> bool:
    """Wait for the first successful PUT, not the open port; whether the server lives until then."""
    from warpdata.errors import StoreError

    def is_settled() -> bool:
        try:
            s3_store(server, "ready").put_if_absent(f"probe-{random.random()}", b"x")
        except StoreError:
            return process.poll() is not None
        return True

    try:
        until(is_settled, "the server does not answer", pause_s=0.2)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process.poll() is None


def s3_store(server: S3Server, prefix: str, *, endpoint: str | None = None):
    from warpdata.stores.address import StoreOptions, open_store

    secrets = {"access_key_id": KEY, "secret_access_key": SECRET}
    return open_store(
        f"s3://{BUCKET}/{prefix}?endpoint={endpoint or server.endpoint}", StoreOptions(secrets=secrets)
    )


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """The standard library's file server, with ranges, tags and scripted failures."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = self.server
        server.requests.append((self.command, self.path, self.headers.get("Range")))
        if server.failures:
            status, headers = server.failures.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._send(path.read_bytes(), path.stat().st_mtime)

    def _send(self, data: bytes, modified_s: float) -> None:
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status, body = 200, data
        if wanted := self.headers.get("Range"):
            start, _, last = wanted.removeprefix("bytes=").partition("-")
            body = data[int(start) : int(last) + 1]
            status = 206 if int(start) < len(data) else 416
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", email.utils.formatdate(modified_s, usegmt=True))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{len(data)}")
        body = b"" if status == 416 else body
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def run_http(folder: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    """A web server of a folder that answers range requests; `failures` scripts its next answers."""
    with serving(lambda *args: _Ranges(*args, directory=str(folder))) as server:
        server.requests, server.failures = [], []
        yield server


@contextlib.contextmanager
def serving(
    handler: Callable[..., http.server.BaseHTTPRequestHandler],
) -> Iterator[http.server.ThreadingHTTPServer]:
    """A web server of this handler in threads of this process; `url` is where it is."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Proxy:
    """A TCP proxy that adds latency to every answer, limits the rate, and cuts connections when told to."""

    def __init__(
        self, target_port: int, *, delay_s: float = 0.0, cut_every: int = 0, rate: float = 0.0
    ) -> None:
        self._target = target_port
        self.delay_s = delay_s
        self.cut_every = cut_every
        self.rate = rate
        self.cuts = 0
        self._to_refuse = 0
        self.retry_after_s = 0
        self.storm: random.Random | None = None
        """Refuses one request in five with 429, writes too, while it is set."""
        self.refused = 0
        self.asked: list[bytes] = []
        """How each request begins."""
        self.sent_bytes = 0
        self.answered_bytes = 0
        self._pieces = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(one)
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.sent_bytes += len(data)
                if data.startswith((b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")):
                    self.asked.append(data[:200])
                    if self._refused(source, data):
                        continue
                sink.sendall(data)
        self._close(source, sink)

    def slow_down(self, reads: int, retry_after_s: int) -> None:
        """Refuse the next reads, as a busy store does."""
        self._to_refuse, self.retry_after_s = reads, retry_after_s

    def _refused(self, source: socket.socket, data: bytes) -> bool:
        if self.storm is not None and b"\r\n\r\n" in data and self.storm.random() < 0.2:
            head, _, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            left = (int(length[1]) if length else 0) - len(body)
            while left > 0:
                left -= len(source.recv(min(left, 1 << 16)))
            self.refused += 1
            source.sendall(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
            return True
        if not self._to_refuse or data.startswith(b"PUT "):
            return False
        self._to_refuse -= 1
        body = b"" if data.startswith(b"HEAD ") else b"<Error><Code>SlowDown</Code></Error>"
        head = f"HTTP/1.1 503 Slow Down\r\nRetry-After: {self.retry_after_s}\r\nContent-Length: {len(body)}"
        source.sendall(head.encode() + b"\r\n\r\n" + body)
        return True

    def _answers(self, source: socket.socket, sink: socket.socket) -> None:
        """Bytes leave `delay_s` after they came: latency without a limit on what is under way."""
        import queue

        due: queue.SimpleQueue = queue.SimpleQueue()

        def send() -> None:
            with contextlib.suppress(OSError):
                while True:
                    when, data = due.get()
                    if data is None:
                        break
                    if (wait := when - time.monotonic()) > 0:
                        time.sleep(wait)
                    sink.sendall(data)
            self._close(source, sink)

        threading.Thread(target=send, daemon=True).start()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._pieces += 1
                self.answered_bytes += len(data)
                if self.cut_every and self._pieces % self.cut_every == 0:
                    self.cuts += 1
                    due.put((time.monotonic(), data[: len(data) // 2]))
                    break
                if self.rate:
                    time.sleep(len(data) / self.rate)
                due.put((time.monotonic() + self.delay_s, data))
        due.put((0.0, None))

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            self._open.discard(one)
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close(*list(self._open))

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unique(prefix: str) -> str:
    return f"{prefix}-{os.getpid()}-{random.getrandbits(40):x}"
