"""Azure Blob Storage with a SAS token, over the web client.

The library for Azure follows redirects and sends the address of the first request along, token included; this client
does neither.
"""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping

from warpdata.errors import BucketNotFoundError
from warpdata.stores.s3 import BucketStore, ListingForm
from warpdata.stores.webclient import Proxies, Response


class AzureStore(BucketStore):
    """Blobs of a container."""

    _max_parts = 50_000
    _listing = ListingForm(
        query={"restype": "container", "comp": "list"},
        marker="marker",
        next_marker="NextMarker",
        blob="Blob",
        name="Name",
        size="Properties/Content-Length",
        etag="Properties/Etag",
        modified="Properties/Last-Modified",
        folder="BlobPrefix",
        folder_name="Name",
    )

    def __init__(
        self,
        container: str,
        prefix: str,
        find_token: Callable[[], str],
        endpoint: str,
        *,
        timeout_s: float = 20.0,
        proxies: Proxies | None = None,
    ) -> None:
        self._find_token = find_token
        super().__init__("az", container, prefix, endpoint.rstrip("/"), timeout_s, proxies)

    def _authorize(
        self, method: str, url: urllib.parse.SplitResult, body: bytes
    ) -> tuple[urllib.parse.SplitResult, Mapping[str, str]]:
        del body
        token = self._find_token().lstrip("?")
        headers = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" and "comp=" not in url.query else {}
        return url._replace(query=f"{url.query}&{token}" if url.query else token), headers

    def _put_large(self, key: str, parts: Iterator[bytes]) -> None:
        def put(part: tuple[int, bytes]) -> str:
            block = base64.b64encode(b"%08d" % part[0]).decode()
            self._call("PUT", key, query={"comp": "block", "blockid": block}, body=part[1])
            return block

        rows = "".join(f"<Latest>{block}</Latest>" for block in self._put_parts(parts, put))
        self._call("PUT", key, query={"comp": "blocklist"}, body=f"<BlockList>{rows}</BlockList>".encode())

    def _check_status(
        self, response: Response, key: str, statuses: Collection[int], url: urllib.parse.SplitResult
    ) -> None:
        if response.headers.get("x-ms-error-code") == "ContainerNotFound":
            hint = "Check the names of the container and of the account, or create the container."
            raise BucketNotFoundError("there is no such container", path=self._name(key), hint=hint)
        super()._check_status(response, key, statuses, url)
