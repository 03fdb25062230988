"""Each way in which an S3 server refuses is told apart: what is wrong, where, and what to do."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.test_faults import in_fork
from tests.servers import BUCKET, KEY, SECRET, S3Server, free_port, s3_store, serving, unique
from warpdata.errors import (
    AuthenticationError,
    BlobNotFoundError,
    BucketNotFoundError,
    PermissionError_,
    StoreError,
    UnavailableError,
)
from warpdata.stores.address import StoreOptions, open_store
from warpdata.stores.blobstore import BlobStore


def opened(endpoint: str, *, bucket: str = BUCKET, key: str = KEY, secret: str = SECRET) -> BlobStore:
    secrets = {"access_key_id": key, "secret_access_key": secret}
    return open_store(f"s3://{bucket}/x?endpoint={endpoint}&region=us-east-1", StoreOptions(secrets=secrets))


ASKING: dict[str, Callable[[BlobStore], Any]] = {
    "head": lambda store: store.head("a"),
    "get": lambda store: store.get("a", max_bytes=100),
    "ranges": lambda store: store.get_ranges("a", [(0, 4), (8, 9)]),
    "put": lambda store: store.put_if_absent("a", b"x"),
    "stream": lambda store: store.put_stream("a", lambda: iter([b"xy"]), 2),
    "list": lambda store: list(store.list("a/")),
    "delete": lambda store: store.delete("a"),
}


@pytest.fixture(params=list(ASKING))
def ask(request: pytest.FixtureRequest) -> Callable[[BlobStore], Any]:
    return ASKING[request.param]


class TestRealServer:
    def test_a_wrong_secret(self, s3_server: S3Server, ask: Callable[[BlobStore], Any]) -> None:
        with pytest.raises(AuthenticationError, match="secret key") as caught:
            ask(opened(s3_server.endpoint, secret="WRONG-77"))
        said = f"{caught.value} {caught.value.hint}"
        assert s3_server.endpoint in said
        assert "AWS_SECRET_ACCESS_KEY" in said
        assert "WRONG-77" not in said

    def test_an_unknown_key(self, s3_server: S3Server, ask: Callable[[BlobStore], Any]) -> None:
        with pytest.raises(AuthenticationError, match="unknown access key id") as caught:
            ask(opened(s3_server.endpoint, key="NOBODY-5"))
        assert s3_server.endpoint in str(caught.value)
        assert "AWS_ACCESS_KEY_ID" in caught.value.hint

    @pytest.mark.parametrize(
        "name", ["head", "get", "ranges", "list"]
    )  # this server makes a bucket to write to
    def test_a_missing_bucket(self, s3_server: S3Server, name: str) -> None:
        with pytest.raises(BucketNotFoundError, match="no such bucket") as caught:
            ASKING[name](opened(s3_server.endpoint, bucket="nowhere-to-be-found"))
        assert s3_server.endpoint in str(caught.value)
        assert "nowhere-to-be-found" in str(caught.value)

    def test_a_missing_blob_is_only_that(self, s3_server: S3Server) -> None:
        store = s3_store(s3_server, unique("absent"))
        for name in ("head", "get", "ranges"):
            with pytest.raises(BlobNotFoundError):
                ASKING[name](store)

    def test_after_a_fork_too(self, s3_server: S3Server) -> None:
        store = opened(s3_server.endpoint, secret="WRONG-77")

        def asked() -> int:
            for name in ("head", "get"):
                with pytest.raises(AuthenticationError, match="secret key"):
                    ASKING[name](store)
            return 17

        assert in_fork(asked) == 17


class _Refusing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body, headers = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # not everybody listens to the end
                self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names of the library

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[Any]:
    """A server that answers everything with the error it is told."""
    with serving(_Refusing) as server:
        yield server


def body(code: str, more: str = "") -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>words</Message>{more}'
        "<RequestId>4442587FB7D0A2F9</RequestId></Error>"
    ).encode()


REGION = "<Region>eu-west-3</Region>"
REGION_HEADER = {"x-amz-bucket-region": "eu-west-3"}
ANSWERS = [
    (403, body("SignatureDoesNotMatch"), {}, AuthenticationError, "secret key", "AWS_SECRET_ACCESS_KEY"),
    (403, body("InvalidAccessKeyId"), {}, AuthenticationError, "access key id", "AWS_ACCESS_KEY_ID"),
    (400, body("ExpiredToken"), {}, AuthenticationError, "expired", "aws sso login"),
    (400, body("InvalidToken"), {}, AuthenticationError, "not valid", "AWS_SESSION_TOKEN"),
    (403, body("RequestTimeTooSkewed"), {}, AuthenticationError, "clock", "clock"),
    (403, body("AccessDenied"), {}, PermissionError_, "may not", "owner"),
    (404, body("NoSuchBucket"), {}, BucketNotFoundError, "no such bucket", "AWS_ENDPOINT_URL"),
    (400, body("AuthorizationHeaderMalformed", REGION), {}, StoreError, "eu-west-3", "AWS_REGION=eu-west-3"),
    (301, body("PermanentRedirect"), REGION_HEADER, StoreError, "eu-west-3", "AWS_REGION=eu-west-3"),
    (301, body("PermanentRedirect"), {}, StoreError, "another region", "AWS_REGION"),
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer[1].split(b"Code>")[1][:-2].decode())
def test_every_way_of_asking_names_the_cause(
    refusing: Any, answer: tuple[Any, ...], ask: Callable[[BlobStore], Any], request: pytest.FixtureRequest
) -> None:
    status, text, headers, kind, fact, hint = answer
    if status == 404 and request.node.callspec.params["ask"] in ("head", "delete"):
        pytest.skip("an answer to HEAD has no words, and what is missing is removed already")
    refusing.answer = (status, text, headers)
    with pytest.raises(StoreError) as caught:
        ask(opened(refusing.url))
    assert type(caught.value) is kind
    assert fact in str(caught.value)
    assert refusing.url in str(caught.value), "the endpoint is named"
    assert "s3://tst/x" in str(caught.value), "and the blob"
    assert hint in caught.value.hint
    assert "words" not in str(caught.value), "what a server writes is not shown: it may echo secrets"


@pytest.mark.parametrize("name", ["head", "get", "put"])
def test_a_server_that_is_not_there(name: str) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError, match="nothing listens there") as caught:
        ASKING[name](opened(endpoint))
    assert endpoint in str(caught.value)


def test_a_host_that_has_no_name() -> None:
    with pytest.raises(UnavailableError, match=r"name is not known|did not answer") as caught:
        opened("http://no-such-host.invalid").head("a")
    assert "no-such-host.invalid" in str(caught.value)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not show descriptors")
@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "s3://tst/x?endpoint=http://127.0.0.1:{port}"])
def test_a_process_without_descriptors_left_is_told_so(url: str) -> None:
    """Not that the server is to blame."""
    program = """
import os, resource, sys
from warpdata.errors import UnavailableError
from warpdata.stores.address import StoreOptions, open_store
store = open_store(sys.argv[1], StoreOptions(secrets={"access_key_id": "k", "secret_access_key": "s"}))
def said():
    try:
        store.head("a")
    except UnavailableError as error:
        return str(error)
said()  # which loads what asking needs
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
print(said())
"""
    command = [sys.executable, "-c", program, url.format(port=free_port())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "too many files open" in done.stdout


class _Roles(http.server.BaseHTTPRequestHandler):
    """Services that give keys to machines: of EC2 instances, of containers, and of web identities."""

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.requests.append((self.command, self.path, dict(self.headers), sent))
        until = "2999-01-01T00:00:00Z"
        keys = {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": "", "Expiration": until}
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in {**keys, "SessionToken": ""}.items())
        bodies = {
            "/latest/api/token": "secret-token",
            "/latest/meta-data/iam/security-credentials/": "the-role\n",
            "/latest/meta-data/iam/security-credentials/the-role": json.dumps(keys),
            "/container": json.dumps(keys),
            "/": f"<R><AssumeRoleWithWebIdentityResult><Credentials>{fields}</Credentials>"
            "</AssumeRoleWithWebIdentityResult></R>",
        }
        body = bodies[self.path.partition("?")[0]].encode() if self.server.status == 200 else b""
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_GET  # noqa: N815 - the names of the library

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with serving(_Roles) as server:
        server.status, server.requests = 200, []
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{server.url}/")
        yield server


ROLES = {
    "instance": {},
    "pod": {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "{url}/container",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "T",
    },
    "web identity": {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "{file}",
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/the-role",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_STS": "{url}",
    },
}


@pytest.mark.parametrize("kind", list(ROLES))
def test_the_keys_of_the_role_of_a_machine(
    kind: str, roles: Any, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a-token\n")
    for name, value in ROLES[kind].items():
        monkeypatch.setenv(name, value.format(url=roles.url, file=tmp_path / "token"))
    monkeypatch.setenv("HOME", str(tmp_path))
    address = f"s3://{BUCKET}/{unique('role')}?endpoint={s3_server.endpoint}"
    store = open_store(address, StoreOptions())
    store.put_if_absent("a", b"x")
    assert store.head("a").size == 1
    requests = {"instance": 3}.get(kind, 1)
    assert len(roles.requests) == requests, "the keys are used again"
    if kind == "instance":
        assert [method for method, *_ in roles.requests] == ["PUT", "GET", "GET"]
        assert {k.lower() for k in roles.requests[2][2]} >= {"x-aws-ec2-metadata-token"}
    if kind == "pod":
        assert roles.requests[0][2]["Authorization"] == "T"
    if kind == "web identity":
        assert "WebIdentityToken=a-token" in roles.requests[0][3]


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_machine_without_a_role(
    status: int, roles: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles.status = status
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store("s3://tst/x?endpoint=http://127.0.0.1:1", StoreOptions())
    with pytest.raises(AuthenticationError, match="AWS credentials not found"):
        store.get("a", max_bytes=10)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store("s3://tst/x", StoreOptions())
    requests = len(roles.requests)
    with pytest.raises(AuthenticationError, match="AWS credentials not found"):
        store.get("a", max_bytes=10)
    assert len(roles.requests) == requests


@pytest.mark.parametrize("address", ["s3://", "s3:///path", "gs://", "az://?endpoint=http://h"])
def test_an_address_without_a_bucket(address: str) -> None:
    with pytest.raises(ValueError, match=r"no bucket is named: write .*://bucket/path"):
        open_store(address, StoreOptions())
