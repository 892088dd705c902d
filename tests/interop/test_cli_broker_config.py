"""`tidelog broker config` on either broker: describe, set, unset; for one broker and for all."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from interop_harness.suite import wait_until

LIMIT_S = 60
Run: TypeAlias = Callable[..., subprocess.CompletedProcess[bytes]]

SETTING = "log.segment.bytes"


@pytest.fixture
def tidelog(bootstrap: str) -> Run:
    def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        environment = os.environ | {"TIDELOG_BOOTSTRAP": bootstrap, "COLUMNS": "120"}
        command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, env=environment, timeout=LIMIT_S)
        assert ran.returncode == code, ran.stderr.decode()
        return ran

    return run


def document(ran: subprocess.CompletedProcess[bytes]) -> Any:
    return json.loads(ran.stdout)


@pytest.fixture
def number(tidelog: Run) -> Iterator[str]:
    """Of the only broker; nothing is altered when the test begins and when it is over."""
    number = described(tidelog, "node.id")["node.id"]["value"]
    yield number
    tidelog("broker", "config", "unset", SETTING, "log.cleanup.policy")
    tidelog("broker", "config", "unset", SETTING, "--broker", number)


def described(tidelog: Run, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = document(tidelog("broker", "config", "describe", *arguments, "--json"))
    return found


def wait_for(tidelog: Run, value: str, origin: str) -> None:
    def there() -> bool:
        found = described(tidelog, SETTING)[SETTING]
        return (found["value"], found["from"]) == (value, origin)

    wait_until(there, f"{SETTING} is {value}, from {origin}")


def test_of_one_broker_counts_more_than_of_all(tidelog: Run, number: str) -> None:
    printed = tidelog("broker", "config", "set", f"{SETTING}=2097152").stdout.decode()
    assert printed == f"{SETTING} is now 2097152 for all brokers.\n"
    wait_for(tidelog, "2097152", "all brokers")
    tidelog("broker", "config", "set", f"{SETTING}=3145728", "--broker", number)
    wait_for(tidelog, "3145728", "broker")
    layers = described(tidelog, SETTING)[SETTING]["layers"]
    assert [(layer["value"], layer["from"]) for layer in layers] == [
        ("3145728", "broker"),
        ("2097152", "all brokers"),
        ("1073741824", "default"),
    ]
    altered = described(tidelog, "--all-brokers")
    assert altered[SETTING]["value"] == "2097152"
    again = tidelog("broker", "config", "set", f"{SETTING}=4194304").stderr.decode()
    assert again == f"Broker {number} still uses its own value of {SETTING}, 3145728.\n"
    tidelog("broker", "config", "unset", SETTING, "--broker", number)
    wait_for(tidelog, "4194304", "all brokers")
    assert (
        tidelog("broker", "config", "unset", SETTING).stdout.decode()
        == f"{SETTING} is no longer set for all brokers.\n"
    )
    wait_for(tidelog, "1073741824", "default")


def test_a_topic_follows(tidelog: Run, number: str) -> None:
    name = "cli-follows-its-broker"
    tidelog("topic", "create", name, "--if-not-exists")
    tidelog("broker", "config", "set", f"{SETTING}=2097152", "log.cleanup.policy=compact,delete")

    def followed() -> bool:
        found = document(tidelog("topic", "config", name, "--all", "--json"))
        return (found["segment.bytes"]["value"], found["cleanup.policy"]["value"]) == ("2097152", "compact,delete")

    wait_until(followed, "the topic has what its broker has")
    tidelog("topic", "delete", name, "--yes")


def test_only_checked(tidelog: Run, number: str) -> None:
    printed = tidelog("broker", "config", "set", f"{SETTING}=2097152", "--check").stdout.decode()
    assert printed == f"{SETTING} can be set for all brokers.\n"
    assert described(tidelog, SETTING)[SETTING]["value"] == "1073741824"


@pytest.mark.parametrize("what", ["num.partitions=3", f"{SETTING}=much", f"{SETTING}=1", "num.io.threads=10000"])
def test_refused_in_one_line(tidelog: Run, number: str, what: str) -> None:
    for of in ([], ["--broker", number]):
        ran = tidelog("broker", "config", "set", what, *of, code=1)
        line = ran.stderr.decode()
        assert line.startswith("Error: ")
        assert line.count("\n") == 1
        assert what.partition("=")[0] in line


def test_what_there_is_not(tidelog: Run, number: str) -> None:
    error = tidelog("broker", "config", "describe", "log.segment.byte", code=1).stderr.decode()
    assert error == f"Error: broker {number} has no setting log.segment.byte; did you mean log.segment.bytes?\n"
    error = tidelog("broker", "config", "describe", "--broker", 77, code=1).stderr.decode()
    assert error == f"Error: there is no broker 77; the cluster has the broker {number}\n"
    assert "KEY=VALUE" in tidelog("broker", "config", "set", "no-value", code=2).stderr.decode()
    assert "twice" in tidelog("broker", "config", "set", f"{SETTING}=1", f"{SETTING}=2", code=2).stderr.decode()
    assert (
        "cannot be used together"
        in tidelog("broker", "config", "describe", "--all-brokers", "--broker", 1, code=2).stderr.decode()
    )


def test_nothing_to_take_back(tidelog: Run, number: str) -> None:
    for of, whose in (([], "all brokers"), (["--broker", number], f"broker {number}")):
        for check in ([], ["--check"]):
            ran = tidelog("broker", "config", "unset", SETTING, *of, *check)
            assert ran.stdout == b""
            assert ran.stderr.decode() == f"{SETTING} was not set for {whose}; nothing to do.\n"


def test_what_was_set_elsewhere_is_named(tidelog: Run, number: str) -> None:
    tidelog("broker", "config", "set", f"{SETTING}=3145728", "--broker", number)
    wait_for(tidelog, "3145728", "broker")
    told = tidelog("broker", "config", "unset", SETTING).stderr.decode()
    own = f"broker {number} has its own value, 3145728: to unset it, add --broker {number}"
    assert told == f"{SETTING} was not set for all brokers; nothing to do ({own}).\n"
    tidelog("broker", "config", "unset", SETTING, "--broker", number)
    tidelog("broker", "config", "set", f"{SETTING}=2097152")
    wait_for(tidelog, "2097152", "all brokers")
    told = tidelog("broker", "config", "unset", SETTING, "--broker", number).stderr.decode()
    in_common = "all brokers have the value 2097152: to unset it, leave out --broker"
    assert told == f"{SETTING} was not set for broker {number}; nothing to do ({in_common}).\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("log.segment.byte", "; did you mean log.segment.bytes?"),
        ("segment.bytes", "; it is a topic setting, the broker setting is log.segment.bytes"),
        ("zzz", ""),
    ],
)
def test_an_unknown_name_is_not_taken_back(tidelog: Run, number: str, name: str, hint: str) -> None:
    tidelog("broker", "config", "set", f"{SETTING}=2097152")
    wait_for(tidelog, "2097152", "all brokers")
    for of in ([], ["--broker", number]):
        ran = tidelog("broker", "config", "unset", SETTING, name, *of, code=1)
        assert ran.stdout == b""
        assert ran.stderr.decode() == f"Error: broker {number} has no setting {name}{hint}\n"
    error = tidelog("broker", "config", "describe", "--all-brokers", name, code=1).stderr.decode()
    assert error == f"Error: broker {number} has no setting {name}{hint}\n"
    assert described(tidelog, SETTING)[SETTING]["value"] == "2097152"


def test_what_takes_a_restart_says_where_it_is_set(tidelog: Run, number: str) -> None:
    for of in ([], ["--broker", number]):
        error = tidelog("broker", "config", "set", "num.partitions=3", *of, code=1).stderr.decode()
        assert "put it into the broker's configuration file" in error
    error = tidelog("broker", "config", "set", "cordoned.log.dirs=*", code=1).stderr.decode()
    assert "--broker N" in error


def test_what_counts_where_a_setting_has_no_value(tidelog: Run, number: str) -> None:
    found = described(tidelog, "log.retention.ms", "log.retention.minutes", "log.roll.jitter.ms")
    hours = described(tidelog, "log.retention.hours")["log.retention.hours"]
    assert hours["in_force"] == {"name": "log.retention.hours", "value": hours["value"], "from": hours["from"]}
    for name in ("log.retention.ms", "log.retention.minutes"):
        assert found[name]["value"] is None
        assert found[name]["in_force"] == hours["in_force"]
        assert found[name]["layers"] == hours["layers"]
    assert found["log.roll.jitter.ms"]["in_force"]["value"] == "0"
    table = tidelog("broker", "config", "describe", "log.retention.ms").stdout.decode()
    assert f"log.retention.ms  {int(hours['value']) * 3_600_000}  log.retention.hours ({hours['from']})" in table
    tidelog("broker", "config", "set", "log.retention.ms=86400000")

    def counts() -> bool:
        found = described(tidelog, "log.retention.hours")["log.retention.hours"]
        return bool(found["in_force"] == {"name": "log.retention.ms", "value": "86400000", "from": "all brokers"})

    wait_until(counts, "log.retention.ms counts")
    table = tidelog("broker", "config", "describe", "log.retention.hours").stdout.decode()
    assert f"{hours['from']} (overridden by log.retention.ms)" in table
    tidelog("broker", "config", "unset", "log.retention.ms")


@pytest.mark.tidelog_only
def test_when_it_changes_and_whether_it_has_effect(tidelog: Run, number: str) -> None:
    every = described(tidelog, "--all")
    assert {
        name: (every[name]["changes"], every[name]["effect"]) for name in (SETTING, "num.partitions", "listeners")
    } == {
        SETTING: ("live", True),
        "num.partitions": ("at a restart", True),
        "listeners": ("at a restart", True),
    }
    assert every["num.io.threads"]["effect"] is False
    table = tidelog("broker", "config", "describe", "num.io.threads", SETTING).stdout.decode()
    assert "no effect yet" in table
