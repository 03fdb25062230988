"""Credentials of S3: profiles, credential programs, single sign-on, roles of machines. The adapter of boto3."""

from __future__ import annotations

import configparser
import json
import os
import select
import shlex
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import AuthenticationError, MissingExtraError, StoreError, nearest
from warpdata.stores.webclient import WebClient, web_address

DEFAULT_PROFILE = "default"
_PROGRAM_TIMEOUT_S = 60.0
_ROLE_TIMEOUT_S = 2.0
_MAX_RESPONSE_BYTES = 1 << 16
_EARLY = timedelta(minutes=2)
"""How long before they expire keys are fetched again."""

_STATIC = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_BY_BOTO3 = ("sso_session", "sso_start_url", "role_arn", "web_identity_token_file", "login_session")
_NO_KEYS = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
_EC2 = "http://169.254.169.254/latest"
_ECS = "http://169.254.170.2"


@dataclass(frozen=True, slots=True)
class AwsFiles:
    """The two files that describe profiles; empty means where they usually are."""

    credentials: str = ""
    config: str = ""

    @property
    def paths(self) -> tuple[Path, Path]:
        """The paths of the credentials and of the configuration."""
        home = Path("~/.aws").expanduser()
        return (
            Path(self.credentials).expanduser() if self.credentials else home / "credentials",
            Path(self.config).expanduser() if self.config else home / "config",
        )


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Credentials of one account, never shown."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """A profile: permanent keys, or a source of temporary keys, and the region."""

    secrets: Mapping[str, str]
    source: KeySource | None = None
    region: str | None = None


class KeySource:
    """Temporary keys, fetched when they are needed and again before they expire."""

    def __init__(self, fetch: Callable[[], S3Keys], name: str, hint: str) -> None:
        self._fetch = fetch
        self._name = name
        self._hint = hint
        self._lock = ThreadLock()
        self._keys: S3Keys | None = None

    def __call__(self) -> S3Keys:
        """Keys that are valid now."""
        with self._lock:
            if self._keys is None or _is_old(self._keys):
                self._keys = self._fetch_keys()
            return self._keys

    def _fetch_keys(self) -> S3Keys:
        try:
            return self._fetch()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - programs and libraries fail in ways of their own
            # The text of the error may hold secrets: only its kind is shown.
            fact = f"{self._name} gave no credentials ({type(error).__name__})"
            raise AuthenticationError(fact, hint=self._hint) from None


def keys_of(secrets: Mapping[str, str]) -> S3Keys | None:
    """The keys in a mapping of secrets, if there is a pair."""
    if not secrets.get("access_key_id") or not secrets.get("secret_access_key"):
        return None
    token = secrets.get("session_token") or secrets.get("token") or ""
    return S3Keys(secrets["access_key_id"], secrets["secret_access_key"], token)


def role_keys(environment: Callable[[], Mapping[str, str]]) -> KeySource:
    """Keys of the role of this machine: web identity, container or EC2 instance, as the environment describes it."""
    return KeySource(lambda: _fetch_role_keys(environment()), "the role of this machine", _NO_KEYS)


def _fetch_role_keys(env: Mapping[str, str]) -> S3Keys:
    client = WebClient(timeout_s=_ROLE_TIMEOUT_S, within_s=5 * _ROLE_TIMEOUT_S)
    try:
        if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
            return _assume_role(client, env)
        container = env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
            container = _ECS + env["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]
        if container:
            token = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
            if path := env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
                token = Path(path).read_text().strip()
            return _parse_keys(_fetch(client, container, {"Authorization": token} if token else {}))
        if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise AuthenticationError("AWS credentials not found", hint=_NO_KEYS)
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        token = _fetch(client, f"{_EC2}/api/token", headers, method="PUT").decode()
        headers = {"X-aws-ec2-metadata-token": token}
        roles = f"{_EC2}/meta-data/iam/security-credentials/"
        role = _fetch(client, roles, headers).decode().split()[0]
        return _parse_keys(_fetch(client, roles + role, headers))
    except StoreError as error:
        fact = (
            f"AWS credentials not found: no keys, no profile, and no role of this machine ({error.message})"
        )
        raise AuthenticationError(fact, hint=_NO_KEYS) from None
    finally:
        client.close()


def _assume_role(client: WebClient, env: Mapping[str, str]) -> S3Keys:
    """Keys in exchange for the token of a workload identity."""
    query = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": env["AWS_ROLE_ARN"],
        "RoleSessionName": env.get("AWS_ROLE_SESSION_NAME") or "warpdata",
        "WebIdentityToken": Path(env["AWS_WEB_IDENTITY_TOKEN_FILE"]).read_text().strip(),
    }
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
    server = env.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    text = _fetch(client, f"{server.rstrip('/')}/?{urllib.parse.urlencode(query)}", {})
    values = {
        element.tag.rpartition("}")[2]: element.text or "" for element in ElementTree.fromstring(text).iter()
    }
    return S3Keys(
        values["AccessKeyId"],
        values["SecretAccessKey"],
        values["SessionToken"],
        _parse_time(values["Expiration"]),
    )


def _fetch(client: WebClient, url: str, headers: Mapping[str, str], method: str = "GET") -> bytes:
    parts = web_address(url)
    name = f"{parts.scheme}://{parts.netloc}{parts.path}"
    body = b"" if method == "PUT" else None
    response = client.request(method, parts, headers, name, max_bytes=_MAX_RESPONSE_BYTES, body=body)
    if response.status != 200:
        raise AuthenticationError(f"{name} answered {response.status}")
    return response.body


def _parse_keys(text: bytes) -> S3Keys:
    """Keys in the JSON that metadata services and credential programs share."""
    fields = json.loads(text)
    keys = [fields.get(name) or "" for name in ("AccessKeyId", "SecretAccessKey")]
    token = fields.get("SessionToken") or fields.get("Token") or ""
    if not all(keys) or not all(isinstance(value, str) for value in (*keys, token)):
        raise ValueError("no keys")
    expiration = fields.get("Expiration")
    return S3Keys(keys[0], keys[1], token, _parse_time(expiration) if expiration else None)


def read_profile(name: str | None, files: AwsFiles) -> AwsProfile | None:
    """The keys and the region of a profile; None where no profile is named and there is no default one."""
    wanted = name or DEFAULT_PROFILE
    credentials, config = (_parsed(path) for path in files.paths)
    in_config = _profiles(config)
    fields = {**in_config.get(wanted, {}), **_named(credentials).get(wanted, {})}
    if not fields:
        if name is None:
            return None
        hint = f"Correct AWS_PROFILE.{nearest(name, [*_named(credentials), *in_config])}"
        where = " or ".join(str(path) for path in files.paths)
        raise AuthenticationError(f"there is no AWS profile {name!r}", path=where, hint=hint)
    region = fields.get("region")
    keys = {ours: fields[theirs] for theirs, ours in _STATIC.items() if fields.get(theirs)}
    if keys and "role_arn" not in fields:
        if "access_key_id" not in keys or "secret_access_key" not in keys:
            hint = "Give it aws_access_key_id and aws_secret_access_key, which belong together."
            raise AuthenticationError(f"the AWS profile {wanted!r} has half a pair of keys", hint=hint)
        return AwsProfile(keys, None, region)
    if "credential_process" in fields and "role_arn" not in fields:
        return AwsProfile({}, _from_program(fields["credential_process"], wanted), region)
    if any(word in fields for word in _BY_BOTO3):
        return AwsProfile({}, _from_boto3(wanted), region)
    return AwsProfile({}, None, region)


def _from_program(command: str, profile: str) -> KeySource:
    name = f"the credential_process of the AWS profile {profile!r}"
    hint = f"Run the credential_process of the AWS profile {profile!r} by hand, and correct it."
    return KeySource(partial(_run_program, command, name), name, hint)


def _run_program(command: str, name: str) -> S3Keys:
    """Keys from the output of a program as the AWS tools define it: JSON of version 1."""
    output = _read_output(shlex.split(command))
    if json.loads(output).get("Version") != 1:
        hint = "It must print JSON with Version 1, AccessKeyId and SecretAccessKey."
        raise AuthenticationError(f"{name} printed an unknown version", hint=hint)
    return _parse_keys(output)


def _read_output(command: list[str]) -> bytes:
    """The output of a program that succeeds in time; only the beginning of an endless one."""
    ends_s = time.monotonic() + _PROGRAM_TIMEOUT_S
    printed = bytearray()
    with subprocess.Popen(
        command, bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        pipe, waiting = process.stdout.fileno(), select.poll()
        waiting.register(pipe, select.POLLIN)
        try:
            # What a program started may hold its pipe open after it: only for so long is the end of it waited for.
            while len(printed) < _MAX_RESPONSE_BYTES and waiting.poll(1000 * _left_s(ends_s)):
                if not (piece := os.read(pipe, _MAX_RESPONSE_BYTES)):
                    break
                printed += piece
            process.stdout.close()
            code = process.wait(_left_s(ends_s))
        except BaseException:
            process.kill()
            raise
    if code:
        raise subprocess.CalledProcessError(code, command)
    return bytes(printed)


def _left_s(ends_s: float) -> float:
    return max(0.0, ends_s - time.monotonic())


def _parse_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _from_boto3(profile: str) -> KeySource:
    """Keys of single sign-on and roles, from AWS's own library."""
    try:
        import boto3
    except ImportError:
        raise MissingExtraError.for_extra("boto3", "aws") from None

    def fetch() -> S3Keys:
        credentials = boto3.Session(profile_name=profile).get_credentials()
        keys = credentials.get_frozen_credentials()
        until = getattr(credentials, "_expiry_time", None)
        return S3Keys(keys.access_key, keys.secret_key, keys.token or "", until)

    hint = f"Run `aws sso login --profile {profile}`, then run this again."
    return KeySource(fetch, f"the AWS profile {profile!r}", hint)


def _is_old(keys: S3Keys) -> bool:
    return keys.expires_at is not None and datetime.now(UTC) + _EARLY >= keys.expires_at


def _parsed(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, default_section="\0none", strict=False)
    try:
        parser.read_string(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        pass  # both files need not be there
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        cause = f" ({error.strerror})" if isinstance(error, OSError) else ""
        raise AuthenticationError(
            f"this file of AWS profiles cannot be read{cause}",
            path=path,
            hint="Correct the file, or name another one.",
        ) from None
    return parser


def _named(parser: configparser.ConfigParser) -> dict[str, dict[str, str]]:
    """The sections of a file by name."""
    return {name.strip(): dict(parser[name]) for name in parser.sections()}


def _profiles(config: configparser.ConfigParser) -> dict[str, dict[str, str]]:
    """The profiles of a configuration, whose sections are called `profile NAME`; NAME may be quoted."""
    sections = _named(config)
    found = {DEFAULT_PROFILE: sections[DEFAULT_PROFILE]} if DEFAULT_PROFILE in sections else {}
    for title, fields in sections.items():
        kind, _, name = title.replace("\t", " ").partition(" ")
        if kind == "profile":
            found[name.strip().strip("\"'")] = fields
    return found
