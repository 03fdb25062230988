"""The only reader of the environment: every variable warpdata looks at is a field here."""

from __future__ import annotations

import os
import re
import string
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from warpdata.errors import SettingsError, nearest

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_NO_KEY = frozenset(string.whitespace)
_REGION = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
}
_PREFETCH = ("auto", "off", "none", "aggressive")


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the environment, read once and passed down as arguments."""

    debug: bool = False
    """`WARP_DEBUG`: show tracebacks of errors in the command line."""
    color: bool = True
    """Off when `NO_COLOR` is set to anything."""
    pictures: str = "blocks"
    """How the terminal shows pictures, by `KITTY_WINDOW_ID`, `TERM_PROGRAM` and `TERM`."""
    progress: bool = True
    """Off when `WARP_NO_PROGRESS` is set: no progress bar even on a terminal."""

    episode: str | None = None
    """`WARP_EPISODE`: name of the episode that the processes of one recording share."""
    catalogs: tuple[str, ...] = ("~/.local/share/warpdata/catalog",)
    """`WARP_CATALOG`: folders or addresses of catalogs, separated by commas, searched in order."""
    cache_dir: str = "~/.cache/warpdata"
    """`WARP_CACHE_DIR`: where pages of remote blobs are kept."""
    cache_bytes: int = 100 << 30
    """`WARP_CACHE_SIZE_GB`: how much is kept there, in GiB."""
    mode: str = "auto"
    """`WARP_MODE`: auto, remote, hybrid or local."""
    prefetch: str = "auto"
    """`WARP_PREFETCH`: auto, off, aggressive, or how many row groups to read ahead."""
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
    """`AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`: an S3 server that is not Amazon's; empty where one of them is."""
    s3_region: str | None = None
    """`AWS_REGION` or `AWS_DEFAULT_REGION`."""
    aws_profile: str | None = None
    """`AWS_PROFILE`, unless `AWS_ACCESS_KEY_ID` is set."""
    aws_credentials_file: str = ""
    """`AWS_SHARED_CREDENTIALS_FILE`: the keys of profiles; `~/.aws/credentials` by default."""
    aws_config_file: str = ""
    """`AWS_CONFIG_FILE`: the settings of profiles; `~/.aws/config` by default."""
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY` (or in small letters): proxies by scheme."""
    no_proxy: str = ""
    """`NO_PROXY`: hosts without a proxy, separated by commas."""
    has_credentials: Mapping[str, bool] = field(default_factory=dict, compare=False)
    """For each kind of object store: whether the environment names credentials. Never the credentials."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `env`, by default the process's environment."""
        source = dict(os.environ) if env is None else env  # os.environ encodes every requested name
        return cls(
            debug=_is_true(source, "WARP_DEBUG"),
            color=not source.get("NO_COLOR"),
            pictures=_pictures(source),
            progress=not _is_true(source, "WARP_NO_PROGRESS"),
            episode=source.get("WARP_EPISODE") or None,
            catalogs=_names(source, "WARP_CATALOG")
            or (f"{source.get('XDG_DATA_HOME') or '~/.local/share'}/warpdata/catalog",),
            cache_dir=source.get("WARP_CACHE_DIR")
            or f"{source.get('XDG_CACHE_HOME') or '~/.cache'}/warpdata",
            cache_bytes=int(_number(source, "WARP_CACHE_SIZE_GB", 100.0) * (1 << 30)),
            mode=_choice(source, "WARP_MODE", ("auto", "remote", "hybrid", "local")),
            prefetch=_prefetch(source),
            verify=_choice(source, "WARP_VERIFY", ("if-present", "off", "require")),
            trusted_keys=_names(source, "WARP_TRUSTED_KEYS"),
            accept_rollback=_is_true(source, "WARP_ACCEPT_ROLLBACK"),
            rank=_count(source, "RANK"),
            world_size=_count(source, "WORLD_SIZE", least=1),
            local_rank=_count(source, "LOCAL_RANK"),
            s3_endpoint=_s3_endpoint(source),
            s3_region=_region(source, "AWS_REGION") or _region(source, "AWS_DEFAULT_REGION"),
            aws_profile=None if source.get("AWS_ACCESS_KEY_ID") else source.get("AWS_PROFILE") or None,
            aws_credentials_file=source.get("AWS_SHARED_CREDENTIALS_FILE", ""),
            aws_config_file=source.get("AWS_CONFIG_FILE", ""),
            proxies={
                scheme: proxy
                for scheme in ("http", "https")
                if (proxy := _either(source, f"{scheme.upper()}_PROXY") or _either(source, "ALL_PROXY"))
            },
            no_proxy=_either(source, "NO_PROXY"),
            has_credentials={
                kind: any(source.get(name) for name in names) for kind, names in _CREDENTIALS.items()
            },
        )


def aws_keys() -> dict[str, str]:
    """The keys of s3 that the environment holds now; they are read when needed and kept nowhere."""
    names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    names["session_token"] = "AWS_SESSION_TOKEN"
    found = {ours: os.environ[theirs] for ours, theirs in names.items() if os.environ.get(theirs)}
    for ours, value in found.items():
        if not _NO_KEY.isdisjoint(value) or not (value.isascii() and value.isprintable()):
            raise SettingsError(
                f"{names[ours]} holds a space, a line break or a letter that no key has",
                hint=f"Set {names[ours]} again, to the key and nothing else.",
            )
    held = [name for name in list(names.values())[:2] if os.environ.get(name)]
    if not held:
        return {}  # a token alone was left over, and belongs to nothing
    if len(held) == 1:
        (other,) = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} - set(held)
        hint = f"Set {other} too, or unset {held[0]} and name a profile (AWS_PROFILE)."
        raise SettingsError(f"{held[0]} is set, but {other} is not: they belong together", hint=hint)
    return found


def azure_sas() -> dict[str, str]:
    """The SAS token of az in the environment and the name of its account, unless there is an account key."""
    token = os.environ.get("AZURE_STORAGE_SAS_TOKEN") or os.environ.get("AZURE_STORAGE_SAS_KEY")
    if not token or os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"):
        return {}
    return {"sas_token": token, "account_name": os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")}


def _refuse(name: str, value: str, allowed: str, hint: str = "") -> SettingsError:
    """An error with the name, the value and the valid values of a variable."""
    return SettingsError(
        f"{name} is {value!r}, but must be {allowed}", hint=hint or f"Correct {name}, or unset it."
    )


def _is_true(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value and value not in _TRUE + _FALSE:
        raise _refuse(name, value, f"one of {', '.join(_TRUE + _FALSE)}")
    return value in _TRUE


def _pictures(source: Mapping[str, str]) -> str:
    """The protocol for pictures of the terminal the environment describes."""
    program, term = source.get("TERM_PROGRAM", ""), source.get("TERM", "")
    if source.get("KITTY_WINDOW_ID") or "kitty" in term or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty"):
        return "iterm"
    return "sixel" if "sixel" in term or term.partition("-")[0] in ("foot", "mlterm", "contour") else "blocks"


def _names(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(name, "").split(",") if part.strip())


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise _refuse(name, text, "a number from 0 to 1e9")
    return value


def _count(env: Mapping[str, str], name: str, least: int = 0) -> int | None:
    text = env.get(name, "").strip()
    if text and not (_is_count(text) and int(text) >= least):
        raise _refuse(name, text, f"a whole number from {least}")
    return int(text) if text else None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name, "").strip().lower() or allowed[0]
    if value not in allowed:
        hint = f"Correct {name}, or unset it.{nearest(value, allowed)}"
        raise _refuse(name, value, f"one of {', '.join(allowed)}", hint)
    return value


def _prefetch(env: Mapping[str, str]) -> str:
    value = env.get("WARP_PREFETCH", "").strip().lower() or "auto"
    if value not in _PREFETCH and not _is_count(value):
        raise _refuse("WARP_PREFETCH", value, "auto, off, aggressive, or how many row groups to read ahead")
    return value


def _s3_endpoint(env: Mapping[str, str]) -> str | None:
    """The endpoint of S3; empty if a variable is set but empty, which the S3 library takes for an address."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    named = _url(env, names[0]) or _url(env, names[1])
    return "" if named is None and any(name in env for name in names) else named


def _region(env: Mapping[str, str], name: str) -> str | None:
    value = env.get(name, "").strip()
    if value and not _REGION.fullmatch(value):
        raise _refuse(name, value, "a region such as us-east-1")
    return value or None


def _url(env: Mapping[str, str], name: str) -> str | None:
    value = env.get(name, "").strip()
    if not value:
        return None
    try:
        parts = urllib.parse.urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if "@" in value:
        raise SettingsError(
            f"{name} holds a user or a password, which do not belong into an address",
            hint=f"Correct {name}: keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    if not is_url:
        raise _refuse(name, value, "an address such as https://host:port")
    return value


def _either(env: Mapping[str, str], name: str) -> str:
    """A variable in small letters, as most programs write these, or in large ones."""
    return (env.get(name.lower()) or env.get(name) or "").strip()
