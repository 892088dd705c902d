"""Kafka's own tools for the administration of a cluster, with three brokers.

test_kafka_tools.py has the same tools with one broker, and all others.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop_harness.java_tools import START_S, JavaTools, Ran
from interop_harness.kafka_tools import bare
from interop_harness.suite import Unique, wait_until
from interop_harness.target import KAFKA
from tidelog.testing import Cluster

CLIENT = "Java kafka-clients and Kafka's tools"
pytestmark = [pytest.mark.timeout(600), pytest.mark.tidelog_only, pytest.mark.exercises("admin-topics", "admin-groups")]
IS_FULL = os.environ.get("TIDELOG_FULL") == "1"
SETTINGS = {"offsets.topic.num.partitions": 1, "auto.leader.rebalance.enable": False}
IN_SYNC_S = 60.0


class Tools:
    """Runs the tools against the cluster."""

    def __init__(self, java: JavaTools, cluster: Cluster) -> None:
        self._java, self.cluster = java, cluster

    def __call__(self, name: str, *arguments: object, code: int | None = 0) -> Ran:
        address = ["--bootstrap-server", self.cluster.bootstrap]
        words = [*arguments, *address] if bare(name) else [*address, *arguments]
        return self._java.run(name, *words, code=code)

    def shows(self, pattern: str, name: str, *arguments: object) -> None:
        """Repeat the command until its output matches. The tool may ask a broker that does not know the last change."""
        self._repeat(lambda output: re.search(pattern, output) is not None, f"{pattern!r} in", name, *arguments)

    def hides(self, text: str, name: str, *arguments: object) -> None:
        """Repeat the command until its output does not contain the text."""
        self._repeat(lambda output: text not in output, f"no {text!r} in", name, *arguments)

    def _repeat(self, is_expected: Callable[[str], bool], expected: str, name: str, *arguments: object) -> None:
        def matches() -> bool:
            ran = self(name, *arguments, code=None)
            return is_expected(ran.out + ran.err)

        wait_until(matches, f"{expected} the output of {name} {arguments}", IN_SYNC_S)

    def create(self, topic: str, assignment: str) -> None:
        self("topics", "--create", "--topic", topic, "--replica-assignment", assignment)
        self.cluster.wait_until_in_sync(IN_SYNC_S)

    def partitions(self, topic: str) -> dict[int, dict[str, str]]:
        """Return the columns of `kafka-topics --describe` by partition."""
        found: dict[int, dict[str, str]] = {}
        for line in self("topics", "--describe", "--topic", topic).lines:
            columns = dict(part.split(": ", 1) for part in line.strip().split("\t") if ": " in part)
            if "Partition" in columns:
                found[int(columns["Partition"])] = columns
        return found

    def until(self, topic: str, is_expected: Callable[[dict[int, dict[str, str]]], bool]) -> None:
        """Wait until the partitions are as expected; see `partitions`."""
        wait_until(lambda: is_expected(self.partitions(topic)), f"the expected partitions of {topic}", IN_SYNC_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def tools(java: JavaTools, cluster: Cluster) -> Iterator[Tools]:
    """The tools. After the test all brokers run, and all replicas are in sync."""
    java.run("cluster", "cluster-id", "--bootstrap-server", cluster.bootstrap, limit_s=START_S)
    yield Tools(java, cluster)
    for broker in cluster.numbers:
        if broker not in cluster.running:
            cluster.start(broker)
    cluster.wait_until_in_sync(IN_SYNC_S)


def written(directory: Path, name: str, content: dict[str, Any]) -> Path:
    path = directory / name
    path.write_text(json.dumps(content))
    return path


def plan(topic: str, *replicas: list[int]) -> dict[str, Any]:
    """Return a reassignment of the partitions 0, 1, ... of a topic."""
    partitions = [{"topic": topic, "partition": p, "replicas": brokers} for p, brokers in enumerate(replicas)]
    return {"version": 1, "partitions": partitions}


def test_topics_and_elections(tools: Tools, unique: Unique) -> None:
    """A topic with three replicas, while a broker and then a second one are away; then elections of all kinds."""
    topic, alone = unique("three"), unique("alone")
    tools("topics", "--create", "--topic", topic, "--partitions", 3, "--replication-factor", 3)
    refused = tools("topics", "--create", "--topic", unique("four"), "--replication-factor", 4, code=1)
    assert "InvalidReplicationFactorException" in refused.out + refused.err
    tools.create(alone, "3")
    described = tools.partitions(topic)
    assert sorted(described) == [0, 1, 2]
    assert {int(columns["Leader"]) for columns in described.values()} == {1, 2, 3}
    for columns in described.values():
        assert sorted(columns["Replicas"].split(",")) == sorted(columns["Isr"].split(",")) == ["1", "2", "3"]
    for state in ("under-replicated", "under-min-isr", "at-min-isr", "unavailable"):
        if IS_FULL or state != "at-min-isr":
            tools.hides(f"Topic: {topic}", "topics", "--describe", f"--{state}-partitions")

    tools.cluster.stop(3)
    tools.shows(rf"Topic: {topic}\tPartition: 2", "topics", "--describe", "--under-replicated-partitions")
    tools.shows(rf"Topic: {alone}\tPartition: 0\tLeader: none", "topics", "--describe", "--unavailable-partitions")
    tools.hides(f"Topic: {topic}", "topics", "--describe", "--under-min-isr-partitions")
    if IS_FULL:
        tools.shows(rf"Topic: {topic}\tPartition: 0", "topics", "--describe", "--at-min-isr-partitions")
        tools("topics", "--alter", "--topic", topic, "--partitions", 4)
    unclean = tools("leader-election", "--election-type", "unclean", "--topic", alone, "--partition", 0, code=None)
    assert "EligibleLeadersNotAvailableException" in unclean.out + unclean.err
    tools.cluster.stop(2)
    tools.shows(rf"Topic: {topic}\tPartition: 0", "topics", "--describe", "--under-min-isr-partitions")
    tools.cluster.start(2)
    tools.cluster.start(3)
    tools.cluster.wait_until_in_sync(IN_SYNC_S)

    assert {columns["Leader"] for columns in tools.partitions(topic).values()} != {"1", "2", "3"}
    preferred = next(p for p, columns in tools.partitions(topic).items() if columns["Replicas"][0] != columns["Leader"])
    one = tools("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", preferred)
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-{preferred}" in one.out
    tools("leader-election", "--election-type", "preferred", "--all-topic-partitions")
    tools.until(topic, lambda parts: all(c["Replicas"][0] == c["Leader"] for c in parts.values()))
    tools("leader-election", "--election-type", "unclean", "--all-topic-partitions")
    tools("topics", "--alter", "--topic", topic, "--partitions", 5)
    tools.until(topic, lambda parts: len(parts) == 5)
    tools("topics", "--delete", "--topic", topic)
    tools("topics", "--delete", "--topic", alone)
    tools.shows(rf"\A(?![\s\S]*(?:{topic}|{alone}))", "topics", "--list", "--exclude-internal")


def test_reassignments(tools: Tools, unique: Unique, tmp_path: Path) -> None:
    """Generate, execute, list, verify, cancel and throttle a reassignment."""
    topic = unique("moved")
    tools.create(topic, "1:2")
    # A throttled follower fetches 1 MB at once and then pauses for the whole window (11 s), so the move lasts minutes.
    tools("producer-perf-test", "--topic", topic, "--num-records", 30000, "--record-size", 1000, "--throughput", -1)
    topics = written(tmp_path, "topics.json", {"version": 1, "topics": [{"topic": topic}]})
    generated = tools(
        "reassign-partitions", "--generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2,3"
    )
    current, proposed = (json.loads(line) for line in generated.lines if line.startswith("{"))
    assert [part["replicas"] for part in current["partitions"]] == [[1, 2]]
    assert len(proposed["partitions"]) == 1

    back = written(tmp_path, "back.json", current)
    move = written(tmp_path, "move.json", plan(topic, [3, 1]))
    reassign = ("reassign-partitions", "--reassignment-json-file")
    slowly = tools(*reassign, move, "--execute", "--throttle", 1000)
    assert "The inter-broker throttle limit was set to 1000 B/s" in slowly.out
    assert f"Successfully started partition reassignment for {topic}-0" in slowly.out
    listed = tools("reassign-partitions", "--list").out
    assert re.search(rf"{topic}-0: replicas: .*adding: 3\. removing: 2\.", listed)
    assert "is still in progress" in tools(*reassign, move, "--verify").out
    configs = ("configs", "--describe", "--entity-type")
    tools.shows("leader.replication.throttled.replicas", *configs, "topics", "--entity-name", topic)
    if IS_FULL:
        again = tools(*reassign, move, "--execute", code=None)
        assert "Cannot execute because there is an existing partition assignment" in again.out + again.err
    cancelled = tools(*reassign, move, "--cancel")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled.out
    tools.until(topic, lambda parts: parts[0]["Replicas"] == "1,2")
    tools.hides("throttled", *configs, "topics", "--entity-name", topic)

    tools(*reassign, move, "--execute", "--throttle", 1000)
    faster = tools(*reassign, move, "--execute", "--additional", "--throttle", 100_000_000)
    assert "throttle limit was set to 100000000 B/s" in faster.out
    tools.shows(r"Reassignment of partition \S+-0 is completed", *reassign, move, "--verify")
    tools.until(topic, lambda parts: {p: c["Replicas"] for p, c in parts.items()} == {0: "3,1"})
    tools.hides("throttled", *configs, "topics", "--entity-name", topic)
    tools.hides("throttled", *configs, "brokers")
    tools(*reassign, back, "--execute")
    tools.shows(r"-0 is completed", *reassign, back, "--verify")
    tools("topics", "--delete", "--topic", topic)


def test_the_cluster_and_its_settings(tools: Tools, unique: Unique) -> None:
    topic, cluster = unique("kept"), tools.cluster
    tools.create(topic, "1:2:3,2:3:1")
    tools("producer-perf-test", "--topic", topic, "--num-records", 100, "--record-size", 10, "--throughput", -1)
    assert re.search(r"Cluster ID: [A-Za-z0-9_-]{22}", tools("cluster", "cluster-id").out)
    endpoints = tools("cluster", "list-endpoints").out
    assert len(re.findall(r"(?m)^[123] +127\.0\.0\.1 +\d+ .*unfenced +broker", endpoints)) == 3
    versions = tools("broker-api-versions").out
    assert all(f"{cluster.address(broker)} (id: {broker} rack: null" in versions for broker in cluster.numbers)
    assert "ElectLeaders(43)" in versions

    directories = json.loads(tools("log-dirs", "--describe", "--topic-list", topic).lines[-1])
    found = {
        (broker["broker"], part["partition"])
        for broker in directories["brokers"]
        for directory in broker["logDirs"]
        for part in directory["partitions"]
    }
    assert found == {(broker, f"{topic}-{part}") for broker in cluster.numbers for part in (0, 1)}
    ends = re.findall(rf"{topic}:\d:(\d+)", tools("get-offsets", "--topic", topic).out)
    assert sum(map(int, ends)) == 100

    everywhere = ("configs", "--entity-type", "brokers", "--entity-default")
    tools(*everywhere, "--alter", "--add-config", "log.retention.ms=86400000")
    for broker in cluster.numbers:
        describe = ("configs", "--entity-type", "brokers", "--entity-name", broker, "--describe", "--all")
        tools.shows(r"DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=86400000", *describe)
    tools("configs", "--entity-type", "brokers", "--entity-name", 2, "--alter", "--add-config", "log.roll.ms=3600000")
    tools.shows("log.roll.ms=3600000", "configs", "--entity-type", "brokers", "--entity-name", 2, "--describe")
    tools.hides("log.roll.ms", "configs", "--entity-type", "brokers", "--entity-name", 1, "--describe")
    tools(
        "configs", "--entity-type", "topics", "--entity-name", topic, "--alter", "--add-config", "retention.ms=1000000"
    )
    tools("configs", "--entity-type", "brokers", "--entity-name", 2, "--alter", "--delete-config", "log.roll.ms")
    tools(*everywhere, "--alter", "--delete-config", "log.retention.ms")
    tools.hides("log.retention.ms", *everywhere, "--describe")

    assert re.search(r"Feature: group\.version\s", tools("features", "describe").out)
    assert "upgraded to 1" in tools("features", "upgrade", "--feature", "group.version=1").out
    if IS_FULL:
        tools("features", "upgrade", "--feature", "eligible.leader.replicas.version=1")
        tools.shows(r"eligible\.leader\.replicas\.version.*FinalizedVersionLevel: 1", "features", "describe")


def test_groups_and_replicas(tools: Tools, unique: Unique) -> None:
    topic, group = unique("read"), unique("group")
    tools.create(topic, "1:2:3,2:3:1,3:1:2")
    tools("verifiable-producer", "--topic", topic, "--max-messages", 300, "--repeating-keys", 20)
    read = ("console-consumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", 300)
    assert len(tools(*read).lines) == 300
    described = tools("consumer-groups", "--describe", "--group", group).out
    assert len(re.findall(rf"{group} +{topic} +\d +(\d+) +\1 +0 ", described)) == 3
    state = tools("consumer-groups", "--describe", "--group", group, "--state").out
    assert re.search(r"127\.0\.0\.1:\d+ +\([123]\)", state)
    tools.cluster.restart(3)
    tools.cluster.wait_until_in_sync(IN_SYNC_S)
    assert group in tools("consumer-groups", "--list").lines
    tools("consumer-groups", "--delete", "--group", group)


def test_a_broker_is_unregistered(tools: Tools, unique: Unique) -> None:
    tools.create(unique("kept"), "1:2")
    tools.cluster.stop(3)
    assert "Broker 3 is no longer registered." in tools("cluster", "unregister", "--id", 3).out
    tools.shows(r"(?m)\A(?![\s\S]*^3 )", "cluster", "list-endpoints")
    tools.cluster.start(3)
    tools.cluster.wait_until_in_sync(IN_SYNC_S)
    tools.shows(r"(?m)^3 .*unfenced", "cluster", "list-endpoints")


def test_the_quorum_and_equal_replicas(tools: Tools, unique: Unique) -> None:
    topic = unique("equal")
    tools.create(topic, "1:2:3")  # the tool reports one partition only, perhaps one without records
    tools("producer-perf-test", "--topic", topic, "--num-records", 1000, "--record-size", 100, "--throughput", -1)
    status = tools("metadata-quorum", "describe", "--status").out
    assert re.search(r"LeaderId: +[123]\n", status)
    assert set(re.findall(r'"id": (\d)', status)) == {"1", "2", "3"}
    replication = tools("metadata-quorum", "describe", "--replication").out
    assert set(re.findall(r"(?m)^(\d)\s.*(?:Leader|Follower)", replication)) == {"1", "2", "3"}

    # The tool compares the checksums of all replicas, and goes on until it is stopped.
    command = [*KAFKA, "tool", "replica-verification", "--broker-list", tools.cluster.bootstrap]
    command += ["--topics-include", topic, "--report-interval-ms", "500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as verification:
        assert verification.stdout is not None
        try:
            reports = (line for line in verification.stdout if "max lag is" in line)
            report = next(line for line in reports if re.search(r"at offset [1-9]\d* ", line))
        finally:
            verification.terminate()
    assert re.search(rf"max lag is 0 for partition {topic}-0 at offset \d+ among 1 partitions", report)
