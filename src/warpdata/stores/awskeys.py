"""Where keys of S3 come from when none are given: profiles, their programs, single sign-on. The adapter of boto3."""

from __future__ import annotations

import configparser
import json
import os
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import AuthenticationError, MissingExtraError, StoreError, nearest

DEFAULT_PROFILE = "default"
_PROGRAM_TIMEOUT_S = 60.0
_MAX_ANSWER_BYTES = 1 << 16
_EARLY = timedelta(minutes=2)
"""How long before they expire keys are asked for again."""

_STATIC = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_BY_BOTO3 = ("sso_session", "sso_start_url", "role_arn", "web_identity_token_file", "login_session")

Credential = Mapping[str, Any]
"""What the object-store library wants of a provider: access_key_id, secret_access_key, token, expires_at."""


@dataclass(frozen=True, slots=True)
class AwsFiles:
    """The two files that describe profiles; empty means where they usually are."""

    credentials: str = ""
    config: str = ""

    @property
    def paths(self) -> tuple[Path, Path]:
        """Where credentials and configuration are."""
        home = Path("~/.aws").expanduser()
        return (
            Path(self.credentials).expanduser() if self.credentials else home / "credentials",
            Path(self.config).expanduser() if self.config else home / "config",
        )


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """What a profile says: keys that last, or a source of keys that do not, and the region."""

    secrets: Mapping[str, str]
    source: KeySource | None = None
    region: str | None = None


class KeySource:
    """Keys that expire, asked for when they are needed and again before they do."""

    def __init__(self, ask: Callable[[], Credential], what: str, hint: str) -> None:
        self._ask = ask
        self._what = what
        self._hint = hint
        self._lock = ThreadLock()
        self._kept: Credential | None = None
        self.failure: StoreError | None = None
        """Why the last question was not answered, if it was not."""

    def __call__(self) -> Credential:
        """Keys that are good now."""
        with self._lock:
            if self._kept is None or _is_old(self._kept):
                self._kept = self._asked()
            return self._kept

    def _asked(self) -> Credential:
        try:
            found = self._ask()
        except Exception as error:  # noqa: BLE001 - programs and libraries fail in ways of their own
            # Whatever a program or library fails with, its words may hold secrets: only its kind is shown.
            known = error if isinstance(error, StoreError) else None
            fact = f"{self._what} gave no credentials ({type(error).__name__})"
            self.failure = known or AuthenticationError(fact, hint=self._hint)
            raise self.failure from None
        self.failure = None
        return found


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
    hint = f"Run the credential_process of the AWS profile {profile!r} by hand, and mend it."
    return KeySource(
        lambda: _run(command, profile), f"the credential_process of the AWS profile {profile!r}", hint
    )


def _run(command: str, profile: str) -> Credential:
    """The answer of a program as the AWS tools define it: JSON of version 1."""
    found = json.loads(_printed(shlex.split(command)))
    keys = [found.get(name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
    if found.get("Version") != 1 or not all(keys[:2]) or not all(isinstance(key or "", str) for key in keys):
        raise AuthenticationError(
            f"the credential_process of the AWS profile {profile!r} answers in an unknown version, or without keys",
            hint="It must print JSON with Version 1, AccessKeyId and SecretAccessKey.",
        )
    until = found.get("Expiration")
    return {
        "access_key_id": keys[0],
        "secret_access_key": keys[1],
        "token": keys[2],
        "expires_at": _moment(until) if until else None,
    }


def _printed(command: list[str]) -> bytes:
    """What a program prints, if it ends well and in time; of one that prints without end only the beginning."""
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
            while len(printed) < _MAX_ANSWER_BYTES and waiting.poll(1000 * _left_s(ends_s)):
                if not (piece := os.read(pipe, _MAX_ANSWER_BYTES)):
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


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _from_boto3(profile: str) -> KeySource:
    """Single sign-on and roles, by the object-store library's provider over AWS's own library."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise MissingExtraError.for_extra("boto3", "aws") from None

    def ask() -> Credential:
        found: Credential = Boto3CredentialProvider(boto3.Session(profile_name=profile))()
        return found

    hint = f"Run `aws sso login --profile {profile}`, then run this again."
    return KeySource(ask, f"the AWS profile {profile!r}", hint)


def _is_old(credential: Credential) -> bool:
    until = credential.get("expires_at")
    return until is not None and datetime.now(UTC) + _EARLY >= until


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
