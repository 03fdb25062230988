"""Azure Blob Storage with a SAS token, over the web client.

The library for Azure follows redirects and sends the address of the first request along, token included; this client
does neither.
"""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from xml.etree import ElementTree

from warpdata.errors import BucketNotFoundError
from warpdata.stores.blobstore import BlobInfo, Chunks, check_size
from warpdata.stores.http import timestamp_s
from warpdata.stores.s3 import MAX_LISTING_BYTES, PART_BYTES, BucketStore, cut_parts, parse_xml
from warpdata.stores.webclient import Proxies, Response

_MAX_BLOCKS = 50_000


class AzureStore(BucketStore):
    """Blobs of a container."""

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
        self._prefix = f"{prefix}/" if prefix else ""
        address = f"az://{container}/{prefix}".rstrip("/")
        host = f"{endpoint.rstrip('/')}/{container}"
        super().__init__(host, timeout_s=timeout_s, address=address, proxies=proxies)

    def _authorize(
        self, method: str, url: urllib.parse.SplitResult, body: bytes
    ) -> tuple[urllib.parse.SplitResult, Mapping[str, str]]:
        del body
        token = self._find_token().lstrip("?")
        headers = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" and "comp=" not in url.query else {}
        return url._replace(query=f"{url.query}&{token}" if url.query else token), headers

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Upload bytes, large ones in blocks; an error of `chunks` ends the upload and nothing appears."""
        part_bytes = max(PART_BYTES, -(-size // _MAX_BLOCKS))
        parts = cut_parts(check_size(chunks(), size, self._name(key)), part_bytes)
        if size <= part_bytes:
            self._call("PUT", key, body=b"".join(parts))
            return

        def put(part: tuple[int, bytes]) -> str:
            block = base64.b64encode(b"%08d" % part[0]).decode()
            self._call("PUT", key, query={"comp": "block", "blockid": block}, body=part[1])
            return block

        rows = "".join(f"<Latest>{block}</Latest>" for block in self._put_parts(parts, put))
        self._call("PUT", key, query={"comp": "blocklist"}, body=f"<BlockList>{rows}</BlockList>".encode())

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        blobs = []
        for page in self._pages(prefix, {}):
            for entry in page.iter("Blob"):
                key = entry.findtext("Name", "")[len(self._prefix) :]
                size = int(entry.findtext("Properties/Content-Length", "0"))
                tag = entry.findtext("Properties/Etag", "").strip('"')
                modified_s = timestamp_s(entry.findtext("Properties/Last-Modified", ""))
                blobs.append(BlobInfo(key, size, f'"{tag}"', modified_s))
        return iter(sorted(blobs, key=lambda blob: blob.key))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        pages = self._pages(prefix, {"delimiter": "/"})
        names = [entry.findtext("Name", "") for page in pages for entry in page.iter("BlobPrefix")]
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def _pages(self, prefix: str, query: Mapping[str, str]) -> Iterator[ElementTree.Element]:
        parameters = {"restype": "container", "comp": "list", "prefix": f"{self._prefix}{prefix}", **query}
        while True:
            response = self._call("GET", None, query=parameters, max_bytes=MAX_LISTING_BYTES, name=prefix)
            page = parse_xml(response.body, self._name(prefix))
            yield page
            marker = page.findtext("NextMarker")
            if not marker:
                return
            parameters["marker"] = marker

    def _check_status(
        self, response: Response, key: str, statuses: Collection[int], url: urllib.parse.SplitResult
    ) -> None:
        if response.headers.get("x-ms-error-code") == "ContainerNotFound":
            hint = "Check the names of the container and of the account, or create the container."
            raise BucketNotFoundError("there is no such container", path=self._name(key), hint=hint)
        super()._check_status(response, key, statuses, url)
