"""Servers that answer what nobody asked, over HTTP and S3: what is read is right, or an error names the cause."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from warpdata.errors import (
    AuthenticationError,
    BlobChangedError,
    BlobNotFoundError,
    ConflictError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    TruncatedError,
    UnavailableError,
    WarpError,
)
from warpdata.stores.address import StoreOptions, open_store
from warpdata.stores.blobstore import BlobInfo, BlobStore
from warpdata.stores.webclient import connection_cause

DATA = bytes(range(256)) * 4
SPANS = [(10, 20), (30, 40)]
TIMES = {"ETag": '"a"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}


@dataclass
class Asked:
    """A request, and how an honest server answers it."""

    method: str
    span: tuple[int, int] | None
    headers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        start, end = self.span or (0, len(DATA))
        self.body = DATA[start:end]
        self.headers = {**TIMES, "Content-Length": str(len(self.body))}
        if self.span:
            self.headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(DATA)}"

    def answered(self, status: str = "", body: bytes | None = None, **changed: str | None) -> bytes:
        """The honest answer with some things changed; None leaves a header out."""
        headers = self.headers | {name.replace("_", "-"): value for name, value in changed.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
        body = b"" if self.method == "HEAD" else self.body if body is None else body
        head = f"HTTP/1.1 {status or ('206 Partial Content' if self.span else '200 OK')}\r\n{lines}\r\n"
        return head.encode("latin-1") + body


Script = Callable[[Asked], bytes]


def _serve(script: Script, connection: socket.socket) -> None:
    received = b""
    with connection, contextlib.suppress(OSError):
        while b"\r\n\r\n" not in received:
            received += connection.recv(1 << 16) or b"\r\n\r\n"
        found = re.search(rb"range: *bytes=(\d+)-(\d+)", received, re.IGNORECASE)
        span = (int(found[1]), int(found[2]) + 1) if found else None
        connection.sendall(script(Asked(received.split(b" ")[0].decode(), span)))


@contextlib.contextmanager
def lying(script: Script) -> Iterator[str]:
    """A server that answers one request of each connection by the script; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_serve, args=(script, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


FORMS = {"http": "{}/d", "s3": "s3://tst/x?endpoint={}"}
SECRETS = {"access_key_id": "k", "secret_access_key": "s"}
ASKING: dict[str, Callable[[BlobStore], Any]] = {
    "head": lambda store: store.head("a").size,
    "get": lambda store: bytes(store.get("a", max_bytes=1 << 20).data),  # type: ignore[union-attr]
    "ranges": lambda store: [bytes(view) for view in store.get_ranges("a", SPANS)],
}
RIGHT = {"head": len(DATA), "get": DATA, "ranges": [DATA[start:end] for start, end in SPANS]}


def redirect(target: str) -> Script:
    return lambda asked: asked.answered("302 Found", b"", Location=target, Content_Length="0")


def endless(asked: Asked) -> bytes:
    chunks = b"1000\r\n" + bytes(0x1000) + b"\r\n"
    return asked.answered(body=chunks * 1000, Content_Length=None, Transfer_Encoding="chunked")


SCRIPTS: dict[str, Script] = {
    "honest": lambda asked: asked.answered(Connection="close"),  # as it does after each answer
    "whole": lambda asked: Asked(asked.method, None).answered(),
    "another range": lambda asked: asked.answered(Content_Range="bytes 0-9/1024"),
    "no range": lambda asked: asked.answered(Content_Range=None),
    "odd range": lambda asked: asked.answered(Content_Range="bytes \xb2-9/1024"),
    "nothing": lambda asked: asked.answered("204 No Content", b"", Content_Range=None, Content_Length="0"),
    "unchanged": lambda asked: asked.answered("304 Not Modified", b"", Content_Length=None),
    "no length": lambda asked: asked.answered(Content_Length=None),
    "no length of a head": lambda asked: asked.answered(
        Connection="close", **{"Content_Length": None} if asked.method == "HEAD" else {}
    ),
    "empty": lambda asked: asked.answered(
        "200 OK", b"", Connection="close", Content_Length=None, Content_Range=None
    ),
    "two lengths": lambda asked: asked.answered(Content_Length="10\r\nContent-Length: 11"),
    "odd length": lambda asked: asked.answered(Content_Length="-5"),
    "too long": lambda asked: asked.answered(Content_Length="5000"),
    "cut": lambda asked: asked.answered()[:-3],
    "endless": endless,
    "odd time": lambda asked: asked.answered(Last_Modified="Wed, 99 Oct 99999 07:28:00 GMT"),
    "no answer": lambda asked: b"",
    "no http": lambda asked: b"SSH-2.0-x\r\n",
    "host without a name": redirect("http://.x/"),
    "host with a long name": redirect(f"http://{'a' * 70}.com/"),
    "host of odd letters": redirect("http://\xe4\xdf.\x80/"),
    "no web address": redirect("file:///etc/passwd"),
    "odd port": redirect("http://127.0.0.1:99999/"),
}  # fmt: skip


CONSISTENT = {
    ("nothing", "head"): 0,
    ("nothing", "get"): b"",
    ("empty", "head"): 0,
    ("empty", "get"): b"",
    ("too long", "head"): 5000,
    ("two lengths", "head"): 10,
}
"""What cannot be told from the truth before more is read, and hashed."""


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_read_is_right_or_an_error_of_ours(script: str, form: str, ask: str) -> None:
    with lying(SCRIPTS[script]) as url:
        store = open_store(FORMS[form].format(url), StoreOptions(secrets=SECRETS, timeout_s=60))
        try:
            found = ASKING[ask](store)
        except WarpError as error:
            found = error
        store.close()
    if isinstance(found, WarpError):
        assert script != "honest", found
        assert url in str(found) or "s3://tst/x/a" in str(found), "it is said who, or what"
    else:
        assert found in (RIGHT[ask], CONSISTENT.get((script, ask)))


CAUSES = [
    ("whole", "s3", "ranges", StoreError, "does not support range requests"),
    ("whole", "http", "ranges", StoreError, "does not support range requests"),
    ("another range", "s3", "ranges", StoreError, "another range than requested"),
    ("another range", "http", "ranges", StoreError, "another range than requested"),
    ("odd range", "s3", "ranges", StoreError, "another range than requested"),
    ("no range", "s3", "ranges", StoreError, "another range than requested"),
    ("unchanged", "s3", "get", StoreError, "answered 304"),
    ("unchanged", "http", "get", StoreError, "answered 304"),
    ("two lengths", "http", "get", UnavailableError, "not HTTP"),
    ("cut", "s3", "get", UnavailableError, "broke the connection off|was cut"),
    ("cut", "http", "get", UnavailableError, "broke the connection off|was cut"),
    ("endless", "http", "get", LimitExceededError, "bytes allowed"),
    ("too long", "http", "get", UnavailableError, "broke the connection off|was cut"),
    ("host without a name", "http", "head", StoreError, "no host can have this name"),
    ("host with a long name", "http", "get", StoreError, "no host can have this name"),
    ("host of odd letters", "http", "get", StoreError, "no host can have this name"),
    ("no web address", "s3", "get", StoreError, "answered 302"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "form", "ask", "kind", "said"), CAUSES)
def test_the_cause_is_named(script: str, form: str, ask: str, kind: type[WarpError], said: str) -> None:
    """And what no second attempt changes is not tried again: that is only done for the two other kinds."""
    with lying(SCRIPTS[script]) as url:
        store = open_store(FORMS[form].format(url), StoreOptions(secrets=SECRETS, timeout_s=60))
        with pytest.raises(kind, match=said) as caught:
            ASKING[ask](store)
        assert (type(caught.value) in (UnavailableError, TruncatedError)) == (kind is UnavailableError)
        store.close()


def test_where_a_head_has_no_length_the_first_byte_tells_it() -> None:
    with lying(SCRIPTS["no length of a head"]) as url:
        assert open_store(f"{url}/d").head("a").size == len(DATA)
    with lying(SCRIPTS["empty"]) as url:
        assert open_store(f"{url}/d").head("a").size == 0, "nothing comes of an empty one"


def test_a_limit_of_nothing_is_one() -> None:
    with lying(SCRIPTS["honest"]) as url, pytest.raises(LimitExceededError, match="0 are allowed"):
        open_store(f"{url}/d").get("a", max_bytes=0)


def test_what_the_libraries_say_otherwise_is_no_cause() -> None:
    assert connection_cause("reqwest::Error { kind: Builder }") == ""


HELD = BlobInfo("a", len(DATA), TIMES["ETag"], 1445412480.0)
EVERY_WAY: dict[str, Callable[[BlobStore], Any]] = {
    **ASKING,
    "same": lambda store: store.get_ranges("a", SPANS[:1], same_as=HELD),
    "put": lambda store: store.put_if_absent("a", b"x"),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("a"),
    "delete all": lambda store: store.delete_all(["a", "b"]),
}


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (
            "401 Unauthorized",
            AuthenticationError,
            "Google Cloud credentials not found or not accepted by http://",
        ),
        ("403 Forbidden", PermissionError_, "http://.* forbids this"),
        ("418 Teapot", StoreError, "http://.* answered 418"),
    ],
)
def test_a_refusal_of_google_has_its_class_in_every_way_of_asking(
    status: str, kind: type[WarpError], words: str, way: str
) -> None:
    def refuse(asked: Asked) -> bytes:
        return asked.answered(status, b"", Connection="close", Content_Length="0", Content_Range=None)

    with lying(refuse) as where:
        store = open_store(f"gs://tst/x?endpoint={where}", StoreOptions(secrets={"bearer_token": "hidden"}))
        with pytest.raises(kind, match=words) as told:
            EVERY_WAY[way](store)
    assert type(told.value) is kind
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    ("status", "way", "kind", "words"),
    [
        ("409 Conflict", "put", ConflictError, "the blob is not as expected: gs://tst/x/a"),
        ("412 Precondition Failed", "put", ConflictError, "the blob is not as expected: gs://tst/x/a"),
        (
            "412 Precondition Failed",
            "same",
            BlobChangedError,
            "the blob was replaced since it was opened: gs://tst/x/a",
        ),
        ("416 Range Not Satisfiable", "ranges", TruncatedError, "a range is past the end of the blob"),
        ("416 Range Not Satisfiable", "same", TruncatedError, "a range is past the end of the blob"),
        ("404 Not Found", "same", BlobNotFoundError, "no such blob: gs://tst/x/a"),
    ],
)
def test_what_google_says_of_a_blob(status: str, way: str, kind: type[WarpError], words: str) -> None:
    def refuse(asked: Asked) -> bytes:
        return asked.answered(status, b"", Connection="close", Content_Length="0", Content_Range=None)

    with lying(refuse) as where:
        store = open_store(f"gs://tst/x?endpoint={where}", StoreOptions(secrets={"bearer_token": "hidden"}))
        with pytest.raises(kind, match=words):
            EVERY_WAY[way](store)


@pytest.mark.parametrize(
    ("address", "secrets", "hint"),
    [
        ("gs://b/x", {"service_account_key": "{hidden"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://b/x", {"account_name": "a", "account_key": "*hidden*"}, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_secrets_that_are_none_are_not_shown(address: str, secrets: dict[str, str], hint: str) -> None:
    with pytest.raises(
        StoreError, match=f"cannot open the store .*: a setting is wrong or missing: {address}"
    ) as told:
        open_store(address, StoreOptions(secrets=secrets))
    assert hint in told.value.hint
    assert "hidden" not in str(told.value)
