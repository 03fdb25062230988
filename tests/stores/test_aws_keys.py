"""Where the keys of S3 come from: the environment, a profile, its program, single sign-on."""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import botocore.credentials
import botocore.tokens
import pytest

import warpdata as wd
from tests.catalog.test_faults import in_fork
from tests.published import publish_demo
from tests.servers import BUCKET, KEY, SECRET, S3Server, serving, unique
from warpdata.catalog.access import access_options
from warpdata.errors import AuthenticationError
from warpdata.settings import Settings
from warpdata.stores import awskeys
from warpdata.stores.address import open_store
from warpdata.stores.awskeys import AwsProfile, ProfileKeys
from warpdata.stores.blobstore import BlobStore


class Home:
    """A home folder with files of AWS profiles."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        (folder / ".aws").mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / ".aws" / name
        path.write_text(text)
        return path

    def program(self, answer: dict[str, Any] | str, *, code: int = 0) -> str:
        """A credential_process: it notes each call and prints the answer."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        path = self.folder / "give keys.py"
        path.write_text(
            f"import sys\nopen({str(self.folder / 'calls')!r}, 'a').write('x')\nprint({text!r})\nsys.exit({code})\n"
        )
        return f'{sys.executable} "{path}"'

    @property
    def calls(self) -> int:
        path = self.folder / "calls"
        return len(path.read_text()) if path.exists() else 0

    def store(self, **env: str) -> BlobStore:
        settings = Settings.from_env({"AWS_ENDPOINT_URL": self.endpoint, **env})
        return open_store(f"s3://{BUCKET}/{unique('keys')}", access_options(settings).store)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> Home:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return Home(tmp_path, s3_server.endpoint)


STATIC = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
GOOD = {"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET}


def works(store: BlobStore) -> None:
    store.put_if_absent("x", b"hello")
    assert bytes(store.get_ranges("x", [(1, 3)])[0]) == b"el"


class TestProfiles:
    def test_the_default_one(self, home: Home) -> None:
        home.write("credentials", f"[default]\n{STATIC}")
        works(home.store())

    def test_a_named_one_in_either_file(self, home: Home) -> None:
        home.write("credentials", f"[me]\n{STATIC}")
        home.write("config", f"[default]\nregion = us-east-1\n[profile you]\n{STATIC}region = us-east-1\n")
        works(home.store(AWS_PROFILE="me"))
        works(home.store(AWS_PROFILE="you"))

    def test_files_elsewhere(self, home: Home) -> None:
        path = home.write("other", f"[default]\n{STATIC}")
        works(home.store(AWS_SHARED_CREDENTIALS_FILE=str(path)))
        path = home.write("another", f"[profile me]\n{STATIC}")
        works(home.store(AWS_CONFIG_FILE=str(path), AWS_PROFILE="me"))

    def test_the_environment_comes_first(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        home.write("credentials", "[default]\naws_access_key_id = no\naws_secret_access_key = no\n")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        works(home.store(AWS_ACCESS_KEY_ID=KEY))

    @pytest.mark.parametrize("profile", ["default", "me"])
    def test_a_token_that_was_left_over_is_not_put_beside_its_keys(
        self, home: Home, monkeypatch: pytest.MonkeyPatch, profile: str
    ) -> None:
        home.write("credentials", f"[{profile}]\n{STATIC}")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "left-over")
        works(home.store(**({} if profile == "default" else {"AWS_PROFILE": profile})))

    def test_the_region(self, home: Home) -> None:
        home.write("credentials", f"[default]\n{STATIC}")
        home.write("config", "[default]\nregion = eu-north-1\n")
        assert home.store().region == "eu-north-1"
        assert home.store(AWS_REGION="us-west-1").region == "us-west-1"

    def test_a_misspelt_name(self, home: Home) -> None:
        home.write("credentials", f"[robots]\n{STATIC}")
        with pytest.raises(AuthenticationError, match="no AWS profile 'robot'") as caught:
            home.store(AWS_PROFILE="robot")
        assert "'robots'" in caught.value.hint

    @pytest.mark.parametrize("title", ["profile me", 'profile "my own"', "profile 'my own'"])
    def test_titles_as_the_tools_of_aws_read_them(self, home: Home, title: str) -> None:
        home.write("config", f"[others]\n[{title}]\n{STATIC}")
        keys = ProfileKeys(AwsProfile("me" if title.endswith("me") else "my own"))()
        assert (keys.access_key_id, keys.secret_access_key) == (KEY, SECRET)

    @pytest.mark.parametrize("key", STATIC.splitlines()[:1])
    def test_half_a_pair_of_keys(self, home: Home, key: str) -> None:
        home.write("credentials", f"[default]\n{key}\n")
        store = home.store()
        with pytest.raises(AuthenticationError, match="profile 'default' has half a pair of keys") as caught:
            store.head("x")
        assert SECRET not in f"{caught.value}{caught.value.hint}"

    def test_a_file_that_is_none(self, home: Home) -> None:
        home.write("credentials", "this is\nnot a file of profiles")
        with pytest.raises(AuthenticationError, match="cannot be read"):
            home.store()


class TestPrograms:
    def test_its_keys_are_used_and_kept(self, home: Home) -> None:
        home.write("config", f"[default]\ncredential_process = {home.program(GOOD)}\n")
        store = home.store()
        works(store)
        store.head("x")
        assert home.calls == 1

    def test_after_a_fork_too(self, home: Home) -> None:
        home.write("config", f"[default]\ncredential_process = {home.program(GOOD)}\n")
        store = home.store()
        works(store)
        assert in_fork(lambda: 17 if bytes(store.get_ranges("x", [(1, 3)])[0]) == b"el" else 1) == 17

    def test_keys_that_expire_are_fetched_again(self, home: Home) -> None:
        for minutes, calls in ((60, {1}), (1, range(3, 10))):
            until = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
            (home.folder / "calls").unlink(missing_ok=True)
            home.write(
                "config", f"[default]\ncredential_process = {home.program({**GOOD, 'Expiration': until})}\n"
            )
            source = ProfileKeys(AwsProfile())
            for _ in range(3):
                assert source().access_key_id == KEY
            assert home.calls in calls

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            ("my-secret-words", 0),
            ("my-secret-words", 3),
            ("[1]", 0),
            ("\udcff", 0),
            ({**GOOD, "Version": 2}, 0),
            ({"Version": 1}, 0),
            (GOOD | {"SecretAccessKey": ["my-secret-words"]}, 0),
            (GOOD | {"SessionToken": {"a": "my-secret-words"}}, 0),
            (GOOD | {"Expiration": "tomorrow"}, 0),
        ],
    )
    def test_one_that_fails_is_named_and_not_quoted(self, home: Home, answer: Any, code: int) -> None:
        home.write("config", f"[profile p]\ncredential_process = {home.program(answer, code=code)}\n")
        with pytest.raises(AuthenticationError, match="the AWS profile 'p' gave no credentials") as caught:
            home.store(AWS_PROFILE="p").head("x")
        assert "my-secret-words" not in f"{caught.value}{caught.value.hint}"
        assert caught.value.hint

    def test_one_that_does_not_end(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(awskeys, "_TIMEOUT_S", 0.1)
        home.write("config", "[default]\ncredential_process = sleep 3\n")
        with pytest.raises(
            AuthenticationError, match=r"profile 'default' gave no credentials \(TimeoutError"
        ):
            home.store().head("x")

    def test_one_that_is_not_there(self, home: Home) -> None:
        home.write("config", "[default]\ncredential_process = /no/such/program --x\n")
        with pytest.raises(AuthenticationError, match="gave no credentials"):
            home.store().head("x")

    def test_a_dataset(self, home: Home, picture_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home.write("config", f"[default]\ncredential_process = {home.program(GOOD)}\n")
        monkeypatch.setenv("AWS_ENDPOINT_URL", home.endpoint)
        catalog = f"s3://{BUCKET}/{unique('program')}"
        publish_demo(catalog, picture_folder)
        with wd.dataset("ws/demo", catalog=catalog, mode="remote") as dataset:
            assert dataset.table().row_count == 1000


class TestSingleSignOn:
    CONFIG = (
        "[profile team]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\nregion = us-east-1\n"
        "[sso-session corp]\nsso_start_url = https://corp\nsso_region = us-east-1\n"
    )

    def log_in(self, home: Home, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
        """The token that `aws sso login` leaves, and a service that gives keys in exchange."""
        folder = home.folder / ".aws" / "sso" / "cache"
        folder.mkdir(parents=True)
        until = (datetime.now(UTC) + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
        token = {"startUrl": "https://corp", "region": "us-east-1", "accessToken": "abc", "expiresAt": until}
        (folder / f"{hashlib.sha1(b'corp').hexdigest()}.json").write_text(json.dumps(token))
        for kind in (botocore.tokens.SSOTokenProvider, botocore.credentials.SSOProvider):
            monkeypatch.setattr(kind, "_SSO_TOKEN_CACHE_DIR", str(folder))  # found when it is loaded
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", server.url)

    @pytest.mark.parametrize("status", [200, 401])
    def test_the_keys_of_a_login(self, home: Home, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
        home.write("config", self.CONFIG)
        with serving(_SignOn) as server:
            server.status = status
            self.log_in(home, monkeypatch, server)
            if status == 200:
                works(home.store(AWS_PROFILE="team"))
                return
            with pytest.raises(AuthenticationError, match="AWS profile 'team'") as caught:
                home.store(AWS_PROFILE="team").head("x")
        assert "aws sso login --profile team" in caught.value.hint
        assert "abc" not in str(caught.value)

    def test_without_a_login(self, home: Home) -> None:
        home.write("config", self.CONFIG)
        with pytest.raises(AuthenticationError, match="AWS profile 'team'"):
            home.store(AWS_PROFILE="team").head("x")


class _SignOn(BaseHTTPRequestHandler):
    """The service of single sign-on that gives the keys of a role."""

    server: Any

    def do_GET(self) -> None:
        keys = {
            "accessKeyId": KEY,
            "secretAccessKey": SECRET,
            "sessionToken": "",
            "expiration": 32503680000000,
        }
        body = json.dumps(
            {"roleCredentials": keys} if self.server.status == 200 else {"message": "abc"}
        ).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_source_recovers(home: Home) -> None:
    home.write("config", f"[default]\ncredential_process = {home.program('x', code=1)}\n")
    source = ProfileKeys(AwsProfile())
    with pytest.raises(AuthenticationError):
        source()
    home.program(GOOD)
    assert source().access_key_id == KEY
