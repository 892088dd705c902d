"""How `tidelog broker config` shows a broker's answer about its settings."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.cli import broker_changes, broker_settings
from tidelog.cli.broker_settings import (
    BrokerSetting,
    Layer,
    convert_value,
    setting_value_text,
    start_place,
    value_or_hidden,
    with_replacement,
)
from tidelog.cli.cluster import origin
from tidelog.cli.main import main
from tidelog.testing import Broker


def setting(name: str, value: str | None, origin: str = "default") -> BrokerSetting:
    layers = [] if value is None else [Layer(name, value, origin)]
    return BrokerSetting(name, value, origin, origin == "default", False, False, True, layers, None)


def counting(name: str, *settings: BrokerSetting) -> tuple[str, str | None, str]:
    found = {each.name: each for each in settings}
    return tuple(with_replacement(found[name], found).in_force)


def test_the_finest_unit_that_is_set_counts() -> None:
    hours = setting("log.retention.hours", "168")
    minutes = setting("log.retention.minutes", "30", "server.properties:3")
    settings = [setting("log.retention.ms", None), minutes, hours]
    assert counting("log.retention.ms", *settings) == ("log.retention.minutes", "30", "server.properties:3")
    assert counting("log.retention.minutes", *settings) == ("log.retention.minutes", "30", "server.properties:3")
    assert counting("log.retention.hours", *settings) == ("log.retention.minutes", "30", "server.properties:3")
    assert counting("log.retention.ms", settings[0], hours) == ("log.retention.hours", "168", "default")


def test_it_is_shown_in_the_unit_of_what_was_asked_for() -> None:
    settings = [setting("log.retention.ms", None), setting("log.retention.hours", "168")]
    found = {each.name: each for each in settings}
    assert with_replacement(settings[0], found).shown_value == "604800000"
    assert with_replacement(settings[1], found).shown_value == "168"


def test_what_others_fall_back_on_stands_for_itself() -> None:
    flush = [setting("log.flush.interval.ms", "5"), setting("log.flush.scheduler.interval.ms", "9")]
    assert counting("log.flush.scheduler.interval.ms", *flush)[:2] == ("log.flush.scheduler.interval.ms", "9")
    flush[0] = setting("log.flush.interval.ms", None)
    assert counting("log.flush.interval.ms", *flush)[:2] == ("log.flush.scheduler.interval.ms", "9")
    listeners = setting("listeners", "PLAINTEXT://a:1")
    assert counting("advertised.listeners", setting("advertised.listeners", None), listeners)[0] == "listeners"
    assert counting("listeners", setting("advertised.listeners", "PLAINTEXT://b:1"), listeners)[0] == "listeners"
    assert counting("log.dirs", setting("log.dirs", None), setting("log.dir", "/d"))[:2] == ("log.dir", "/d")
    assert counting("log.dir", setting("log.dirs", "/a,/b"), setting("log.dir", "/d"))[:2] == ("log.dirs", "/a,/b")


@pytest.mark.parametrize(
    ("name", "other", "value", "expected"),
    [
        ("log.retention.ms", "log.retention.hours", "1", "3600000"),
        ("log.retention.hours", "log.retention.ms", "7200000", "2"),
        ("log.retention.hours", "log.retention.ms", "5", "5"),
        ("log.retention.ms", "log.retention.hours", "-1", "-1"),
        ("log.dirs", "log.dir", "/d", "/d"),
        ("log.roll.ms", "log.roll.hours", None, None),
    ],
)
def test_units(name: str, other: str, value: str | None, expected: str | None) -> None:
    assert convert_value(name, other, value) == expected


def test_the_place_of_a_start_setting_stands_at_the_end_of_its_documentation() -> None:
    assert (
        start_place("Where it is. No effect yet. Set at the start by /etc/k.properties:12.") == "/etc/k.properties:12"
    )
    assert start_place("Where it is.") == ""
    assert start_place(None) == ""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("settings")
    settings = {"log.retention.hours": 24, "min.insync.replicas": 1, "log.segment.bytes": 2000000}
    with Broker(data=data, settings=settings, process=True) as broker:
        yield broker.bootstrap


def described(bootstrap: str, capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, dict[str, object]]:
    assert main(["broker", "config", "describe", *names, "--json", "--bootstrap", bootstrap]) == 0
    found: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_the_place_is_named_as_the_broker_knows_it(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(bootstrap, capsys, "log.retention.ms", "min.insync.replicas", "num.partitions")
    assert found["log.retention.ms"]["in_force"] == {
        "name": "log.retention.hours", "value": "24", "from": "the command line",
    }  # fmt: skip
    assert (found["min.insync.replicas"]["from"], found["min.insync.replicas"]["effect"]) == ("the command line", True)
    assert found["num.partitions"]["from"] == "default"


def test_a_setting_of_the_start_cannot_be_taken_back(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "config", "unset", "log.retention.hours", "--bootstrap", bootstrap]) == 0
    told = "log.retention.hours was not set for all brokers; nothing to do (its value is from the command line).\n"
    assert capsys.readouterr().err == told
    assert main(["broker", "config", "unset", "log.retention.ms", "--bootstrap", bootstrap]) == 0
    told = "log.retention.hours is used instead: its value 24 is from the command line"
    assert capsys.readouterr().err == f"log.retention.ms was not set for all brokers; nothing to do ({told}).\n"


def test_a_topic_says_that_its_broker_was_started_so(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "create", "t", "--bootstrap", bootstrap]) == 0
    assert main(["topic", "config", "t", "--unset", "segment.bytes", "--bootstrap", bootstrap]) == 0
    told = capsys.readouterr().err.splitlines()[0]
    value = "its value, 2000000, is from broker's start settings"
    assert told == f"segment.bytes was not set on topic t; nothing to do ({value})."


def test_what_a_topic_has_from_its_broker_is_shown_with_it(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "create", "shown", "--set", "retention.ms=1000", "--bootstrap", bootstrap]) == 0
    capsys.readouterr()
    assert main(["topic", "config", "shown", "--json", "--bootstrap", bootstrap]) == 0
    found = {name: (setting["value"], setting["from"]) for name, setting in json.loads(capsys.readouterr().out).items()}
    assert found["retention.ms"] == ("1000", "topic")
    assert found["segment.bytes"] == ("2000000", "broker's start settings")
    assert "default" not in {origin for _, origin in found.values()}


@pytest.mark.parametrize("source", range(7))
def test_only_settings_of_the_start_are_from_the_start(source: int) -> None:
    """Source 4 (KIP-226) is the start. The others are values that were altered, defaults, loggers, and unknown."""
    assert setting("num.partitions", "3", origin(source)).is_from_start == (source == 4)
    assert setting("num.partitions", "3", "server.properties:3").is_from_start


def test_an_empty_value_is_a_value() -> None:
    assert setting_value_text(setting("log.dirs", None)) == "(none)"
    assert setting_value_text(setting("log.dirs", "")) == '""'
    assert setting_value_text(setting("log.dirs", "/d")) == "/d"
    assert setting_value_text(setting("log.dirs", "")._replace(sensitive=True)) == "(hidden)"
    assert value_or_hidden("log.dirs", "") == '""'


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node.id"], "; node.id changes only at a restart: put it into the broker's configuration file"),
        (
            ["log.dirs", "node.id"],
            "; log.dirs, node.id change only at a restart: put them into the broker's configuration file",
        ),
    ],
)
def test_the_remedy_for_settings_that_need_a_restart(
    names: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = [setting(name, "1")._replace(read_only=True) for name in names]
    monkeypatch.setattr(broker_settings, "describe_settings", lambda *arguments: described)
    target: Any = SimpleNamespace(is_all_brokers=True, client=None, address=None, number=1)
    assert broker_changes.remedy(target, dict.fromkeys(names, "2"), f"cannot alter {', '.join(names)}") == text


def test_a_secret_that_was_set_is_not_printed() -> None:
    assert value_or_hidden("sasl.jaas.config", "hush") == "(hidden)"
    assert value_or_hidden("listener.name.sasl_ssl.plain.sasl.jaas.config", "hush") == "(hidden)"
    assert value_or_hidden("log.retention.ms", "5") == "5"
    assert value_or_hidden("retention.ms", "5") == "5"
