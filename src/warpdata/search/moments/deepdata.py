"""Trajectory vectors on a DeepData server, in either of its two HTTP dialects.

The WShard document describes `/v2/collections/{name}/insert` and `/search` with ids of the client. The public server
(phenomenon0/vectordb) has `/v2/insert/batch`, `/v2/search` and `/v2/delete`, chooses ids itself and answers with
`documents` and `scores`. A probe of the collection decides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpdata.errors import BlobNotFoundError, ConflictError, SchemaMismatchError, StoreError
from warpdata.search.moments.behaviour import Channels, split_row
from warpdata.search.moments.moments import Embedded, Floats
from warpdata.stores.webclient import JsonService, Proxies

_OPERATORS = {"==": "$eq", ">=": "$gte", "<=": "$lte"}
_BATCH_RECORDS = 256
_BATCH_NUMBERS = 1 << 18
_PAGE = 1000
_DENSE, _HNSW = 0, 0
_FIELD = "embedding"
_RECORD_ID = "record_id"
"""Metadata field of the public server that holds our id of a vector."""
_NOT_FOUND, _NO_SUCH_ROUTE = "collection not found", "unknown operation"


Condition = tuple[str, str, Any]
"""A field of the metadata, one of ==, >=, <=, and a value."""
_Record = tuple[str, list[float], dict[str, Any]]
"""Id, vector and metadata."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: `score` is a similarity, larger is nearer."""

    id: str
    score: float
    metadata: dict[str, Any]


class DeepDataIndex:
    """Collections of a DeepData server.

    In the document's dialect records are replaced by id, and old ones that do not come again stay. On the public server
    the vectors of a file are replaced as a whole.
    """

    steps_per_episode = 1

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
    ) -> None:
        proxies = Proxies({"http": proxy, "https": proxy} if proxy else {})
        self._service = JsonService(url, timeout_s=timeout_s, headers=headers, proxies=proxies)
        self._known: set[str] = set()
        self._is_public: bool | None = None
        self._fields: dict[str, str] = {}
        """Name of the vector field of each collection of the public server."""
        self.channels = Channels()

    def ensure(self, collection: str, dim: int) -> None:
        """Create a collection unless it exists."""
        if collection in self._known:
            return
        if not self._probe(collection, dim):
            body: dict[str, Any] = {"name": collection, "dimension": dim, "index_type": "hnsw"}
            if self._is_public:
                index = {"type": _HNSW, "params": {"m": 16, "ef_construction": 200}}
                body = {
                    "name": collection,
                    "fields": [{"name": _FIELD, "type": _DENSE, "dim": dim, "index": index}],
                }
            try:
                self._service.post("/v2/collections", body)
            except ConflictError:
                pass  # another process created it
            except StoreError:
                if not (self._is_public and self._probe(collection, dim)):
                    raise
        self._known.add(collection)

    def insert(self, collection: str, file_path: str, made: Embedded) -> None:
        """Add the vectors of one file in batches, replacing those that it had before.

        Times stay behind: JSON of the server has no whole numbers of that size.
        """
        records: list[_Record] = []
        for row, vector in zip(made.rows, made.vectors.tolist(), strict=True):
            key, metadata = split_row(row)
            metadata.pop("ts_ns", None)
            records.append((key, vector, metadata))
        dim = made.vectors.shape[1]
        self.ensure(collection, dim)
        old: list[int] = []
        if self._is_public:
            query, filters = [1.0] + [0.0] * (dim - 1), {"file_path": {"$eq": file_path}}
            for document, _ in self._pages(collection, query, filters):
                if document.get("metadata", {}).get("file_path") == file_path:
                    old.append(document["id"])
        step = max(1, min(_BATCH_RECORDS, _BATCH_NUMBERS // dim))
        for start in range(0, len(records), step):
            batch = records[start : start + step]
            try:
                self._insert_batch(collection, batch)
            except BlobNotFoundError:  # the server was reset since the collection was created
                self._known.discard(collection)
                self.ensure(collection, dim)
                self._insert_batch(collection, batch)
        for doc_id in old:
            self._service.post("/v2/delete", {"collection": collection, "doc_id": doc_id})

    def _insert_batch(self, collection: str, batch: Sequence[_Record]) -> None:
        if not self._is_public:
            body: dict[str, Any] = {
                "vectors": [vector for _, vector, _ in batch],
                "ids": [key for key, _, _ in batch],
                "metadata": [metadata for _, _, metadata in batch],
            }
            self._service.post(f"/v2/collections/{collection}/insert", body)
            return
        field = self._fields.get(collection, _FIELD)
        docs = [
            {"doc": key, "vectors": {field: vector}, "metadata": {**metadata, _RECORD_ID: key}}
            for key, vector, metadata in batch
        ]
        # The server chooses the ids: a batch sent twice would be there twice.
        response = self._service.post(
            "/v2/insert/batch", {"collection": collection, "docs": docs}, is_repeatable=False
        )
        if response.get("inserted", len(docs)) != len(docs) or response.get("failed"):
            reasons = response.get("errors")
            reason = next(iter(reasons.values()), "") if isinstance(reasons, dict) else ""
            raise StoreError(
                f"the server inserted {response.get('inserted')} of {len(docs)} vectors: {reason!s:.200}",
                path=self._service.address,
            )

    def _pages(
        self, collection: str, query: list[float], filters: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """All documents that meet the filters, page by page."""
        offset = 0
        while True:
            page = self._search_public(collection, query, _PAGE, filters, offset)
            yield from page
            offset += len(page)
            if len(page) < _PAGE:
                return

    def search(
        self, collection: str, vector: Floats, top_k: int, conditions: Sequence[Condition]
    ) -> list[Hit]:
        """The nearest records that meet every condition, nearest first."""
        try:
            if self._is_public is None:
                self._probe(collection, len(vector))
            if self._is_public:
                filters: dict[str, Any] = {}
                for name, operator, value in conditions:
                    filters.setdefault(name, {})[_OPERATORS[operator]] = value
                page = self._search_public(collection, vector.tolist(), top_k, filters)
                hits = [_public_hit(document, score, self._service.address) for document, score in page]
            else:
                hits = self._search_document(collection, vector, top_k, conditions)
        except BlobNotFoundError:
            raise BlobNotFoundError(
                f"the server has no collection {collection}",
                path=self._service.address,
                hint="Ingest episodes first.",
            ) from None
        return sorted(hits, key=lambda hit: -hit.score)[:top_k]

    def _search_document(
        self, collection: str, vector: Floats, top_k: int, conditions: Sequence[Condition]
    ) -> list[Hit]:
        body: dict[str, Any] = {"vector": vector.tolist(), "top_k": top_k}
        if conditions:
            tests = [{"field": name, _OPERATORS[op]: value} for name, op, value in conditions]
            body["filter"] = tests[0] if len(tests) == 1 else {"$and": tests}
        path = f"/v2/collections/{collection}/search"
        try:
            response = self._service.post(path, body)
        except StoreError as error:
            if _NO_SUCH_ROUTE not in str(error):
                raise
            self._is_public = True
            return self.search(collection, vector, top_k, conditions)
        results = response.get("results", response or None)
        if results is not None and not isinstance(results, list):
            raise StoreError("the response has no list of results", path=f"{self._service.address}{path}")
        return [_hit(result, f"{self._service.address}{path}") for result in results or []]

    def _search_public(
        self, collection: str, query: list[float], top_k: int, filters: dict[str, Any], offset: int = 0
    ) -> list[tuple[dict[str, Any], Any]]:
        body: dict[str, Any] = {
            "collection": collection,
            "queries": {self._fields.get(collection, _FIELD): query},
            "top_k": top_k,
        }
        if filters:
            body["filters"] = filters
        if offset:
            body["offset"] = offset
        response = self._service.post("/v2/search", body)
        documents, scores = response.get("documents") or [], response.get("scores") or []
        is_valid = isinstance(documents, list) and isinstance(scores, list) and len(documents) == len(scores)
        if not is_valid or not all(isinstance(document, dict) for document in documents):
            raise StoreError(
                "the response has no documents with scores", path=f"{self._service.address}/v2/search"
            )
        return list(zip(documents, scores, strict=True))

    def _probe(self, collection: str, dim: int) -> bool:
        """Find out the dialect; whether the public server has the collection."""
        if self._is_public is False:
            return False
        try:
            response = self._service.get(f"/v2/collections/{collection}")
        except StoreError as error:
            if _NOT_FOUND in str(error):
                self._is_public = True
            elif self._is_public is None and not getattr(error, "is_no_response", False):
                self._is_public = False
            else:
                raise
            return False
        about = response.get("collection")
        if not isinstance(about, dict):
            self._is_public = False
            return False
        self._is_public = True
        for field in about.get("fields") or []:
            if isinstance(field, dict) and field.get("type", _DENSE) in (_DENSE, "dense"):
                if field.get("dim") not in (None, dim):
                    raise SchemaMismatchError(
                        f"collection {collection!r} has dimension {field['dim']}, got vectors of {dim}",
                        path=self._service.address,
                    )
                self._fields[collection] = str(field.get("name", _FIELD))
                break
        return True

    def close(self) -> None:
        """Close the connection."""
        self._service.close()


def _public_hit(document: Mapping[str, Any], score: Any, where: str) -> Hit:
    metadata = dict(document["metadata"]) if isinstance(document.get("metadata"), dict) else None
    name = document.get("id") if metadata is None else metadata.pop(_RECORD_ID, document.get("id"))
    return _hit({"id": name, "score": score, "metadata": metadata}, where)


def _hit(result: Any, where: str) -> Hit:
    fields = result if isinstance(result, dict) else {}
    name, score, metadata = fields.get("id"), fields.get("score"), fields.get("metadata")
    is_name = isinstance(name, str | int) and not isinstance(name, bool)
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    # An integer may be more than a float holds.
    is_number = is_number and abs(fields["score"]) <= sys.float_info.max
    if not is_name or not is_number or not isinstance(metadata, dict):
        raise StoreError("a result has no id, score or metadata", path=where)
    return Hit(str(name), float(fields["score"]), metadata)
