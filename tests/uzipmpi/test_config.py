"""Options: where they come from, and which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uzipmpi
from uzipmpi.config import AGREED, MEASURED, Config, Rc, rc


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Rc.__slots__:
        monkeypatch.delenv(f"UZIPMPI_{name.upper()}", raising=False)
        monkeypatch.setattr(rc, name, None)


def test_a_keyword_beats_rc_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config.resolve() == Config()
    monkeypatch.setenv("UZIPMPI_CODEC", "RAW")
    assert Config.resolve().codec == "raw"
    monkeypatch.setattr(uzipmpi.rc, "codec", "ans")
    assert Config.resolve().codec == "ans"
    assert Config.resolve(codec="tier").codec == "tier"
    assert repr(uzipmpi.rc) == "uzipmpi.rc(codec='ans')"


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("17", 17), ("4k", 4096), ("2M", 2 << 20), (" 1G ", 1 << 30)]
)
def test_sizes_in_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv("UZIPMPI_THREADS", text)
    assert Config.resolve().threads == value


def test_min_bytes_in_the_environment_may_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UZIPMPI_MIN_BYTES", "-1")
    assert Config.resolve().min_bytes == MEASURED


@pytest.mark.parametrize(("text", "value"), [("1", True), ("no", False), ("True", True)])
def test_switches_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    monkeypatch.setenv("UZIPMPI_VERIFY", text)
    assert Config.resolve().verify is value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MIN_BYTES", "many"),
        ("MIN_BYTES", "-2"),
        ("MIN_BYTES", "--1"),
        ("THREADS", "-1"),
        ("MIN_BYTES", "k"),
        ("VERIFY", "perhaps"),
        ("CODEC", "zip"),
    ],
)
def test_wrong_environment(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(f"UZIPMPI_{variable}", text)
    with pytest.raises(uzipmpi.ConfigError, match=f"{variable}|{variable.lower()}"):
        Config.resolve()


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "zip"},
        {"compress": True},
        {"min_bytes": -2},
        {"min_bytes": 1.5},
        {"min_bytes": True},
        {"chunk_bytes": 63},
        {"threads": -1},
        {"verify": 1},
        {"log": "loud"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    (name,) = options
    for call in (Config.resolve, Config().replace):
        with pytest.raises(uzipmpi.ConfigError, match=name):
            call(**options)


def test_wrong_rc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uzipmpi.rc, "min_bytes", "64k")
    with pytest.raises(uzipmpi.ConfigError, match="min_bytes: expected int, found '64k'"):
        Config.resolve()
    with pytest.raises(AttributeError):
        uzipmpi.rc.colour = "red"


def test_replace() -> None:
    config = Config().replace(min_bytes=np.int64(5), verify=True)
    assert (config.min_bytes, config.verify) == (5, True)
    assert type(config.min_bytes) is int
    assert Config().verify is False


def test_what_ranks_must_agree_on() -> None:
    assert set(Rc.__slots__) - set(AGREED) == {"codec", "threads", "max_sms", "log"}


def test_an_unknown_variable_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("uzipmpi.config._unknown", set())
    monkeypatch.setenv("UZIPMPI_MIN_BYTE", "1K")
    monkeypatch.setenv("UZIPMPI_STATS", "0")
    monkeypatch.setenv("UZIPMPI_GPU_ARCHS", "90")
    Config.resolve()
    Config.resolve()
    (record,) = caplog.records
    assert record.getMessage() == (
        "unknown variable UZIPMPI_MIN_BYTE is ignored; did you mean UZIPMPI_MIN_BYTES?"
    )
