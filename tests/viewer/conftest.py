"""A root to look at, and a way to ask a running viewer."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import warpdata as wd
from tests.viewer.samples import record_root
from tests.waiting import LIMIT_S


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Written from the description of the framing, not from its code."""
        assert self.body[:4] == b"WDA1"
        size = int.from_bytes(self.body[4:8], "little")
        head = json.loads(self.body[8 : 8 + size])
        start = (8 + size + 7) // 8 * 8
        found = {
            name: np.frombuffer(
                self.body, f"<{a['dtype']}", int(np.prod(a["shape"])), start + a["at"]
            ).reshape(a["shape"])
            for name, a in head["arrays"].items()
        }
        return head, found


@dataclass
class Client:
    viewer: wd.Viewer
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.viewer.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, name: str, **query: Any) -> Answer:
        return self.ask("GET", f"/api/{name}?{urlencode(query)}")

    def post(self, name: str, body: Any, **headers: str) -> Answer:
        return self.ask(
            "POST", f"/api/{name}", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        )


def client_of(viewer: wd.Viewer) -> Client:
    return Client(viewer, {"Authorization": f"Bearer {viewer.access.token}"})


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded once; nothing may be written into it."""
    return record_root(tmp_path_factory.mktemp("viewed") / "root")


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "root"))


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with wd.view(root, open_browser=False) as viewer:
        yield client_of(viewer)


@pytest.fixture(scope="session")
def reader(recorded: Path) -> Iterator[Client]:
    """For tests that change nothing."""
    with wd.view(recorded, open_browser=False) as viewer:
        yield client_of(viewer)
