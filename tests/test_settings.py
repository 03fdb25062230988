from __future__ import annotations

import pytest

from warpdata.cli.main import main
from warpdata.errors import SettingsError
from warpdata.settings import Settings, aws_keys


def test_defaults_and_each_variable() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"WARP_DEBUG": "1"}).debug
    assert not Settings.from_env({"WARP_DEBUG": "no"}).debug
    assert not Settings.from_env({"NO_COLOR": "x"}).color
    assert not Settings.from_env({"WARP_NO_PROGRESS": "true"}).progress
    assert Settings.from_env({"WARP_EPISODE": "take-12"}).episode == "take-12"
    assert Settings.from_env({"WARP_EPISODE": ""}).episode is None
    for word in ("auto", "off", "aggressive", "4"):
        assert Settings.from_env({"WARP_PREFETCH": word}).prefetch == word
    assert Settings.from_env({"AWS_ENDPOINT_URL": "http://h:1"}).s3_endpoint == "http://h:1"


BAD = [
    ("WARP_DEBUG", "maybe", "yes"),
    ("WARP_NO_PROGRESS", "2", "off"),
    ("WARP_ACCEPT_ROLLBACK", "sure", "true"),
    ("WARP_CACHE_SIZE_GB", "lots", "a number"),
    ("WARP_CACHE_SIZE_GB", "nan", "a number"),
    ("WARP_CACHE_SIZE_GB", "-1", "a number"),
    ("WARP_MODE", "remot", "remote"),
    ("WARP_PREFETCH", "-3", "auto"),
    ("WARP_VERIFY", "yes", "require"),
    ("RANK", "x", "whole number"),
    ("RANK", "²", "whole number"),
    ("WORLD_SIZE", "-1", "whole number"),
    ("LOCAL_RANK", "9" * 5000, "whole number"),
    ("AWS_ENDPOINT_URL", "localhost:9000", "https://"),
    ("AWS_ENDPOINT_URL_S3", "http://h:notaport", "https://"),
    ("AWS_REGION", "eu west\n1", "us-east-1"),
    ("AWS_DEFAULT_REGION", "http://\x7f", "us-east-1"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_a_bad_value_names_variable_value_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)
    assert name in caught.value.hint


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
@pytest.mark.parametrize("value", ["secret\n", "sec ret", "secret\x7f", "s\u00e9cret"])
def test_what_no_key_holds_is_refused_and_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name) as caught:
        aws_keys()
    assert value.strip() not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_a_pair_of_keys_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "left-over")
    assert aws_keys() == {}
    monkeypatch.setenv(name, "half")
    with pytest.raises(SettingsError, match=f"{name} is set, but AWS_.* is not") as caught:
        aws_keys()
    assert "half" not in f"{caught.value}{caught.value.hint}"


def test_a_password_in_an_endpoint_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="AWS_ENDPOINT_URL") as caught:
        Settings.from_env({"AWS_ENDPOINT_URL": "http://me:secret@127.0.0.1:1"})
    assert "secret@" not in str(caught.value)


def test_the_nearest_right_word_is_offered() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"WARP_MODE": "remot"})
    assert "'remote'" in caught.value.hint


def test_the_command_line_says_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARP_CACHE_SIZE_GB", "lots")
    assert main(["cache", "stats"]) == 2
    shown = capsys.readouterr().err
    assert "error[settings]" in shown
    assert "WARP_CACHE_SIZE_GB" in shown
    assert "Traceback" not in shown
