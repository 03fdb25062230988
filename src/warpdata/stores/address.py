"""From the text of an address to an open store, with secrets from the environment's provider chain."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from warpdata.stores.awskeys import AwsProfile, ProfileKeys, S3Keys
from warpdata.stores.blobstore import BlobStore
from warpdata.stores.http import HttpStore
from warpdata.stores.local import LocalStore
from warpdata.stores.objects import ObjectStore
from warpdata.stores.s3 import AzureStore, S3Store
from warpdata.stores.webclient import Proxies, web_address

OBJECT_SCHEMES = ("s3", "gs", "az")
_REGION = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of stores from the environment or the caller; secrets are never shown."""

    s3_endpoint: str | None = None
    s3_region: str | None = None
    aws_profile: AwsProfile = field(default_factory=AwsProfile)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    find_secrets: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    """Reads the keys of s3 from the environment; a function, so that pickled options do not hold them."""
    find_sas: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    """Reads the SAS token of az and the name of its account from the environment."""
    timeout_s: float = 20.0
    proxies: Proxies = field(default_factory=Proxies, repr=False)
    """The proxy for each web server."""
    follow_redirects: bool = True
    """Whether a web server may redirect to another server."""


def open_store(address: str | os.PathLike[str], options: StoreOptions | None = None) -> BlobStore:
    """The store at a folder, file://, http(s)://, s3://, gs:// or az:// address."""
    options = options or StoreOptions()
    text = os.fspath(address)
    if scheme_of(text) in ("http", "https"):
        return HttpStore(
            text,
            timeout_s=options.timeout_s,
            proxies=options.proxies,
            follow_redirects=options.follow_redirects,
        )
    parts = split_address(text if "://" in text else "")
    if parts.scheme in OBJECT_SCHEMES:
        return _open_object_store(parts, options)
    if parts.scheme == "file":
        return LocalStore(urllib.parse.unquote(parts.path))
    if "://" in text:
        raise ValueError(f"unknown kind of store {parts.scheme!r}; use a folder, http(s), s3, gs or az")
    return LocalStore(text)


def is_remote(address: str) -> bool:
    """Whether an address needs the network."""
    return scheme_of(address) in ("http", "https", *OBJECT_SCHEMES)


def split_address(address: str) -> urllib.parse.SplitResult:
    """The parts of an address, or ValueError that names it without its query, which may be secret."""
    try:
        return urllib.parse.urlsplit(address)
    except ValueError as error:
        raise ValueError(f"not an address: {address.partition('?')[0]!r} ({error})") from None


def scheme_of(address: str) -> str:
    """What stands before `://`, or nothing where that is missing."""
    scheme, mark, _ = address.partition("://")
    return scheme.lower() if mark else ""


def address_in_catalog(catalog: str, uri: str) -> str | None:
    """Address of a manifest's uri if it is on the server, and in the bucket, of its catalog; None elsewhere.

    A manifest names a bucket but never its server: the endpoint and the region are those of the catalog.
    """
    here, there = split_address(catalog), split_address(uri)
    if here.scheme in OBJECT_SCHEMES and (here.scheme, here.netloc) == (there.scheme, there.netloc):
        return urllib.parse.urlunsplit(there._replace(query=here.query))
    return uri if here.scheme in ("http", "https") and _origin(here) == _origin(there) else None


def _origin(parts: urllib.parse.SplitResult) -> tuple[str, str, int]:
    """Scheme, host and port of a web server."""
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        port = -1
    return parts.scheme, parts.hostname or "", port


def place_of(address: str, options: StoreOptions) -> str:
    """Which place an address means, with the server: buckets of two servers may have one name."""
    plain = plain_address(address).rstrip("/")
    endpoint = _endpoint(split_address(address), options) if scheme_of(address) in OBJECT_SCHEMES else None
    return f"{plain}?endpoint={endpoint.rstrip('/')}" if endpoint else plain


def plain_address(address: str) -> str:
    """An address without query, user and password: safe to print."""
    if "://" not in address:
        return address
    parts = split_address(address)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _endpoint(parts: urllib.parse.SplitResult, options: StoreOptions) -> str | None:
    """The server of a bucket, where one is named."""
    named = dict(urllib.parse.parse_qsl(parts.query)).get("endpoint")
    return options.s3_endpoint if named is None and parts.scheme == "s3" else named


def _open_object_store(parts: urllib.parse.SplitResult, options: StoreOptions) -> BlobStore:
    if parts.username or parts.password:
        raise ValueError("credentials do not belong in a URL")
    if not parts.netloc:
        raise ValueError(f"no bucket is named: write {parts.scheme}://bucket/path")
    query = dict(urllib.parse.parse_qsl(parts.query))
    if unknown := set(query) - {"endpoint", "region"}:
        raise ValueError(f"unknown settings in the address: {', '.join(sorted(unknown))}")
    if "endpoint" in query and web_address(query["endpoint"]).username:
        raise ValueError("credentials do not belong in a URL")
    bucket, prefix, endpoint = parts.netloc, parts.path.strip("/"), _endpoint(parts, options)
    sas = {**options.find_sas(), **options.secrets} if parts.scheme == "az" else {}
    if sas.get("sas_token"):
        if not endpoint and not sas.get("account_name"):
            raise ValueError("no account is named for the SAS token: set AZURE_STORAGE_ACCOUNT_NAME")
        return AzureStore(
            bucket,
            prefix,
            lambda: {**options.find_sas(), **options.secrets}["sas_token"],
            endpoint or f"https://{sas['account_name']}.blob.core.windows.net",
            timeout_s=options.timeout_s,
            proxies=options.proxies,
        )
    if parts.scheme != "s3":
        limit, secrets = options.timeout_s, options.secrets
        return ObjectStore(parts.scheme, bucket, prefix, endpoint=endpoint, secrets=secrets, timeout_s=limit)
    keys, profile_region = _s3_keys(options)
    region = query.get("region", options.s3_region) or profile_region
    if region and not _REGION.fullmatch(region):
        raise ValueError(f"not the name of a region: {region!r}; one is us-east-1")
    return S3Store(
        bucket,
        prefix,
        keys,
        endpoint=endpoint,
        region=region,
        timeout_s=options.timeout_s,
        proxies=options.proxies,
    )


def _s3_keys(options: StoreOptions) -> tuple[Callable[[], S3Keys], str | None]:
    """The source of keys, and a region: explicit keys, the environment, a profile, or the role of the machine."""
    if given := S3Keys.of(options.secrets):
        return (lambda: given), None
    if options.aws_profile.name is None and (held := S3Keys.of(options.find_secrets())):
        return (lambda: S3Keys.of(options.find_secrets()) or held), None
    keys = ProfileKeys(options.aws_profile)
    return keys, keys.region
