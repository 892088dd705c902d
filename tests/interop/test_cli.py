"""The command line with a live broker: input and output of commands, with Tidelog and with Apache Kafka."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from process_harness.terminal import on_a_terminal
from tidelog.cli import connection
from tidelog.cli.main import main

LIMIT_S = 60

Run: TypeAlias = Callable[..., subprocess.CompletedProcess[bytes]]


def environment(bootstrap: str) -> dict[str, str]:
    return os.environ | {"TIDELOG_BOOTSTRAP": bootstrap, "COLUMNS": "120"}


@pytest.fixture
def tidelog(bootstrap: str) -> Run:
    """`tidelog("topic", "list", input=b"")` runs the command; exit code 0 is expected unless `code` says another."""

    def run(*arguments: object, input: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
        ran = subprocess.run(command, input=input, capture_output=True, env=environment(bootstrap), timeout=LIMIT_S)
        assert ran.returncode == code, ran.stderr.decode()
        return ran

    return run


@pytest.fixture
def topic(tidelog: Run) -> str:
    """A topic of this test's own, with two partitions."""
    name = f"cli-{uuid.uuid4().hex[:12]}"
    assert tidelog("topic", "create", name, "--partitions", 2).stdout.decode() == f"Created topic {name}.\n"
    return name


def rows(ran: subprocess.CompletedProcess[bytes]) -> list[list[str]]:
    """The cells of a table in a pipe, without its head."""
    return [line.split() for line in ran.stdout.decode().splitlines()[1:]]


def document(ran: subprocess.CompletedProcess[bytes]) -> Any:
    return json.loads(ran.stdout)


# Topics


def test_a_topics_life(tidelog: Run) -> None:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    tidelog("topic", "create", name, "-p", 3, "--set", "retention.ms=86400000")
    assert f"topic {name} already exists" in tidelog("topic", "create", name, code=1).stderr.decode()
    again = tidelog("topic", "create", name, "--if-not-exists", "-p", 3, "--set", "retention.ms=86400000")
    assert (again.stdout.decode(), again.stderr) == (f"Topic {name} already exists.\n", b"")
    other = tidelog("topic", "create", name, "--if-not-exists", "-p", 7, "--set", "retention.ms=5")
    assert other.stderr.decode() == (
        f"Warning: topic {name} differs from the request and was not changed: "
        "3 partitions, not 7; retention.ms=86400000, not 5.\n"
        f"  tidelog topic add-partitions {name} 7\n"
        f"  tidelog topic config {name} --set retention.ms=5\n"
    )
    assert [name, "3", "1", "0"] in rows(tidelog("topic", "list"))
    assert name in tidelog("topic", "list", "--names").stdout.decode().splitlines()

    (described,) = document(tidelog("topic", "describe", name, "--json"))
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert described["settings"] == {"retention.ms": {"value": "86400000", "from": "topic", "effect": True}}
    assert len(described["topic_id"]) == 22

    assert "now has 5 partitions (it had 3)" in tidelog("topic", "add-partitions", name, 5).stdout.decode()
    assert (
        "has 5 partitions: use a larger number" in tidelog("topic", "add-partitions", name, 5, code=1).stderr.decode()
    )

    tidelog("topic", "config", name, "--set", "max.message.bytes=2000000", "--unset", "retention.ms")
    assert document(tidelog("topic", "config", name, "--json")) == {
        "max.message.bytes": {"value": "2000000", "from": "topic", "effect": True}
    }
    assert "Error: topic " in tidelog("topic", "config", name, "--set", "no.such=1", code=1).stderr.decode()

    assert "add --yes" in tidelog("topic", "delete", name, code=2).stderr.decode()
    assert tidelog("topic", "delete", name, "--yes").stdout.decode() == f"Deleted topic {name}.\n"
    assert name not in tidelog("topic", "list", "--names").stdout.decode().splitlines()


def test_nothing_to_take_back(tidelog: Run, topic: str) -> None:
    tidelog("topic", "config", topic, "--set", "segment.ms=3600000")
    ran = tidelog("topic", "config", topic, "--unset", "retention.ms", "--unset", "retention.ms", "--json")
    assert ran.stderr.decode().startswith(f"retention.ms was not set on topic {topic}; nothing to do")
    assert ran.stderr.count(b"\n") == 1
    assert list(document(ran)) == ["segment.ms"]
    for name, meant in (("retention.mss", "retention.ms"), ("log.roll.ms", "segment.ms")):
        refused = tidelog("topic", "config", topic, "--unset", "segment.ms", "--unset", name, code=1)
        assert refused.stderr.decode() == f"Error: there is no topic setting {name}; did you mean {meant}?\n"
    assert list(document(tidelog("topic", "config", topic, "--json"))) == ["segment.ms"]
    ran = tidelog("topic", "config", topic, "--unset", "segment.ms", "--unset", "retention.ms", "--json")
    assert (document(ran), ran.stderr.count(b"nothing to do")) == ({}, 1)


def test_a_setting_is_set_once_or_taken_back(tidelog: Run, topic: str) -> None:
    both = ["--set", "segment.ms=3600000", "--unset", "segment.ms"]
    error = tidelog("topic", "config", topic, *both, code=2).stderr.decode()
    assert error == "Error: --set and --unset cannot be used together for segment.ms\n"
    twice = ["--set", "segment.ms=3600000", "--set", "segment.ms=7200000"]
    assert "segment.ms is set twice" in tidelog("topic", "config", topic, *twice, code=2).stderr.decode()


def test_an_unknown_topic_names_the_nearest(tidelog: Run, topic: str) -> None:
    almost = topic[:-1]
    for command in (["topic", "describe"], ["topic", "delete", "--yes"], ["consume"]):
        error = tidelog(*command, almost, code=1).stderr.decode()
        assert error == f"Error: no such topic: {almost}; did you mean {topic}?\n"
        error = tidelog(*command, "Z" * 40, code=1).stderr.decode()
        assert error == f"Error: no such topic: {'Z' * 40}; tidelog topic list shows all\n"


def test_an_empty_name_and_one_that_is_given_twice(tidelog: Run, topic: str) -> None:
    for command in (["produce"], ["consume"], ["topic", "describe"], ["topic", "config"]):
        assert tidelog(*command, "", input=b"x\n", code=2).stderr.decode() == "Error: a topic's name is empty\n"
    assert len(document(tidelog("topic", "describe", topic, topic, "--json"))) == 1
    assert tidelog("topic", "delete", topic, topic, "--yes").stdout.decode() == f"Deleted topic {topic}.\n"


def test_illegal_names_and_settings_are_the_brokers_own_words(tidelog: Run) -> None:
    assert "INVALID_REPLICATION_FACTOR" in tidelog("topic", "create", "x", "-r", 9, code=1).stderr.decode()
    assert "bad name" in tidelog("topic", "create", "bad name", code=1).stderr.decode()
    for command in (["produce"], ["consume"], ["topic", "describe"], ["bench", "produce", "--topic"]):
        line = "Error: topic bad name: not a legal topic name: use 1 to 249 letters, digits, dots, _ and -\n"
        assert tidelog(*command, "bad name", input=b"x\n", code=1).stderr.decode() == line
    error = tidelog("topic", "create", "x", "--set", "retention.ms=soon", code=1).stderr.decode()
    assert "retention.ms" in error
    assert error.count("\n") == 1


def test_settings_without_effect_are_marked_where_they_have_none(tidelog: Run, topic: str, is_tidelog: bool) -> None:
    tidelog("topic", "config", topic, "--set", "preallocate=true")
    marked = "no effect yet" in tidelog("topic", "describe", topic).stdout.decode()
    assert marked == is_tidelog
    effect = document(tidelog("topic", "config", topic, "--json"))["preallocate"]["effect"]
    assert effect != is_tidelog


# Records


def test_lines_go_in_and_come_out(tidelog: Run, topic: str) -> None:
    wrote = tidelog("produce", topic, input=b"a\nb\r\n\nlast")
    assert wrote.stdout == b""
    assert wrote.stderr.decode() == f"4 records, 6 B, to {topic}\n"
    read = tidelog("consume", topic, "--from-beginning", "--until-end")
    assert sorted(read.stdout.split(b"\n")[:-1]) == [b"", b"a", b"b", b"last"]
    assert read.stderr == b""


def test_keys_headers_nulls_and_partitions(tidelog: Run, topic: str) -> None:
    lines = b"k1:v1\nk2:NIL\n:v3\n"
    tidelog("produce", topic, "-K", ":", "-p", 1, "-H", "a=1", "-H", "b=", "--null-marker", "NIL", input=lines)
    shape = "{partition}|{offset}|{key}|{value}|{headers}"
    read = tidelog("consume", topic, "-B", "-e", "-f", shape, "--null-marker", "-")
    assert read.stdout.decode().splitlines() == ["1|0|k1|v1|a=1,b=", "1|1|k2|-|a=1,b=", "1|2||v3|a=1,b="]
    error = tidelog("produce", topic, "-p", 9, input=b"x\n", code=1).stderr.decode()
    assert error == f"Error: 1 not written: topic {topic}: no such partition (tidelog topic describe shows all)\n"
    assert "has no partition 9: its partitions are 0 to 1" in tidelog("consume", topic, "-p", 9, code=1).stderr.decode()


def test_the_same_key_goes_where_a_java_client_sends_it(tidelog: Run, topic: str) -> None:
    """murmur2 of these keys, modulo 2, by Kafka's own hash (KIP-480 leaves keyed records alone)."""
    tidelog("produce", topic, "-K", ":", input=b"21:a\nfoobar:b\na-little-bit-long-string:c\n")
    read = tidelog("consume", topic, "-B", "-e", "-f", "{key} {partition}").stdout.decode().splitlines()
    expected = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    assert sorted(read) == sorted(f"{key} {(hashed & 0x7FFFFFFF) % 2}" for key, hashed in expected.items())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(tidelog: Run, topic: str, codec: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    wrote = tidelog("produce", topic, "-p", 0, "-z", codec, input=lines)
    assert re.match(rf"1,000 records, 7.7 KiB, to {topic} in [\d.]+ s \([\d,]+/s\)\n", wrote.stderr.decode())
    assert tidelog("consume", topic, "-B", "-e").stdout == lines


def test_json_lines_are_a_copy(tidelog: Run, topic: str) -> None:
    tidelog("produce", topic, "-K", ":", "-H", "h=1", input=b"k:v\n\xff:\xfe\n")
    tidelog("produce", topic, "-K", ":", "--null-marker", "NULL", "-p", 1, input=b"gone:NULL\n")
    time.sleep(0.002)  # the copies would otherwise have the same time by chance
    copied = tidelog("consume", topic, "-B", "-e", "--json").stdout
    assert {json.loads(line)["topic"] for line in copied.splitlines()} == {topic}
    copy = f"{topic}-copy"
    tidelog("topic", "create", copy, "-p", 2)
    tidelog("produce", copy, "--json", "--keep-partitions", input=copied)
    shape = "{partition}|{offset}|{timestamp_ms}|{key}|{value}|{headers}"
    once, again = (tidelog("consume", name, "-B", "-e", "-f", shape).stdout for name in (topic, copy))
    assert sorted(once.splitlines()) == sorted(again.splitlines())
    without_place = sorted(line.split(b"|", 3)[3] for line in again.splitlines())
    assert without_place == [b"gone|null|", b"k|v|h=1", b"\xff|\xfe|h=1"]

    refused = tidelog("produce", copy, "--json", input=b'{"value": "v"}\n{"value": "v", "kye": "k"}\n', code=1)
    assert 'line 2 is not a record: "kye" is not a field; the fields are topic, ' in refused.stderr.decode()


def test_where_reading_begins_and_ends(tidelog: Run, topic: str) -> None:
    tidelog("produce", topic, "-p", 0, input=b"".join(b"%d\n" % number for number in range(100)))
    first = int(document(tidelog("topic", "describe", topic, "--json"))[0]["partitions"][0]["next_offset"])
    assert first == 100

    def read(*arguments: object) -> list[str]:
        return tidelog("consume", topic, *arguments).stdout.decode().split()

    assert read("--offset", 97, "-e") == ["97", "98", "99"]
    assert read("--offset", -2, "-e") == ["98", "99"]
    beyond = tidelog("consume", topic, "--offset", 1000, "-e")
    assert (beyond.stdout, beyond.stderr.decode()) == (
        b"",
        f"Topic {topic} ends before offset 1000; reading starts at the end of each partition.\n",
    )
    assert tidelog("consume", topic, "--offset", 100, "-e").stderr == b""
    for name in ("earliest", "beginning"):
        assert read("--offset", name, "-n", 2) == ["0", "1"]
    for name in ("latest", "end"):
        assert read("--offset", name, "-e") == []
    assert read("--from-beginning", "-n", 3) == ["0", "1", "2"]
    assert read("--since", "1 hour ago", "-e", "-n", 1) == ["0"]
    assert read("--since", "0s", "-e") == []
    assert read("-p", 1, "-B", "-e") == []
    refused = tidelog("consume", topic, "-e", code=2).stderr.decode()
    assert refused.startswith("Error: --until-end without a start reads nothing")
    assert "--from-beginning" in refused


def test_a_moment_is_found_between_records(tidelog: Run, topic: str) -> None:
    tidelog("produce", topic, "-p", 0, input=b"before\n")
    (line,) = tidelog("consume", topic, "-B", "-e", "-f", "{timestamp_ms}").stdout.decode().split()
    tidelog("produce", topic, "-p", 0, input=b"after\n")
    assert tidelog("consume", topic, "--since", int(line) + 1, "-e").stdout == b"after\n"
    assert tidelog("consume", topic, "--since", line, "-e").stdout == b"before\nafter\n"


def test_reading_goes_on_until_ctrl_c(bootstrap: str, tidelog: Run, topic: str) -> None:
    """What is written later comes at once, line by line; Ctrl-C is quiet."""
    command = [sys.executable, "-m", "tidelog", "consume", topic, "-B"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(bootstrap))
    assert reader.stdout is not None
    for line in (b"first\n", b"second\n"):
        tidelog("produce", topic, input=line)
        assert reader.stdout.readline() == line
    reader.send_signal(signal.SIGINT)
    output, errors = reader.communicate(timeout=LIMIT_S)
    assert (output, errors, reader.returncode) == (b"", b"", 130)


def test_a_reader_that_goes_away_is_no_error(bootstrap: str, tidelog: Run, topic: str) -> None:
    tidelog("produce", topic, input=b"x" * 100 + b"\n" + b"line\n" * 100_000)
    command = [sys.executable, "-m", "tidelog", "consume", topic, "-B", "-e"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(bootstrap))
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.readline()
    reader.stdout.close()
    with reader:
        assert reader.stderr.read() == b""
    assert reader.returncode == 141


def test_a_reader_that_goes_away_need_not_wait_for_a_record(bootstrap: str, tidelog: Run, topic: str) -> None:
    tidelog("produce", topic, input=b"the only one\n")
    for of in ([], ["--group", f"group-{topic}"]):
        command = [sys.executable, "-m", "tidelog", "consume", topic, "-B", *of]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(bootstrap))
        with reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert reader.stdout.readline() == b"the only one\n"
            reader.stdout.close()
            assert reader.wait(LIMIT_S) == 141
            assert reader.stderr.read() == b""
    # It has left its group in order: another member need not wait for the session to end.
    (described,) = document(tidelog("group", "describe", f"group-{topic}", "--json"))
    assert described["members"] == []


def test_a_compacted_topic_wants_keys(tidelog: Run) -> None:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    tidelog("topic", "create", name, "-p", 1, "--set", "cleanup.policy=compact")
    error = tidelog("produce", name, input=b"a\nb\n", code=1).stderr.decode()
    assert (
        f"topic {name} is compacted (cleanup.policy=compact), so each record needs a key: use --key-separator" in error
    )
    assert error.count("\n") == 1
    assert tidelog("produce", name, "--key-separator", ":", input=b"a:1\nb:2\n").stderr.startswith(b"2 records")


def test_json_is_passed_on_as_it_is_written(tidelog: Run, topic: str) -> None:
    values = [b"12345678901234567890123", b"1.50", b'{ "a":1,  "a":2.0 }', b"true"]
    tidelog("produce", topic, "--json", "-p", 0, input=b"".join(b'{"value": %b }\n' % value for value in values))
    assert tidelog("consume", topic, "-B", "-e").stdout.splitlines() == values
    error = tidelog("produce", topic, "--json", input=b'{"value":1}\n{"value":}\n', code=1).stderr.decode()
    assert error.endswith("Error: line 2 is not JSON: Expecting value, at column 10\n")


def test_a_record_that_is_too_large(tidelog: Run, topic: str) -> None:
    error = tidelog("produce", topic, input=b"x" * 2_000_000, code=1).stderr.decode()
    assert error == (
        f"Error: 1 not written: topic {topic}: a record batch is larger than the topic's max.message.bytes"
        " (tidelog topic config can raise it)\n"
    )


# Groups


def test_a_group_reads_on_where_it_stood(tidelog: Run, topic: str) -> None:
    group = f"group-{topic}"
    tidelog("produce", topic, "-p", 0, input=b"a\nb\nc\nd\n")
    assert tidelog("consume", topic, "-g", group, "-B", "-n", 3).stdout == b"a\nb\nc\n"
    assert [group, topic, "0", "3", "4", "1"] in [row[:6] for row in rows(tidelog("group", "lag", group))]
    assert [group, "empty", "0", "1"] in rows(tidelog("group", "list"))
    assert group in tidelog("group", "list", "--names").stdout.decode().split()
    assert tidelog("consume", topic, "-g", group, "-e").stdout == b"d\n"
    assert tidelog("consume", topic, "-g", group, "-e").stdout == b""
    lags = document(tidelog("group", "lag", group, "--topic", topic, "--json"))
    assert [(lag["partition"], lag["committed"], lag["end"], lag["lag"]) for lag in lags if lag["end"]] == [
        (0, 4, 4, 0)
    ]
    assert document(tidelog("group", "lag", group, "--topic", "other", "--json")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_group_with_a_member(bootstrap: str, tidelog: Run, topic: str, number: signal.Signals, code: int) -> None:
    """It leaves when it is told to end."""
    group = f"group-{topic}"
    command = [sys.executable, "-m", "tidelog", "consume", topic, "-g", group, "-B"]
    tidelog("produce", topic, "-p", 1, input=b"a\n")
    member = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(bootstrap))
    try:
        assert member.stdout is not None
        assert member.stdout.readline() == b"a\n"
        (described,) = document(tidelog("group", "describe", group, "--json"))
        assert described["state"] == "stable"
        (only,) = described["members"]
        assert only["client"] == "tidelog-cli"
        assert only["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        table = tidelog("group", "describe", group).stdout.decode()
        assert f"{group}  state stable  protocol classic" in table
        assert f"{topic} 0-1" in table
    finally:
        member.send_signal(number)
        member.communicate(timeout=LIMIT_S)
    assert member.returncode == code
    assert "No members." in tidelog("group", "describe", group).stdout.decode()


def test_a_group_without_commits_has_no_lag_that_is_known(bootstrap: str, tidelog: Run, topic: str) -> None:
    """As Kafka's own tool, `-`: where its consumers begin is for them to say."""
    group = f"group-{topic}"
    tidelog("produce", topic, "-p", 0, input=b"a\nb\n")
    command = [sys.executable, "-m", "tidelog", "consume", topic, "-g", group]
    with on_a_terminal(command, environment(bootstrap)) as member:
        member.expect(f"Waiting for new records in {topic}; Ctrl-C stops.")
        assert [group, "stable", "1", "-"] in rows(tidelog("group", "list"))
        lags = [row[2:6] for row in rows(tidelog("group", "lag", group))]
        assert lags == [["0", "-", "2", "-"], ["1", "-", "0", "-"]]
        (listed,) = [one for one in document(tidelog("group", "list", "--json")) if one["group"] == group]
        assert (listed["lag"], listed["partitions_without_lag"]) == (None, 1)
        tidelog("produce", topic, "-p", 1, input=b"c\n")
        member.expect("c\n")
        member.process.send_signal(signal.SIGINT)
        assert member.process.wait(LIMIT_S) == 130
    assert [group, "empty", "0", "0+"] in rows(tidelog("group", "list"))


def test_lag_is_watched_on_a_small_terminal(bootstrap: str, tidelog: Run, topic: str) -> None:
    group = f"group-{topic}"
    tidelog("topic", "add-partitions", topic, 30)
    for partition in range(3):
        tidelog("produce", topic, "-p", partition, input=b"a\n" * 10)
    tidelog("consume", topic, "-g", group, "-B", "-e")
    tidelog("produce", topic, "-p", 2, input=b"a\n" * 1000)
    command = [sys.executable, "-m", "tidelog", "group", "lag", group, "--watch", "--interval", "0.2"]
    with on_a_terminal(command, environment(bootstrap), columns=80, lines=24) as watch:
        watch.expect(f"group {group}")
        for _ in range(2):
            watch.expect(r"2 +10 +1,010 +1,000")
            watch.expect(r"\d+ more +\S+")
            watch.expect(r"all +1,000")
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait(LIMIT_S) == 130


def test_an_unknown_group(tidelog: Run) -> None:
    for command in (("describe",), ("lag",), ("reset-offsets", "--to-latest"), ("delete", "--yes")):
        words = ("group", command[0], "nobody", *command[1:])
        assert "Error: no such group: nobody" in tidelog(*words, code=1).stderr.decode()


def offsets_of(tidelog: Run, group: str) -> list[int | None]:
    return [lag["committed"] for lag in document(tidelog("group", "lag", group, "--json"))]


def test_a_groups_offsets_are_reset(tidelog: Run, topic: str, tmp_path: Path) -> None:
    group = f"group-{topic}"
    for value in range(10):
        tidelog("produce", topic, "-p", value % 2, input=b"%d\n" % value)
    tidelog("consume", topic, "-g", group, "-B", "-e")
    reset = ("group", "reset-offsets", group)
    planned = tidelog(*reset, "--to-earliest")
    assert rows(planned) == [[topic, "0", "5", "0", "-5"], [topic, "1", "5", "0", "-5"]]
    assert b"Nothing was changed. To make these changes, add --execute." in planned.stderr
    assert offsets_of(tidelog, group) == [5, 5]
    tidelog(*reset, "--to-earliest", "--topic", f"{topic}:1", "--execute")
    assert offsets_of(tidelog, group) == [5, 0]
    tidelog(*reset, "--shift-by", 2, "--execute")
    assert offsets_of(tidelog, group) == [5, 2]  # the first one's log has no more
    tidelog(*reset, "--to-datetime", "1 hour ago", "--execute")
    assert offsets_of(tidelog, group) == [0, 0]
    file = tmp_path / "offsets.json"
    file.write_bytes(tidelog(*reset, "--to-offset", 3, "--json").stdout)
    assert document(tidelog(*reset, "--from-file", file, "--execute", "--json"))["executed"] is True
    assert offsets_of(tidelog, group) == [3, 3]
    file.write_text(f"{topic},0,1\n{topic},7,1\n")
    assert (
        f"topic {topic} has 2 partitions: there is no partition 7"
        in tidelog(*reset, "--from-file", file, code=1).stderr.decode()
    )
    assert "exactly one target must be given" in tidelog(*reset, "--to-latest", "--to-earliest", code=2).stderr.decode()
    new = f"new-{topic}"
    tidelog("group", "reset-offsets", new, "--to-latest", "--topic", topic, "--execute")
    assert offsets_of(tidelog, new) == [5, 5]


def test_what_a_plan_of_offsets_leaves_out(tidelog: Run, topic: str) -> None:
    group, copy = f"group-{topic}", f"copy-{topic}"
    tidelog("produce", topic, "-p", 0, input=b"a\nb\n")
    tidelog("group", "reset-offsets", group, "--to-latest", "--topic", f"{topic}:0", "--execute")
    reset = ("group", "reset-offsets", group)
    note = f"Left out: 1 partition without a committed offset of group {group} (partition 1 of {topic}); "
    planned = tidelog(*reset, "--to-earliest")
    assert rows(planned) == [[topic, "0", "2", "0", "-2"]]
    assert note + f"add --topic {topic} to set them, too.\n" in planned.stderr.decode()
    shifted = tidelog(*reset, "--shift-by", 0).stderr.decode()
    assert note + "set them with --topic, and another target than --shift-by.\n" in shifted
    assert document(tidelog(*reset, "--to-earliest", "--json"))["left_out"] == [{"topic": topic, "partition": 1}]
    copied = tidelog("group", "copy-offsets", group, copy, "--topic", topic).stderr.decode()
    assert note + f"set them with tidelog group reset-offsets {copy} --topic {topic}:1 and a target" in copied
    assert b"Left out" not in tidelog("group", "copy-offsets", group, copy, "--topic", f"{topic}:0").stderr
    assert document(tidelog("group", "copy-offsets", group, copy, "--json"))["left_out"] == [
        {"topic": topic, "partition": 1}
    ]
    whole = tidelog(*reset, "--to-earliest", "--topic", topic, "--execute")
    assert b"Left out" not in whole.stderr
    assert document(tidelog(*reset, "--to-latest", "--json"))["left_out"] == []


def test_groups_are_copied_and_deleted(tidelog: Run, topic: str) -> None:
    group, copy = f"group-{topic}", f"copy-{topic}"
    tidelog("produce", topic, "-p", 0, input=b"a\nb\n")
    tidelog("consume", topic, "-g", group, "-B", "-e")
    tidelog("group", "copy-offsets", group, copy)
    assert copy not in tidelog("group", "list", "--names").stdout.decode().split()
    tidelog("group", "copy-offsets", group, copy, "--execute")
    assert offsets_of(tidelog, copy) == offsets_of(tidelog, group)
    assert b"add --yes" in tidelog("group", "delete-offsets", copy, "--topic", topic, code=2).stderr
    deleted = tidelog("group", "delete-offsets", copy, "--topic", f"{topic}:0", "--yes")
    assert deleted.stdout.decode() == f"Deleted 1 committed offset of group {copy}.\n"
    assert (
        b"no committed offsets in these partitions"
        in tidelog("group", "delete-offsets", copy, "--topic", f"{topic}:0", "--yes", code=1).stderr
    )
    assert b"add --yes" in tidelog("group", "delete", group, code=2).stderr
    assert tidelog("group", "delete", group, copy, "--yes").stdout.decode().splitlines() == [
        f"Deleted group {group}.",
        f"Deleted group {copy}.",
    ]
    known = tidelog("group", "list", "--names").stdout.decode().split()
    assert group not in known
    assert copy not in known


def test_members_are_named_where_they_stand_in_the_way(bootstrap: str, tidelog: Run, topic: str) -> None:
    group = f"group-{topic}"
    tidelog("produce", topic, "-p", 0, input=b"a\n")
    command = [sys.executable, "-m", "tidelog", "consume", topic, "-g", group, "-B"]
    with on_a_terminal(command, environment(bootstrap)) as member:
        member.expect("a\n")
        for words in (
            ("reset-offsets", group, "--to-latest", "--topic", topic, "--execute"),
            ("copy-offsets", group, group + "-2", "--execute"),
            ("delete", group, "--yes"),
        ):
            if words[0] == "copy-offsets":
                tidelog("group", "reset-offsets", words[2], "--to-latest", "--topic", topic, "--execute")
                words = ("copy-offsets", words[2], group, "--execute")
            refused = tidelog("group", *words, code=1).stderr.decode()
            assert f"group {group} has 1 member: tidelog-cli@127.0.0.1 ({topic} 0-1); stop them first" in refused
        member.process.send_signal(signal.SIGINT)
        assert member.process.wait(LIMIT_S) == 130


def test_lag_is_watched_until_ctrl_c(bootstrap: str, tidelog: Run, topic: str) -> None:
    group = f"group-{topic}"
    tidelog("produce", topic, "-p", 0, input=b"a\nb\n")
    tidelog("consume", topic, "-g", group, "-B", "-n", 1)
    command = [sys.executable, "-m", "tidelog", "group", "lag", group, "--watch", "--interval", "0.1", "--json"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(bootstrap))
    assert watch.stdout is not None
    looks = [json.loads(watch.stdout.readline()) for _ in range(3)]
    watch.send_signal(signal.SIGINT)
    _, errors = watch.communicate(timeout=LIMIT_S)
    assert (errors, watch.returncode) == (b"", 130)
    assert [look["lag"][0]["lag"] for look in looks] == [1, 1, 1]
    ages_ms = [look["lag"][0]["behind_ms"] for look in looks]
    assert 0 < ages_ms[0] < ages_ms[1] < ages_ms[2] < 60_000
    assert sorted(look["time"] for look in looks) == [look["time"] for look in looks]


# Measurements


def test_bench_measures_and_cleans_up(tidelog: Run) -> None:
    wrote = document(tidelog("bench", "produce", "-n", 2000, "--size", 50, "--json"))
    assert (wrote["records"], wrote["bytes"]) == (2000, 100_000)
    assert wrote["records_per_s"] == pytest.approx(2000 / wrote["seconds"], rel=0.01)
    assert 0 < wrote["ack_ms"]["p50"] <= wrote["ack_ms"]["max"]
    read = document(tidelog("bench", "consume", "-n", 2000, "--size", 50, "-p", 3, "--json"))
    assert (read["records"], read["bytes"]) == (2000, 100_000)
    timed = document(tidelog("bench", "latency", "--rate", 200, "--seconds", 0.5, "--json"))
    assert timed["records"] == 100
    assert 0 < timed["end_to_end_ms"]["p50"] <= timed["end_to_end_ms"]["max"]
    assert "tidelog-bench-" not in tidelog("topic", "list", "--names").stdout.decode()


def test_bench_on_a_topic_that_is_there(tidelog: Run, topic: str) -> None:
    tidelog("produce", topic, input=b"12345\n" * 500)
    table = tidelog("bench", "consume", "--topic", topic).stdout.decode()
    assert re.search(r"^Records read +500$", table, re.MULTILINE)
    assert topic in tidelog("topic", "list", "--names").stdout.decode()
    empty = f"{topic}-empty"
    tidelog("topic", "create", empty)
    assert "is empty" in tidelog("bench", "consume", "-t", empty, code=1).stderr.decode()


# What is no Kafka


def test_something_else_that_listens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that takes connections and says nothing."""
    monkeypatch.setattr(connection, "ANSWER_MS", 2000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert main(["topic", "list", "-b", f"127.0.0.1:{server.getsockname()[1]}"]) == 1
    printed = capsys.readouterr()
    assert "does a Kafka broker listen at the bootstrap address" in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
