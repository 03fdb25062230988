"""The only reader of the environment: every variable warpdata looks at is a field here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, read once and passed down as arguments."""

    debug: bool = False
    """`WARP_DEBUG`: show tracebacks of errors in the command line."""
    color: bool = True
    """Off when `NO_COLOR` is set to anything."""
    progress: bool = True
    """Off when `WARP_NO_PROGRESS` is set: no progress bar even on a terminal."""

    catalogs: tuple[str, ...] = ("~/.local/share/warpdata/catalog",)
    """`WARP_CATALOG`: folders or addresses of catalogs, separated by commas, searched in order."""
    cache_dir: str = "~/.cache/warpdata"
    """`WARP_CACHE_DIR`: where pages of remote blobs are kept."""
    cache_bytes: int = 100 << 30
    """`WARP_CACHE_SIZE_GB`: how much is kept there, in GiB."""
    mode: str = "auto"
    """`WARP_MODE`: auto, remote, hybrid or local."""
    prefetch: str = "auto"
    """`WARP_PREFETCH`: auto, off, or how many row groups to read ahead."""
    verify: str = "if-present"
    """`WARP_VERIFY`: what to do about signatures: off, if-present or require."""
    trusted_keys: tuple[str, ...] = ()
    """`WARP_TRUSTED_KEYS`: public keys (base64) whose signatures count, separated by commas."""
    accept_rollback: bool = False
    """`WARP_ACCEPT_ROLLBACK`: take a catalog's `latest` also where it is older than one seen before."""
    rank: int | None = None
    """`RANK`: which of the training processes this is."""
    world_size: int | None = None
    """`WORLD_SIZE`: how many training processes there are."""
    local_rank: int | None = None
    """`LOCAL_RANK`: which of the processes of this machine this is."""
    s3_endpoint: str | None = None
    """`AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`: an S3 server that is not Amazon's."""
    s3_region: str | None = None
    """`AWS_REGION` or `AWS_DEFAULT_REGION`."""
    aws_profile: str | None = None
    """`AWS_PROFILE`, unless `AWS_ACCESS_KEY_ID` is set."""
    has_credentials: Mapping[str, bool] = field(default_factory=dict, compare=False)
    """For each kind of object store: whether the environment names credentials. Never the credentials."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `env`, by default the process's environment."""
        source = os.environ if env is None else env
        return cls(
            debug=_is_true(source, "WARP_DEBUG"),
            color=not source.get("NO_COLOR"),
            progress=not _is_true(source, "WARP_NO_PROGRESS"),
            catalogs=_names(source, "WARP_CATALOG") or (_data_home(source),),
            cache_dir=source.get("WARP_CACHE_DIR")
            or f"{source.get('XDG_CACHE_HOME') or '~/.cache'}/warpdata",
            cache_bytes=int(_number(source, "WARP_CACHE_SIZE_GB", 100.0) * (1 << 30)),
            mode=_choice(source, "WARP_MODE", ("auto", "remote", "hybrid", "local")),
            prefetch=source.get("WARP_PREFETCH") or "auto",
            verify=_choice(source, "WARP_VERIFY", ("if-present", "off", "require")),
            trusted_keys=_names(source, "WARP_TRUSTED_KEYS"),
            accept_rollback=_is_true(source, "WARP_ACCEPT_ROLLBACK"),
            rank=_count(source, "RANK"),
            world_size=_count(source, "WORLD_SIZE"),
            local_rank=_count(source, "LOCAL_RANK"),
            s3_endpoint=source.get("AWS_ENDPOINT_URL_S3") or source.get("AWS_ENDPOINT_URL") or None,
            s3_region=source.get("AWS_REGION") or source.get("AWS_DEFAULT_REGION") or None,
            aws_profile=None if source.get("AWS_ACCESS_KEY_ID") else source.get("AWS_PROFILE"),
            has_credentials=_credentials(source),
        )


def aws_keys() -> dict[str, str]:
    """The keys of s3 that the environment holds now; they are read when needed and kept nowhere."""
    names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    names["session_token"] = "AWS_SESSION_TOKEN"
    return {ours: os.environ[theirs] for ours, theirs in names.items() if os.environ.get(theirs)}


def _is_true(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() in _TRUE


def _names(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(name, "").split(",") if part.strip())


def _data_home(env: Mapping[str, str]) -> str:
    return f"{env.get('XDG_DATA_HOME') or '~/.local/share'}/warpdata/catalog"


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise ValueError(f"{name} is not a number: {text!r}") from None
    if not 0 <= value < 1e9:
        raise ValueError(f"{name} is out of range: {text!r}")
    return value


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if text and not text.isdigit():
        raise ValueError(f"{name} is not a count: {text!r}")
    return int(text) if text else None


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name, "").strip().lower() or allowed[0]
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; use one of {', '.join(allowed)}")
    return value


def _credentials(env: Mapping[str, str]) -> dict[str, bool]:
    return {
        "s3": bool(env.get("AWS_ACCESS_KEY_ID") or env.get("AWS_PROFILE")),
        "gs": bool(env.get("GOOGLE_APPLICATION_CREDENTIALS") or env.get("GOOGLE_SERVICE_ACCOUNT")),
        "az": bool(env.get("AZURE_STORAGE_ACCOUNT_KEY") or env.get("AZURE_STORAGE_SAS_TOKEN")),
    }
