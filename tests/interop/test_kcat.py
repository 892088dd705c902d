"""kcat with an older librdkafka, from the distribution's packages."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest

from interop_harness.clients import run_kcat
from interop_harness.suite import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    CODECS,
    NewTopicNamed,
    Unique,
    wait_until,
)

CLIENT = "kcat"

Run: TypeAlias = Callable[..., bytes]


@pytest.fixture
def run(kcat: str, bootstrap: str) -> Run:
    """`run("-L")` gives what it prints; with `code` other than 0, what it complains of."""
    return lambda *arguments, **more: run_kcat(kcat, bootstrap, *map(str, arguments), **more)


def read(run: Run, topic: str, *arguments: object) -> list[bytes]:
    return run("-C", "-q", "-t", topic, "-p", 0, "-e", *arguments).splitlines()


@pytest.mark.exercises("codecs")
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(run: Run, new_topic: NewTopicNamed, codec: str) -> None:
    topic = new_topic()
    lines = b"".join(b"value %d\n" % n for n in range(500))
    run("-P", "-t", topic, "-p", 0, "-z", codec, input=lines)
    assert read(run, topic, "-o", "beginning", "-X", "check.crcs=true") == lines.splitlines()


@pytest.mark.exercises("records", "timestamps")
def test_keys_headers_nulls_and_timestamps(run: Run, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    before_ms = int(time.time() * 1000)
    run(
        "-P", "-t", topic, "-K", ":", "-Z", "-H", "a=1", "-H", "a=2", "-H", "null", input=b"key:value\ntombstone:\n:x\n"
    )
    rows = [json.loads(line) for line in read(run, topic, "-J")]
    assert [(row["key"], row["payload"], row["headers"]) for row in rows] == [
        ("key", "value", ["a", "1", "a", "2", "null", None]),
        ("tombstone", None, ["a", "1", "a", "2", "null", None]),
        (None, "x", ["a", "1", "a", "2", "null", None]),
    ]
    assert {row["tstype"] for row in rows} == {"create"}
    assert all(before_ms <= row["ts"] <= time.time() * 1000 for row in rows)


@pytest.mark.exercises("timestamps")
def test_offsets_for_times(run: Run, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    run("-P", "-t", topic, "-p", 0, input=b"a\nb\n")
    (first, _) = (json.loads(line)["ts"] for line in read(run, topic, "-J"))
    assert run("-Q", "-t", f"{topic}:0:{first}").decode().strip() == f"{topic} [0] offset 0"
    assert run("-Q", "-t", f"{topic}:0:{first + 3_600_000}").decode().strip() == f"{topic} [0] offset -1"
    assert read(run, topic, "-o", f"s@{first}") == [b"a", b"b"]


@pytest.mark.exercises("empty")
def test_an_empty_topic(run: Run, new_topic: NewTopicNamed) -> None:
    assert read(run, new_topic(), "-o", "beginning") == []


@pytest.mark.exercises("big")
def test_big_messages(run: Run, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    most = BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES
    roomy = ("-P", "-t", topic, "-p", 0, "-X", "message.max.bytes=4000000", "-D", "|")
    run(*roomy, input=b"x" * most)
    assert b"Message size too large" in run(*roomy, input=b"x" * (most + 1), code=1)
    assert [len(line) for line in read(run, topic, "-o", "beginning")] == [most]


@pytest.mark.exercises("acks", "idempotent")
@pytest.mark.parametrize("setting", ["acks=0", "acks=1", "acks=all", "enable.idempotence=true"])
def test_acks(run: Run, new_topic: NewTopicNamed, setting: str) -> None:
    topic = new_topic()
    lines = b"".join(b"%d\n" % n for n in range(1000))
    run("-P", "-t", topic, "-p", 0, "-X", setting, "-X", "batch.num.messages=50", input=lines)
    assert read(run, topic, "-o", "beginning") == lines.splitlines()


@pytest.mark.exercises("auto-create")
def test_a_topic_is_made_on_demand(run: Run, unique: Unique) -> None:
    topic = unique("auto")
    run("-P", "-t", topic, input=b"first\n")
    assert read(run, topic, "-o", "beginning") == [b"first"]


@pytest.mark.exercises("seek")
def test_where_reading_begins(run: Run, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    run("-P", "-t", topic, "-p", 0, "-z", "lz4", input=b"".join(b"%d\n" % n for n in range(100)))
    assert read(run, topic, "-o", 97) == [b"97", b"98", b"99"]
    assert read(run, topic, "-o", -2) == [b"98", b"99"]
    assert read(run, topic, "-o", "end") == []
    assert read(run, topic, "-o", "beginning", "-c", 2) == [b"0", b"1"]


@contextmanager
def member(kcat: str, bootstrap: str, group: str, topic: str) -> Iterator["subprocess.Popen[str]"]:
    words = ["-G", group, "-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=200", "-u", topic]
    with subprocess.Popen(
        [kcat, "-b", bootstrap, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one
        finally:
            one.terminate()


@pytest.mark.exercises("groups", "commits")
def test_members_join_and_leave(kcat: str, bootstrap: str, run: Run, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=2), unique("group")

    def assigned(one: "subprocess.Popen[str]", count: int) -> None:
        assert one.stderr is not None
        for line in one.stderr:
            if "assigned:" in line and line.count(topic) == count:
                return
        raise AssertionError(f"it ended without {count} partitions")

    with member(kcat, bootstrap, group, topic) as first:
        assigned(first, 2)
        with member(kcat, bootstrap, group, topic) as second:
            assigned(second, 1)
            assigned(first, 1)
            run("-P", "-t", topic, "-p", 0, input=b"zero\n")
            run("-P", "-t", topic, "-p", 1, input=b"one\n")
            assert first.stdout is not None
            assert second.stdout is not None
            assert sorted([first.stdout.readline(), second.stdout.readline()]) == ["one\n", "zero\n"]
        assigned(first, 2)
    with member(kcat, bootstrap, group, topic) as again:  # what was read is committed
        assigned(again, 2)
        run("-P", "-t", topic, "-p", 0, input=b"next\n")
        assert again.stdout is not None
        assert again.stdout.readline() == "next\n"


@pytest.mark.exercises("admin-topics")
def test_metadata(run: Run, new_topic: NewTopicNamed, bootstrap: str) -> None:
    topic = new_topic(partitions=2)
    told = json.loads(run("-L", "-J", "-t", topic))
    (broker,) = told["brokers"]
    assert broker["name"] == bootstrap
    (described,) = told["topics"]
    assert [(p["partition"], p["leader"]) for p in described["partitions"]] == [(0, broker["id"]), (1, broker["id"])]


@pytest.mark.exercises("transactions")
def test_one_transaction_for_all_lines(run: Run, new_topic: NewTopicNamed, unique: Unique) -> None:
    """kcat writes all lines of stdin in one transaction, and commits it at the end."""
    topic = new_topic()
    run("-P", "-t", topic, "-X", f"transactional.id={unique('tx')}", input=b"a\nb\nc\n")
    read = run("-C", "-t", topic, "-o", "beginning", "-e", "-X", "isolation.level=read_committed")
    assert read == b"a\nb\nc\n"


@pytest.mark.exercises("transactions")
def test_a_second_kcat_aborts_the_transaction_of_the_first_and_fences_it(
    kcat: str, bootstrap: str, run: Run, new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic, name = new_topic(), f"transactional.id={unique('tx')}"
    words = [kcat, "-b", bootstrap, "-P", "-t", topic, "-p", "0", "-X", name]
    # kcat waits only some seconds for the coordinator, which a new Kafka may not have yet.
    warm_up = [kcat, "-b", bootstrap, "-P", "-t", new_topic("warm"), "-X", name]
    wait_until(lambda: subprocess.run(warm_up, input=b"v\n", capture_output=True).returncode == 0, "a coordinator")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        try:
            assert first.stdin is not None
            first.stdin.write(b"aborted\n" * 20_000)  # kcat reads blocks of stdin
            first.stdin.flush()
            everything = ("-o", "beginning", "-X", "isolation.level=read_uncommitted")
            wait_until(lambda: set(read(run, topic, *everything)) == {b"aborted"}, "records of the first")
            run("-P", "-t", topic, "-p", 0, "-X", name, input=b"second\n")
            _, complaint = first.communicate(timeout=60)
        finally:
            first.kill()
    assert first.returncode == 1
    assert b"fenced" in complaint.lower()
    assert set(read(run, topic, *everything)) == {b"aborted", b"second"}
    assert read(run, topic, "-o", "beginning", "-X", "isolation.level=read_committed") == [b"second"]
