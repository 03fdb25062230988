"""A small DeepData server: the collections of the trajectory bridge, in memory, on this machine's loopback."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np


class Server:
    """What it holds, what it was asked, and how it should misbehave."""

    def __init__(self) -> None:
        self.url = ""
        self.collections: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.failures: list[tuple[int, bytes, dict[str, str]]] = []
        """Answers to give before any real one."""
        self.delay_s = 0.0

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        if parts == ["v2", "collections"]:
            if body["name"] in self.collections:
                return 409, {"error": "exists"}
            assert body["index_type"] == "hnsw"
            self.collections[body["name"]] = {"dimension": body["dimension"], "rows": {}}
            return 201, None
        if len(parts) != 4 or parts[2] not in self.collections:
            return 404, {"error": "no such collection"}
        collection = self.collections[parts[2]]
        return self.insert(collection, body) if parts[3] == "insert" else self.search(collection, body)

    def insert(self, collection: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        rows = list(zip(body["ids"], body["vectors"], body["metadata"], strict=True))
        if any(len(vector) != collection["dimension"] for _, vector, _ in rows):
            return 400, {"error": "wrong dimension"}
        collection["rows"].update({key: (vector, about) for key, vector, about in rows})
        return 200, {"inserted": len(rows)}

    def search(self, collection: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        query = np.array(body["vector"])
        found = []
        for key, (vector, about) in collection["rows"].items():
            if meets(about, body.get("filter")):
                score = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
                found.append({"id": key, "score": float(score), "metadata": about})
        found.sort(key=lambda each: -each["score"])
        return 200, {"results": found[: body["top_k"]]}


def meets(about: dict[str, Any], condition: dict[str, Any] | None) -> bool:
    if condition is None:
        return True
    if "$and" in condition:
        assert set(condition) == {"$and"}
        return all(meets(about, each) for each in condition["$and"])
    (operator,) = set(condition) - {"field"}
    value, wanted = about[condition["field"]], condition[operator]
    return {"$eq": value == wanted, "$gte": value >= wanted, "$lte": value <= wanted}[operator]


class PublicServer(Server):
    """The interface of the public server: ids are the server's, filters by field, documents and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.next_id = 1

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        if parts == ["v2", "collections"] and body:
            if body["name"] in self.collections:
                return 400, "collection already exists"
            (field,) = body["fields"]
            assert (field["type"], field["index"]["type"]) == (0, 0)
            self.collections[body["name"]] = {"fields": body["fields"], "rows": {}}
            return 201, {"status": "success", "message": "created"}
        if parts[:2] == ["v2", "collections"]:
            if len(parts) > 3:
                return 400, "unknown operation or method not allowed"
            if parts[2] not in self.collections:
                return 404, f"collection not found: {parts[2]}"
            about = {"name": parts[2], "fields": self.collections[parts[2]]["fields"]}
            return 200, {"status": "success", "collection": about}
        if body.get("collection") not in self.collections:
            return 404, f"collection not found: {body.get('collection')}"
        collection = self.collections[body["collection"]]
        if path == "/v2/insert/batch":
            return self.insert_batch(collection, body["docs"])
        if path == "/v2/delete":
            del collection["rows"][body["doc_id"]]
            return 200, {"status": "success", "message": "deleted"}
        assert path == "/v2/search"
        return self.search_documents(collection, body)

    def insert_batch(self, collection: dict[str, Any], docs: list[dict[str, Any]]) -> tuple[int, Any]:
        (field,) = collection["fields"]
        ids, errors = [], {}
        for index, doc in enumerate(docs):
            if len(doc["vectors"][field["name"]]) != field["dim"]:
                errors[str(index)] = "wrong dimension"
                break
            collection["rows"][self.next_id] = (doc["vectors"][field["name"]], doc["metadata"])
            ids.append(self.next_id)
            self.next_id += 1
        counts = {"inserted": len(ids), "failed": len(errors)}
        return 200, {"status": "success", "ids": ids, **counts, "errors": errors}

    def search_documents(self, collection: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        (field,) = collection["fields"]
        query = np.array(body["queries"][field["name"]])
        found = []
        for key, (vector, about) in collection["rows"].items():
            conditions = [
                {"field": name, op: v}
                for name, ops in body.get("filters", {}).items()
                for op, v in ops.items()
            ]
            if all(meets(about, each) for each in conditions):
                score = query @ vector / np.linalg.norm(query) / (np.linalg.norm(vector) or 1)
                found.append((float(score), {"id": key, "metadata": about}))
        found.sort(key=lambda each: -each[0])
        found = found[body.get("offset", 0) :][: body["top_k"]]
        documents, scores = [each for _, each in found], [score for score, _ in found]
        return 200, {"status": "success", "documents": documents, "scores": scores, "candidates_examined": 1}


@contextlib.contextmanager
def run_deepdata(server: Server | None = None) -> Iterator[Server]:
    server = server or Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if isinstance(server, PublicServer):
                status, answer = server.answer(self.path, {})
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append((self.path, body))
            server.headers.append(dict(self.headers))
            time.sleep(server.delay_s)
            if server.failures:
                status, data, extra = server.failures.pop(0)
            else:
                status, answer = server.answer(self.path, body)
                text = answer if isinstance(answer, str) else "" if answer is None else json.dumps(answer)
                data, extra = text.encode(), {}
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **extra}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Be silent."""

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = False  # closing waits for those who still answer
    server.url = f"http://127.0.0.1:{web.server_port}"
    thread = threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        web.shutdown()
        web.server_close()
        thread.join()
