"""Keys of S3: profiles, credential programs, single sign-on, roles of machines. The adapter of botocore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from warpdata.bytekit.process.forks import ThreadLock
from warpdata.bytekit.process.threads import call_with_timeout
from warpdata.errors import AuthenticationError, nearest

_TIMEOUT_S = 60.0
_EARLY = timedelta(minutes=2)
"""How long before they expire keys are fetched again."""
_NO_KEYS = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """A profile by name, or the default one, and the files of profiles; empty means where they usually are."""

    name: str | None = None
    credentials_file: str = ""
    config_file: str = ""


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Credentials of one account, never shown."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: datetime | None = None

    @classmethod
    def of(cls, secrets: Mapping[str, str]) -> S3Keys | None:
        """The keys in a mapping of secrets, if there is a pair."""
        if not secrets.get("access_key_id") or not secrets.get("secret_access_key"):
            return None
        token = secrets.get("session_token") or secrets.get("token") or ""
        return cls(secrets["access_key_id"], secrets["secret_access_key"], token)


class ProfileKeys:
    """Keys of a profile or of the role of this machine, fetched when needed and again before they expire.

    Nothing of botocore is kept: its locks do not survive a fork.
    """

    def __init__(self, profile: AwsProfile) -> None:
        self._profile = profile
        self._lock = ThreadLock()
        self._keys: S3Keys | None = None
        try:
            self.region: str | None = self._session().get_scoped_config().get("region")
        except Exception as error:  # noqa: BLE001 - translated below
            raise self._translate(error) from None

    def __call__(self) -> S3Keys:
        """Keys that are valid now."""
        with self._lock:
            expires_at = None if self._keys is None else self._keys.expires_at
            if self._keys is None or (expires_at is not None and datetime.now(UTC) + _EARLY >= expires_at):
                try:
                    self._keys = call_with_timeout(self._fetch, _TIMEOUT_S, "credentials")
                except Exception as error:  # noqa: BLE001 - translated below
                    raise self._translate(error) from None
            return self._keys

    def _session(self) -> Any:
        import botocore.session  # it takes a while to load, and few processes need it

        session = botocore.session.Session(profile=self._profile.name)
        for name in ("credentials_file", "config_file"):
            if path := getattr(self._profile, name):
                session.set_config_variable(name, path)
        return session

    def _fetch(self) -> S3Keys:
        credentials = self._session().get_credentials()
        if credentials is None:
            fact = "AWS credentials not found: no keys, no profile, and no role of this machine"
            raise AuthenticationError(fact, hint=_NO_KEYS)
        pair = credentials.get_frozen_credentials()
        values = (pair.access_key, pair.secret_key, pair.token or "")
        if not all(isinstance(value, str) for value in values) or not all(values[:2]):
            raise ValueError("no keys")
        return S3Keys(*values, getattr(credentials, "_expiry_time", None))

    def _translate(self, error: Exception) -> AuthenticationError:
        """Our error for one of botocore, whose text is not shown: it may hold secrets."""
        from botocore import exceptions

        name = self._profile.name or "default"
        if isinstance(error, AuthenticationError):
            return error
        if isinstance(error, exceptions.ProfileNotFound):
            hint = f"Correct AWS_PROFILE.{nearest(name, self._session().available_profiles)}"
            return AuthenticationError(f"there is no AWS profile {name!r}", hint=hint)
        if isinstance(error, exceptions.ConfigParseError):
            hint = "Correct the file, or name another one."
            path = str(error.kwargs.get("path"))
            return AuthenticationError("this file of AWS profiles cannot be read", path=path, hint=hint)
        if isinstance(error, exceptions.PartialCredentialsError):
            hint = "Give it aws_access_key_id and aws_secret_access_key, which belong together."
            return AuthenticationError(f"the AWS profile {name!r} has half a pair of keys", hint=hint)
        hint = f"Run `aws sso login --profile {name}`, or run its credential_process by hand."
        return AuthenticationError(
            f"the AWS profile {name!r} gave no credentials ({type(error).__name__})", hint=hint
        )
