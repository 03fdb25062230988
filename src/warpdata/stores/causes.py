"""Why an object store or a connection failed, in words of its own: one table of codes for every way to ask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from warpdata.errors import (
    AuthenticationError,
    BucketNotFoundError,
    PermissionError_,
    StoreError,
)

_CODE = re.compile(r"<Code>\s*([A-Za-z0-9.]{1,80})\s*</Code>")
_REGION = re.compile(r"<Region>\s*([a-z0-9-]{1,40})\s*</Region>|expecting '([a-z0-9-]{1,40})'")
_REGION_HEADER = "x-amz-bucket-region"

_WRONG_REGION = (
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
)

_KEYS = "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the profile named by AWS_PROFILE)"
_NEW_TOKEN = "Get new temporary credentials (for SSO: `aws sso login`), then run this again."
_CLOCK = "Set the clock of this machine by network time, then run this again."

_REFUSALS: Mapping[str, tuple[type[StoreError], str, str]] = {
    "SignatureDoesNotMatch": (
        AuthenticationError,
        "the secret key does not belong to this access key id",
        f"{_KEYS}: the secret is wrong.",
    ),
    "InvalidAccessKeyId": (
        AuthenticationError,
        "the access key id is not known there",
        f"{_KEYS}, and that the endpoint is the one they were made for.",
    ),
    "ExpiredToken": (AuthenticationError, "the session token has expired", _NEW_TOKEN),
    "TokenRefreshRequired": (AuthenticationError, "the session token has expired", _NEW_TOKEN),
    "InvalidToken": (
        AuthenticationError,
        "the session token is not valid",
        f"{_NEW_TOKEN} Unset AWS_SESSION_TOKEN where the keys are lasting ones.",
    ),
    "RequestTimeTooSkewed": (AuthenticationError, "the clock of this machine is wrong", _CLOCK),
    "RequestExpired": (AuthenticationError, "the clock of this machine is wrong", _CLOCK),
    "AccessDenied": (
        PermissionError_,
        "the credentials are known, but may not do this",
        "Ask the owner of the bucket for access to this path, or use other credentials. Where listing is not"
        " allowed, a name that is missing reads like this too.",
    ),
    "AllAccessDisabled": (PermissionError_, "the bucket is closed to everyone", "Ask its owner."),
    "AccountProblem": (PermissionError_, "the account is suspended", "Ask who pays for the account."),
    "NoSuchBucket": (
        BucketNotFoundError,
        "there is no such bucket",
        "Check the name of the bucket and the endpoint (AWS_ENDPOINT_URL), or create the bucket.",
    ),
    "InvalidBucketName": (
        BucketNotFoundError,
        "no bucket can have this name",
        "Check the name of the bucket: small letters, digits, dots and hyphens.",
    ),
}

_CONNECTIONS = (
    ("name lookup timed out", "no name server answered in time"),
    ("dns error", "its name is not known"),
    ("name resolution", "its name is not known"),
    ("getaddrinfo", "its name is not known"),
    ("name or service not known", "its name is not known"),
    ("connection refused", "nothing listens there"),
    ("too many open files", "this process has too many files open"),
    ("certificate", "its certificate is not trusted"),
    ("network is unreachable", "the network is not reachable"),
    ("no route to host", "the network is not reachable"),
    ("connection reset", "it broke the connection off"),
    ("remotedisconnected", "it broke the connection off"),
    ("incompletemessage", "it broke the connection off"),
    ("incomplete message", "it broke the connection off"),
    ("badstatusline", "what it answers is no HTTP"),
    ("linetoolong", "what it answers is no HTTP"),
    ("got more than", "what it answers is no HTTP"),
    ("parse(", "what it answers is no HTTP"),
    ("invalidheader", "what it answers is no HTTP"),
    ("locationparseerror", "no host can have this name"),
    ("toomanyredirects", "it redirects in a circle"),
    ("incompletebody", "it broke the connection off"),
    ("incompleteread", "it broke the connection off"),
    ("timed out", "it did not answer in time"),
    ("timedout", "it did not answer in time"),
)
"""What the libraries write -> what it means; the first that is found counts."""

_ANSWERS = (
    ("NotPartial", "it does not answer range requests"),
    ("UnexpectedRange", "it answered another range than asked"),
    ("ContentRange", "it does not say which range it answered"),
    ("source: Header {", "a header of its answer is missing or wrong"),
)
"""The same for answers that no object store gives, however often it is asked."""


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """Where a bucket was asked for."""

    endpoint: str
    region: str


def refusal(
    text: str, place: BucketPlace, name: str, headers: Mapping[str, str] | None = None
) -> StoreError | None:
    """The error that the answer of an S3 server names, if it names one; nothing else of it is shown."""
    found = _CODE.search(text)
    code = found[1] if found else ""
    region = _region(text, headers or {})
    if code in _WRONG_REGION or (not code and region and region != place.region):
        return _wrong_region(code, region, place, name)
    if code not in _REFUSALS:
        return None
    kind, fact, hint = _REFUSALS[code]
    return kind(f"{fact} ({code} from {place.endpoint})", path=name, hint=hint)


def no_location(place: BucketPlace, name: str) -> StoreError:
    """The error for a redirect to nowhere, which is how a server answers for a bucket of another region."""
    return _wrong_region("", "", place, name)


def connection_cause(text: str) -> str:
    """Why a connection failed, by what the library says of it: plain words, or nothing."""
    lower = text.lower()
    return next((meaning for word, meaning in _CONNECTIONS if word in lower), "")


def odd_answer(text: str, place: str, name: str) -> StoreError | None:
    """The error for an answer that no object store gives, by what the library says of it."""
    cause = next((meaning for word, meaning in _ANSWERS if word in text), "")
    hint = "Check the endpoint: is it one of an object store?"
    return StoreError(f"{place} answers oddly: {cause}", path=name, hint=hint) if cause else None


def _region(text: str, headers: Mapping[str, str]) -> str:
    found = _REGION.search(text)
    inside = (found[1] or found[2]) if found else ""
    return inside or headers.get(_REGION_HEADER, "")


def _wrong_region(code: str, region: str, place: BucketPlace, name: str) -> StoreError:
    where = f"region {region!r}" if region else "another region"
    source = f"{code} from {place.endpoint}" if code else place.endpoint
    hint = f"Set AWS_REGION={region or '<the region of the bucket>'}, or add ?region= to the address."
    return StoreError(f"the bucket is in {where}, not in {place.region!r} ({source})", path=name, hint=hint)
