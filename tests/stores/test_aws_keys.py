"""Where the keys of S3 come from: the environment, a profile, its program, single sign-on."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.catalog.test_faults import in_fork
from tests.published import publish_demo
from tests.servers import BUCKET, KEY, SECRET, S3Server, unique
from warpdata.catalog.access import access_options
from warpdata.errors import AuthenticationError, MissingExtraError
from warpdata.settings import Settings
from warpdata.stores import awskeys
from warpdata.stores.address import open_store
from warpdata.stores.awskeys import AwsFiles, KeySource, S3Keys, read_profile
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

    @pytest.mark.parametrize("profile", ["default", "me", "my own"])
    @pytest.mark.parametrize(
        ("name", "title"),
        [
            ("config", "profile {}"),
            ("config", 'profile "{}"'),
            ("config", "profile '{}'"),
            ("config", "profile \t {} "),
            ("credentials", "{}"),
            ("credentials", " {}\t"),
        ],
    )
    def test_titles_as_the_tools_of_aws_read_them(
        self, home: Home, name: str, title: str, profile: str
    ) -> None:
        home.write(name, f"\ufeff[others]\n[{title.format(profile)}]\n{STATIC}")
        found = read_profile(None if profile == "default" else profile, AwsFiles())
        assert found is not None
        assert found.secrets == {"access_key_id": KEY, "secret_access_key": SECRET}

    @pytest.mark.parametrize("key", STATIC.splitlines())
    def test_half_a_pair_of_keys(self, home: Home, key: str) -> None:
        home.write("credentials", f"[default]\n{key}\n")
        with pytest.raises(AuthenticationError, match="profile 'default' has half a pair of keys") as caught:
            home.store()
        assert SECRET not in f"{caught.value}{caught.value.hint}"

    @pytest.mark.parametrize("name", ["credentials", "config"])
    def test_a_file_that_may_not_be_read_is_not_taken_for_a_missing_one(self, home: Home, name: str) -> None:
        (home.folder / ".aws" / name).mkdir()
        with pytest.raises(AuthenticationError, match=r"cannot be read \(Is a directory\)") as caught:
            home.store()
        assert str(caught.value).endswith(name)

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

    def test_keys_that_expire_are_asked_for_again(self, home: Home) -> None:
        for minutes, calls in ((60, 1), (1, 3)):
            until = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
            (home.folder / "calls").unlink(missing_ok=True)
            home.write(
                "config", f"[default]\ncredential_process = {home.program({**GOOD, 'Expiration': until})}\n"
            )
            found = read_profile(None, AwsFiles())
            assert found is not None
            assert found.source is not None
            for _ in range(3):
                assert found.source().access_key_id == KEY
            assert home.calls == calls

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            ("my-secret-words", 0),
            ("my-secret-words", 3),
            ("my-secret-words" * 10_000, 0),
            ("[1]", 0),
            ("\udcff", 0),
            ({**GOOD, "Version": 2}, 0),
            ({"Version": 1}, 0),
            (GOOD | {"AccessKeyId": None}, 0),
            (GOOD | {"SecretAccessKey": ["my-secret-words"]}, 0),
            (GOOD | {"SecretAccessKey": ""}, 0),
            (GOOD | {"SessionToken": {"a": "my-secret-words"}}, 0),
            (GOOD | {"Expiration": 12}, 0),
            (GOOD | {"Expiration": "tomorrow"}, 0),
        ],
    )
    def test_one_that_fails_is_named_and_not_quoted(self, home: Home, answer: Any, code: int) -> None:
        home.write("config", f"[profile p]\ncredential_process = {home.program(answer, code=code)}\n")
        with pytest.raises(AuthenticationError, match="credential_process of the AWS profile 'p'") as caught:
            home.store(AWS_PROFILE="p").head("x")
        assert "my-secret-words" not in f"{caught.value}{caught.value.hint}"
        assert caught.value.hint

    @pytest.mark.parametrize(
        "until", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59"]
    )
    def test_times_at_the_ends_of_the_calendar(self, home: Home, until: str) -> None:
        home.write(
            "config", f"[default]\ncredential_process = {home.program({**GOOD, 'Expiration': until})}\n"
        )
        found = read_profile(None, AwsFiles())
        assert found is not None
        assert found.source is not None
        assert [found.source().access_key_id for _ in range(2)] == [KEY, KEY]

    def test_one_that_prints_without_end(self, home: Home) -> None:
        home.write("config", "[default]\ncredential_process = yes my-secret-words\n")
        with pytest.raises(AuthenticationError, match="credential_process"):
            home.store().head("x")

    @pytest.mark.parametrize("ends", [False, True])
    def test_one_that_leaves_another_behind(
        self, home: Home, monkeypatch: pytest.MonkeyPatch, ends: bool
    ) -> None:
        """Which has its pipe, and is not waited for: keys that were printed are used, and otherwise none are given."""
        left, path = home.folder / "left", home.folder / "program"
        # For what it prints, for the end of its pipe, and for its own end: what must come is waited for at any load.
        waits = itertools.cycle((60.0, 1.0, 60.0 if ends else 1.0))
        monkeypatch.setattr(awskeys, "_left_s", lambda _: next(waits))
        last = f"echo '{json.dumps(GOOD)}'" if ends else "echo x; wait"
        path.write_text(f"sleep 600 &\necho $! > {left}\n{last}\n")
        home.write("config", f"[default]\ncredential_process = /bin/sh {path}\n")
        try:
            if ends:
                works(home.store())
            else:
                with pytest.raises(AuthenticationError, match="credential_process"):
                    home.store().head("x")
        finally:
            os.kill(int(left.read_text()), signal.SIGKILL)

    def test_one_that_is_not_there(self, home: Home) -> None:
        home.write("config", "[default]\ncredential_process = /no/such/program --x\n")
        with pytest.raises(AuthenticationError, match="credential_process"):
            home.store().head("x")

    def test_a_dataset(self, home: Home, picture_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home.write("config", f"[default]\ncredential_process = {home.program(GOOD)}\n")
        monkeypatch.setenv("AWS_ENDPOINT_URL", home.endpoint)
        catalog = f"s3://{BUCKET}/{unique('program')}"
        publish_demo(catalog, picture_folder)
        with wd.dataset("ws/demo", catalog=catalog, mode="remote") as dataset:
            assert dataset.table().row_count == 1000


class TestSingleSignOn:
    CONFIG = "[profile team]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\nregion = us-east-1\n"

    def test_without_the_library(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        home.write("config", self.CONFIG)
        with pytest.raises(MissingExtraError, match="boto3") as caught:
            home.store(AWS_PROFILE="team")
        assert "warpdata[aws]" in caught.value.hint

    def test_the_keys_of_the_library(self, home: Home, boto3: types.SimpleNamespace) -> None:
        home.write("config", self.CONFIG)
        works(home.store(AWS_PROFILE="team"))
        assert boto3.profiles == ["team"]

    def test_a_login_that_is_over(self, home: Home, boto3: types.SimpleNamespace) -> None:
        home.write("config", self.CONFIG)
        boto3.error = RuntimeError("the token is abc")
        with pytest.raises(AuthenticationError, match="AWS profile 'team'") as caught:
            home.store(AWS_PROFILE="team").head("x")
        assert "aws sso login --profile team" in caught.value.hint
        assert "abc" not in str(caught.value)


@pytest.fixture
def boto3(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The two calls that are made of boto3, by a stand-in: it wants a login in a browser."""
    seen = types.SimpleNamespace(profiles=[], error=None)

    class Frozen:
        access_key, secret_key, token = KEY, SECRET, None

    class Credentials:
        def get_frozen_credentials(self) -> Frozen:
            if seen.error:
                raise seen.error
            return Frozen()

    class Session:
        region_name = None

        def __init__(self, profile_name: str) -> None:
            seen.profiles.append(profile_name)

        def get_credentials(self) -> Credentials:
            return Credentials()

    modules = {
        name: types.ModuleType(name)
        for name in ("boto3", "boto3.session", "botocore", "botocore.credentials")
    }
    modules["boto3"].Session = modules["boto3.session"].Session = Session
    modules["boto3"].session = modules["boto3.session"]
    modules["botocore"].credentials = modules["botocore.credentials"]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return seen


def test_a_source_recovers() -> None:
    results: list[Any] = [RuntimeError("x"), S3Keys("a", "b")]

    def fetch() -> S3Keys:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    source = KeySource(fetch, "it", "do this")
    with pytest.raises(AuthenticationError):
        source()
    assert source().access_key_id == "a"
