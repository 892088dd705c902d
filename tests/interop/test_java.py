"""Java kafka-clients through Kafka's own command-line tools and perf tests."""

import json
import re
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from interop_harness.java_tools import JavaTools, Ran, RunningTool
from interop_harness.suite import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    CODECS,
    NewTopicNamed,
    Unique,
    wait_until,
)

CLIENT = "Java kafka-clients and Kafka's tools"

Tool: TypeAlias = Callable[..., Ran]


@pytest.fixture
def tool(java: JavaTools, bootstrap: str) -> Tool:
    """`tool("topics", "--list")` runs a tool against the broker; exit code 0 is expected unless `code` says another."""
    return lambda name, *arguments, **more: java.run(name, "--bootstrap-server", bootstrap, *arguments, **more)


@pytest.fixture
def begin(java: JavaTools, bootstrap: str) -> Callable[..., RunningTool]:
    return lambda name, *arguments: java.start(name, "--bootstrap-server", bootstrap, *arguments)


def lines_of(pattern: str, ran: Ran) -> list[tuple[str, ...]]:
    return [match.groups() for match in re.finditer(pattern, ran.out, re.MULTILINE)]


def perf(tool: Tool, topic: str, count: int, size: int, *properties: str, code: int | None = 0) -> Ran:
    words = ["--command-property", *properties] if properties else []  # said twice, the last one counts alone
    return tool(
        "producer-perf-test",
        *("--topic", topic, "--num-records", count, "--record-size", size, "--throughput", -1),
        *words,
        code=code,
    )


def end_offsets(tool: Tool, topic: str, *more: object) -> dict[int, int]:
    found = lines_of(rf"^{topic}:(\d+):(\d*)$", tool("get-offsets", "--topic", topic, *more))
    return {int(partition): int(offset) for partition, offset in found if offset}


@pytest.mark.exercises("codecs")
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_under_load(tool: Tool, new_topic: NewTopicNamed, codec: str) -> None:
    topic = new_topic(partitions=2)
    wrote = perf(tool, topic, 5000, 200, f"compression.type={codec}", "linger.ms=5")
    assert "5000 records sent" in wrote.out
    assert sum(end_offsets(tool, topic).values()) == 5000
    read = tool("consumer-perf-test", "--topic", topic, "--num-records", 5000, "--timeout", 30_000)
    assert read.lines[-1].split(", ")[4] == "5000"


@pytest.mark.exercises("records", "timestamps")
def test_keys_headers_nulls_and_timestamps(tool: Tool, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    before_ms = int(time.time() * 1000)
    shape = [w for p in ("parse.key", "parse.headers") for w in ("--reader-property", f"{p}=true")]
    text = b"a:1,a:2\tkey\tvalue\nNIL\ttombstone\tNIL\nNIL\tNIL\tno key\n"
    tool("console-producer", "--topic", topic, *shape, "--reader-property", "null.marker=NIL", input=text)
    prints = ("key", "headers", "offset", "timestamp", "partition")
    shown = [w for p in prints for w in ("--formatter-property", f"print.{p}=true")]
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 3, *shown)
    rows = [line.split("\t") for line in read.lines]
    assert [row[1:] for row in rows] == [
        ["Partition:0", "Offset:0", "a:1,a:2", "key", "value"],
        ["Partition:0", "Offset:1", "NO_HEADERS", "tombstone", "null"],
        ["Partition:0", "Offset:2", "NO_HEADERS", "null", "no key"],
    ]
    stamps = [row[0].removeprefix("CreateTime:") for row in rows]
    assert all(before_ms <= int(stamp) <= time.time() * 1000 for stamp in stamps)


@pytest.mark.exercises("timestamps")
def test_get_offsets(tool: Tool, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=2)
    tool("console-producer", "--topic", topic, "--reader-property", "parse.key=true", input=b"1\ta\n1\tb\n1\tc\n")
    assert sorted(end_offsets(tool, topic).values()) == [0, 3]
    assert end_offsets(tool, topic, "--time", "earliest") == {0: 0, 1: 0}
    assert max(end_offsets(tool, topic, "--time", "max-timestamp").values()) in (0, 1, 2)
    assert set(end_offsets(tool, topic, "--time", 0).values()) == {0}
    assert end_offsets(tool, topic, "--time", int(time.time() * 1000) + 60_000) == {}


@pytest.mark.exercises("empty")
def test_an_empty_topic(tool: Tool, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=2)
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--timeout-ms", 500, code=None)
    assert read.out == ""
    assert "Processed a total of 0 messages" in read.err
    assert end_offsets(tool, topic) == {0: 0, 1: 0}


@pytest.mark.exercises("big")
def test_big_messages(tool: Tool, new_topic: NewTopicNamed) -> None:
    """To the byte: what the limit allows is taken, one byte more is refused."""
    topic = new_topic()
    most = BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES
    roomy = ("max.request.size=4000000", "batch.size=1")
    perf(tool, topic, 2, most, *roomy)
    refused = perf(tool, topic, 1, most + 1, *roomy, code=None)
    assert "RecordTooLargeException" in refused.out + refused.err
    assert "max.request.size" not in refused.out + refused.err  # the broker's refusal, not the client's own
    assert end_offsets(tool, topic) == {0: 2}
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 2)
    assert [len(line) for line in read.lines] == [most, most]


@pytest.mark.exercises("acks")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(tool: Tool, new_topic: NewTopicNamed, acks: str) -> None:
    topic = new_topic()
    perf(tool, topic, 500, 100, f"acks={acks}", "enable.idempotence=false")
    wait_until(lambda: end_offsets(tool, topic) == {0: 500}, "all there")


@pytest.mark.exercises("idempotent")
def test_an_idempotent_producer(tool: Tool, new_topic: NewTopicNamed) -> None:
    """Five requests in flight over four partitions; each value once."""
    topic = new_topic(partitions=4)
    wrote = tool("verifiable-producer", "--topic", topic, "--max-messages", 3000, "--throughput", -1, "--acks", -1)
    events = [json.loads(line) for line in wrote.lines]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    assert (len(sent), events[-1]["sent"], events[-1]["acked"]) == (3000, 3000, 3000)
    assert len({(event["partition"], event["offset"]) for event in sent}) == 3000
    assert sum(end_offsets(tool, topic).values()) == 3000
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 3000)
    assert sorted(read.lines) == sorted(str(event["value"]) for event in sent)


@pytest.mark.exercises("auto-create")
def test_a_topic_is_made_on_demand(tool: Tool, unique: Unique) -> None:
    topic = unique("auto")
    tool("console-producer", "--topic", topic, input=b"first\n")
    assert tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 1).lines == ["first"]


@pytest.mark.exercises("seek")
def test_seek_and_replay(tool: Tool, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    values = [str(n) for n in range(100)]
    tool("console-producer", "--topic", topic, "--compression-codec", "zstd", input="\n".join(values).encode())

    def read(offset: object, count: int) -> list[str]:
        where = ("--partition", 0, "--offset", offset)
        return tool("console-consumer", "--topic", topic, *where, "--max-messages", count).lines

    assert read("earliest", 100) == values
    assert read(37, 2) == ["37", "38"]


def events_of(running: RunningTool, name: str) -> list[dict[str, Any]]:
    whole = running.out[: running.out.rfind("\n") + 1].splitlines()
    return [event for event in map(json.loads, whole) if event["name"] == name]


def holds(running: RunningTool, *, cooperative: bool) -> list[int]:
    """The partitions that a verifiable consumer has, by its events so far."""
    held: set[int] = set()
    for line in running.out[: running.out.rfind("\n") + 1].splitlines():
        event = json.loads(line)
        partitions = {entry["partition"] for entry in event.get("partitions", [])}
        if event["name"] == "partitions_revoked":
            held -= partitions
        elif event["name"] == "partitions_assigned":
            held = held | partitions if cooperative else partitions
    return sorted(held)


@pytest.mark.exercises("groups", "cooperative")
@pytest.mark.parametrize("assignor", ["RangeAssignor", "StickyAssignor", "CooperativeStickyAssignor"])
def test_members_join_and_leave(
    begin: Callable[..., RunningTool], tool: Tool, new_topic: NewTopicNamed, unique: Unique, assignor: str
) -> None:
    """Records flow while a second member comes and goes; afterwards nothing is left behind, and nothing came twice."""
    topic, group = new_topic(partitions=4), unique("group")
    member = ("verifiable-consumer", "--topic", topic, "--group-id", group)
    strategy = ("--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}")
    cooperative = assignor.startswith("Cooperative")

    def parts(*members: RunningTool) -> list[list[int]]:
        return [holds(one, cooperative=cooperative) for one in members]

    first = begin(*member, *strategy)
    wait_until(lambda: parts(first) == [[0, 1, 2, 3]], "all for the first")
    second = begin(*member, *strategy)
    wait_until(
        lambda: (
            [len(p) for p in parts(first, second)] == [2, 2] and sorted(chain(*parts(first, second))) == [0, 1, 2, 3]
        ),
        "half for each",
    )
    tool("verifiable-producer", "--topic", topic, "--max-messages", 200, "--throughput", -1)

    def consumed(*members: RunningTool) -> int:
        return sum(event["count"] for one in members for event in events_of(one, "records_consumed"))

    wait_until(lambda: consumed(first, second) == 200, "200 records")
    described = tool("consumer-groups", "--describe", "--group", group, "--members", "--verbose")
    assert len(lines_of(rf"^({group}) ", described)) == 2
    assert second.stop().code == 0
    wait_until(lambda: parts(first) == [[0, 1, 2, 3]], "all for the one that stayed")
    tool("verifiable-producer", "--topic", topic, "--max-messages", 100, "--throughput", -1)
    wait_until(lambda: consumed(first, second) == 300, "300 records")
    assert first.stop().code == 0
    offsets = lines_of(
        rf"^{group} +{topic} +\d +(\d+) +(\d+) +(\d+) ", tool("consumer-groups", "--describe", "--group", group)
    )
    assert all(committed == end and lag == "0" for committed, end, lag in offsets)
    assert sum(int(end) for _, end, _ in offsets) == 300


@pytest.mark.exercises("static")
def test_a_static_member_comes_back_to_its_own(
    begin: Callable[..., RunningTool], new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    member = ("verifiable-consumer", "--topic", topic, "--group-id", group, "--session-timeout", 30_000)
    first = begin(*member, "--group-instance-id", "one")
    second = begin(*member, "--group-instance-id", "two")

    def one_each() -> bool:
        return sorted([holds(first, cooperative=False), holds(second, cooperative=False)]) == [[0], [1]]

    wait_until(one_each, "one for each")
    own, rebalances = holds(second, cooperative=False), len(events_of(first, "partitions_assigned"))
    second.stop()
    again = begin(*member, "--group-instance-id", "two")
    wait_until(lambda: holds(again, cooperative=False) == own, "the same as before")
    assert len(events_of(first, "partitions_assigned")) == rebalances
    assert [again.stop().code, first.stop().code] == [0, 0]


@pytest.mark.exercises("consumer-protocol", "admin-groups")
def test_the_consumer_protocol(
    tool: Tool, begin: Callable[..., RunningTool], new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic, group = new_topic(partitions=4), unique("group")
    entity = ("--entity-type", "groups", "--entity-name", group)
    tool("configs", *entity, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    wait_until(
        lambda: "consumer.session.timeout.ms=50000" in tool("configs", *entity, "--describe").out, "the new setting"
    )
    read = ("console-consumer", "--topic", topic, "--group", group, "--from-beginning")
    new = ("--command-property", "group.protocol=consumer")
    first = begin(*read, *new)
    second = begin(*read, *new)

    def members() -> list[str]:
        described = tool("consumer-groups", "--describe", "--group", group, "--members", code=None)
        return [words[0] for words in lines_of(rf"^{group} .*? (\d+) *$", described)]

    wait_until(lambda: members() == ["2", "2"], "half for each")
    tool("verifiable-producer", "--topic", topic, "--max-messages", 100, "--throughput", -1)
    wait_until(lambda: len(first.out.split()) + len(second.out.split()) == 100, "a hundred records")
    state = tool("consumer-groups", "--describe", "--group", group, "--state").out
    assert "uniform" in state
    assert "Stable" in state
    assert re.search(rf"^{group} +Consumer", tool("groups", "--list").out, re.MULTILINE)
    old = begin("verifiable-consumer", "--topic", topic, "--group-id", group)
    wait_until(lambda: sorted(members()) == ["1", "1", "2"], "a classic member beside them")
    assert second.stop().code == 0
    assert first.stop().code == 0
    wait_until(lambda: holds(old, cooperative=False) == [0, 1, 2, 3], "all for the classic one")
    assert re.search(rf"^{group} +Classic", tool("groups", "--list").out, re.MULTILINE)
    assert old.stop().code == 0


@pytest.mark.exercises("commits", "admin-groups")
def test_consumer_groups(tool: Tool, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(), unique("group")
    tool("console-producer", "--topic", topic, input=b"a\nb\nc\n")
    read = ("console-consumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages")
    assert tool(*read, 2).lines == ["a", "b"]
    assert tool(*read, 1).lines == ["c"]
    assert group in tool("consumer-groups", "--list").lines
    assert lines_of(rf"^({group}) +Classic +consumer", tool("groups", "--list")) == [(group,)]
    assert lines_of(rf"^{group} .* Empty +", tool("consumer-groups", "--describe", "--group", group, "--state")) == [()]
    back = tool("consumer-groups", "--group", group, "--topic", topic, "--reset-offsets", "--to-offset", 1, "--execute")
    assert lines_of(rf"^{group} +{topic} +0 +(\d+)", back) == [("1",)]
    assert tool(*read, 2).lines == ["b", "c"]


@pytest.mark.exercises("commits", "admin-groups")
def test_groups_and_offsets_are_deleted_and_reset(
    tool: Tool, begin: Callable[..., RunningTool], new_topic: NewTopicNamed, unique: Unique, tmp_path: Path
) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    tool("console-producer", "--topic", topic, input=b"a\nb\nc\nd\n")

    def reset(*how: object) -> list[tuple[str, ...]]:
        """The offsets that the tool says it set, by partition."""
        done = tool("consumer-groups", "--group", group, "--reset-offsets", *how, "--execute")
        return sorted(lines_of(rf"^{group} +{topic} +(\d) +(\d+)", done))

    of_topic = ("--topic", topic)
    ends = [(p, str(offset)) for p, offset in sorted(end_offsets(tool, topic).items())]
    assert [(int(p), offset) for p, offset in reset(*of_topic, "--to-latest")] == ends
    assert reset(*of_topic, "--to-earliest") == [("0", "0"), ("1", "0")]
    assert reset("--topic", f"{topic}:1", "--to-datetime", "2020-01-01T00:00:00.000") == [("1", "0")]
    offsets = tmp_path / "offsets.csv"
    offsets.write_text(f"{topic},0,0\n")
    assert reset("--from-file", offsets) == [("0", "0")]
    member = begin("console-consumer", "--topic", topic, "--group", group)
    member.wait_for("b")
    active = tool(
        "consumer-groups", "--group", group, *of_topic, "--reset-offsets", "--to-latest", "--execute", code=None
    )
    assert "inactive" in active.out + active.err
    held = tool("consumer-groups", "--group", group, *of_topic, "--delete-offsets", code=None)
    assert re.search(rf"{topic} +\d .*(GroupSubscribedToTopic|actively subscribed)", held.out + held.err)
    kept = tool("consumer-groups", "--group", group, "--delete", code=None)
    assert "GroupNotEmptyException" in kept.out + kept.err
    member.stop()
    gone = tool("consumer-groups", "--group", group, "--topic", f"{topic}:0", "--delete-offsets")
    assert lines_of(rf"^{topic} +(\d) .*(Successful)", gone) == [("0", "Successful")]
    assert lines_of(rf"^{group} +{topic} +(\d) ", tool("consumer-groups", "--describe", "--group", group)) == [("1",)]
    assert "was successful" in tool("consumer-groups", "--group", group, "--delete").out
    assert group not in tool("consumer-groups", "--list").lines


@pytest.mark.exercises("admin-topics")
def test_topics_and_configs(tool: Tool, unique: Unique) -> None:
    topic = unique("admin")
    tool("topics", "--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=86400000")
    assert "already exists" in tool("topics", "--create", "--topic", topic, code=1).out
    tool("topics", "--create", "--topic", topic, "--if-not-exists")
    assert "InvalidTopicException" in tool("topics", "--create", "--topic", "bad name", code=1).err
    tool("topics", "--alter", "--topic", topic, "--partitions", 4)
    wait_until(lambda: topic in tool("topics", "--list").lines, "listed")
    wait_until(
        lambda: len(lines_of(r"Partition: (\d)", tool("topics", "--describe", "--topic", topic))) == 4, "4 parts"
    )
    described = tool("topics", "--describe", "--topic", topic).out
    assert re.search(r"PartitionCount: 4\tReplicationFactor: 1\tConfigs: .*retention.ms=86400000", described)
    assert tool("topics", "--describe", "--unavailable-partitions").out == ""

    entity = ("--entity-type", "topics", "--entity-name", topic)
    change = (
        "--add-config",
        "max.message.bytes=2000000,cleanup.policy=[compact,delete]",
        "--delete-config",
        "retention.ms",
    )
    tool("configs", *entity, "--alter", *change)
    wait_until(lambda: "max.message.bytes=2000000" in tool("configs", *entity, "--describe").out, "the new setting")
    now = tool("configs", *entity, "--describe").out
    assert "cleanup.policy=compact,delete " in now
    assert "retention.ms" not in now
    refused = tool("configs", *entity, "--alter", "--add-config", "retention.ms=soon", code=1)
    assert "retention.ms" in refused.out + refused.err
    tool("topics", "--delete", "--topic", topic)
    wait_until(lambda: topic not in tool("topics", "--list").lines, "gone")


@pytest.mark.exercises("admin-topics")
def test_the_broker_itself(tool: Tool, bootstrap: str) -> None:
    versions = tool("broker-api-versions").out
    assert versions.startswith(f"{bootstrap} (id: ")
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to 18 [usable: 18]" in versions
    described = tool(
        "configs",
        "--entity-type",
        "brokers",
        "--entity-name",
        versions.split("id: ")[1].split()[0],
        "--describe",
        "--all",
    )
    assert "group.min.session.timeout.ms=1000" in described.out
