"""Stand-ins for Google's and Microsoft's stores: a small server of Google's XML interface, and Azurite."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import http.server
import itertools
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from tests.servers import serving
from tests.waiting import until

AZURITE = shutil.which(
    "azurite-blob", path=f"{sys.prefix}/node/node_modules/.bin{os.pathsep}{os.environ['PATH']}"
)
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public account every Azurite has."""


class _Google(http.server.BaseHTTPRequestHandler):
    """Objects with generations: conditional puts, ranges, listing, uploads in parts."""

    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        self.query: dict[str, str] = {}
        try:
            super().handle_one_request()
        except ConnectionError:  # the client no longer wants the answer
            self.close_connection = True

    def _key(self) -> str:
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        return urllib.parse.unquote(parts.path.lstrip("/").partition("/")[2])

    def do_GET(self) -> None:
        key = self._key()
        if "list-type" in self.query:
            return self._list()
        found = self.server.objects.get(key)
        if found is None:
            return self._answer(404)
        data, generation = found
        tag = _tag(data)
        if self.headers.get("If-None-Match") == tag:
            return self._answer(304)
        headers = {
            "ETag": tag,
            "x-goog-generation": str(generation),
            "Last-Modified": email.utils.formatdate(usegmt=True),
        }
        if wanted := self.headers.get("Range"):
            start, _, last = wanted.removeprefix("bytes=").partition("-")
            if int(start) >= len(data):
                return self._answer(416)
            body = data[int(start) : int(last) + 1]
            headers["Content-Range"] = f"bytes {start}-{int(start) + len(body) - 1}/{len(data)}"
            return self._answer(206, body, headers)
        return self._answer(200, data, headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        key = self._key()
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploadId" in self.query:
            parts = self.server.uploads.get(self.query["uploadId"])
            if parts is None:  # abandoned while this part was under way
                return self._answer(404)
            parts[int(self.query["partNumber"])] = data
            return self._answer(200, b"", {"ETag": _tag(data)})
        with self.server.lock:
            now = self.server.objects.get(key, (b"", 0))[1]
            wanted = self.headers.get("x-goog-if-generation-match")
            if wanted is not None and int(wanted) != now:
                return self._answer(412)
            return self._answer(200, b"", self._stored(key, data))

    def do_POST(self) -> None:
        key = self._key()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploads" in self.query:
            number = str(next(self.server.numbers))
            self.server.uploads[number] = {}
            inside = f"<Bucket>b</Bucket><Key>k</Key><UploadId>{number}</UploadId>"
            return self._answer(
                200, f"<InitiateMultipartUploadResult>{inside}</InitiateMultipartUploadResult>".encode()
            )
        parts = self.server.uploads.pop(self.query["uploadId"])
        data = b"".join(parts[number] for number in sorted(parts))
        with self.server.lock:
            headers = self._stored(key, data)
        inside = f"<ETag>{escape(_tag(data))}</ETag>"
        return self._answer(
            200, f"<CompleteMultipartUploadResult>{inside}</CompleteMultipartUploadResult>".encode(), headers
        )

    def do_DELETE(self) -> None:
        key = self._key()
        if "uploadId" in self.query:
            found = self.server.uploads.pop(self.query["uploadId"], None) is not None
        else:
            found = self.server.objects.pop(key, None) is not None
        self._answer(204 if found else 404)

    def _list(self) -> None:
        prefix, after = self.query.get("prefix", ""), self.query.get("start-after", "")
        cut = self.query.get("delimiter")
        found = [(k, v) for k, v in sorted(self.server.objects.items()) if k.startswith(prefix) and k > after]
        below = [key.removeprefix(prefix).partition(cut) if cut else (key, "", "") for key, _ in found]
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix + name)}/</Prefix></CommonPrefixes>"
            for name in dict.fromkeys(name for name, slash, _ in below if slash)
        )
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
            f"<LastModified>2026-01-01T00:00:00Z</LastModified><ETag>{escape(_tag(data))}</ETag></Contents>"
            for (key, (data, _)), (_, slash, _) in zip(found, below, strict=True)
            if not slash
        )
        self._answer(200, f"<ListBucketResult>{entries}{folders}</ListBucketResult>".encode())

    def _stored(self, key: str, data: bytes) -> dict[str, str]:
        generation = next(self.server.numbers)
        self.server.objects[key] = (data, generation)
        return {"ETag": _tag(data), "x-goog-generation": str(generation)}

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextlib.contextmanager
def run_google() -> Iterator[http.server.ThreadingHTTPServer]:
    """A server of Google's XML interface in memory."""
    with serving(_Google) as server:
        server.objects, server.uploads, server.lock = {}, {}, threading.Lock()
        server.numbers = itertools.count(1000)
        server.endpoint = server.url
        yield server


@contextlib.contextmanager
def run_azurite(folder: Path, port: int) -> Iterator[str]:
    """Microsoft's own emulator with one container `tst`; its address."""
    command = [str(AZURITE), "--inMemoryPersistence", "--blobPort", str(port), "--silent"]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--skipApiVersionCheck", "--disableTelemetry"], stdout=log, stderr=log, cwd=folder
        )
    try:
        until(lambda: _create_container(port) == 201, "azurite does not answer", pause_s=0.1)
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    finally:
        process.kill()
        process.wait()


def azure_sas() -> str:
    """A SAS token for everything in the account of Azurite."""
    version, until = "2021-08-06", "2999-01-01T00:00:00Z"
    lines = [ACCOUNT, "rwdlac", "b", "sco", "", until, "", "https,http", version, "", ""]
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    fields = {"sv": version, "ss": "b", "srt": "sco", "sp": "rwdlac", "se": until, "spr": "https,http"}
    return urllib.parse.urlencode({**fields, "sig": base64.b64encode(digest).decode()})


def _create_container(port: int) -> int:
    date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
    names = f"x-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/tst\nrestype:container"
    text = "PUT" + "\n" * 12 + names
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    signature = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": signature}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("PUT", f"/{ACCOUNT}/tst?restype=container", headers=headers)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
