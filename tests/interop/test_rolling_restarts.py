"""Clients of every family go on while the brokers of a cluster are restarted, killed and given other partitions.

One cluster and one sequence of changes serve all families at the same time, since they mostly wait. Each test
judges one family.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop_harness.java_tools import JavaTools
from interop_harness.long_clients import LOG, Consumed, Family, LongConsumer, LongProducer, Place, families
from interop_harness.suite import LIMIT_S, wait_until
from interop_harness.target import missing_for_java
from tidelog.cli.cluster_requests import alter_reassignments, elect_leaders
from tidelog.client.blocking import Client
from tidelog.testing import Cluster

CLIENT = ["confluent-kafka", "kafka-python", "aiokafka", "Java kafka-clients and Kafka's tools"]
NAMES = ["confluent-kafka", "confluent-kafka, not idempotent", "kafka-python", "aiokafka"]
if os.environ.get("TIDELOG_FULL") == "1":
    NAMES.append("Java")  # three more JVMs: with them, the whole sequence takes minutes on two cores
PARTITIONS = 3
RACKS = ["a", "b", "c"]
PROGRESS = 10
"""After each change, every producer must get this many acknowledgements, and every consumer this many records."""
STEP_S = 60.0
"""Time limit for each change and for the progress after it, in seconds: only a client that is stuck reaches it."""
START_S = 150.0
"""Time limit for the start of all clients. A machine under load takes long to start the JVM and its tools."""
SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.num.partitions": 3,
}


class Ride(NamedTuple):
    """The clients of one family on one topic."""

    topic: str
    family: Family
    producer: LongProducer
    consumers: list[LongConsumer]

    def errors(self) -> list[str]:
        named = [f"producer: {error}" for error in self.producer.errors]
        for consumer in self.consumers:
            named += [f"consumer {consumer.group}: {error}" for error in consumer.errors]
        return named

    def counts(self) -> list[int]:
        return [len(self.producer.acknowledged), *(len(consumer.records) for consumer in self.consumers)]


@pytest.fixture(scope="module")
def rides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ride]]:
    """The rides of the selected tests after the whole sequence, with all clients stopped."""
    directory = tmp_path_factory.mktemp("clients")
    names = selected(request)
    java = request.getfixturevalue("java") if "Java" in names and not missing_for_java() else None
    handler = logging.FileHandler(directory / "librdkafka.log")
    LOG.addHandler(handler)
    LOG.propagate = False
    try:
        with Cluster(3, settings=SETTINGS, racks=RACKS) as cluster:
            yield run(cluster, names, java, directory)
    finally:
        LOG.removeHandler(handler)
        handler.close()


def selected(request: pytest.FixtureRequest) -> list[str]:
    """Return the families of the tests of this run, so that one family can be tested alone."""
    items = [item for item in request.session.items if item.path == request.path]
    return [name for name in NAMES if any(f"[{name}]" in item.name for item in items)]


def run(cluster: Cluster, names: list[str], java: JavaTools | None, directory: Path) -> dict[str, Ride]:
    """Start the clients, make all changes, and stop the clients."""
    topics = {name: "".join(c if c.isalnum() else "-" for c in name) for name in names}
    create_topics(cluster, list(topics.values()))
    rides = {}
    for number, (name, family) in enumerate(families(java, directory).items()):
        if name in names:
            topic = topics[name]
            consumers = [
                make(cluster.bootstrap, topic, f"{topic}-group-{at}", RACKS[(number + at) % 3])
                for at, make in enumerate(family.consumers)
            ]
            rides[name] = Ride(topic, family, family.producer(cluster.bootstrap, topic), consumers)
    try:
        change(rides, "the start", lambda: None, START_S)
        for broker in cluster.numbers:
            change(rides, f"the stop of broker {broker}", lambda broker=broker: cluster.stop(broker))
            change(rides, f"the start of broker {broker}", lambda broker=broker: start(cluster, broker))
        leader = leader_of(cluster, rides)
        change(rides, f"kill -9 of broker {leader}", lambda: cluster.kill(leader))
        change(rides, f"the start of broker {leader}", lambda: start(cluster, leader))
        change(rides, "a preferred election", lambda: elect(cluster))
        change(rides, "the removal of a replica", lambda: reassign(cluster, rides, [[2, 3], [3, 1], [1, 2]]))
        change(rides, "the addition of a replica", lambda: reassign(cluster, rides, [[3, 2, 1], [1, 3, 2], [2, 1, 3]]))
        for ride in rides.values():
            ride.producer.stop()
        for ride in rides.values():
            wait_until(lambda ride=ride: is_complete(ride), f"all records of {ride.topic}: {ride.errors()}", STEP_S)
    finally:
        for ride in rides.values():
            ride.producer.stop()
            for consumer in ride.consumers:
                consumer.stop()
    for ride in rides.values():
        LOGS[ride.topic] = read_log(cluster, ride.topic)
    return rides


LOGS: dict[str, list[Consumed]] = {}
"""The whole log of each topic at the end."""


def create_topics(cluster: Cluster, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=LOG)
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
        future.result(LIMIT_S)


def change(rides: dict[str, Ride], name: str, make: Callable[[], None], limit_s: float = STEP_S) -> None:
    """Make a change in the cluster, and wait until every client has gone on after it."""
    began = time.monotonic()
    make()
    made = time.monotonic()
    before = {ride.topic: ride.counts() for ride in rides.values()}

    def behind() -> list[str]:
        """The clients that have not gone on, with their numbers of records before and now, and their errors."""
        return [
            f"{ride.topic}: {before[ride.topic]} -> {ride.counts()} {ride.errors()}"
            for ride in rides.values()
            if any(now < then + PROGRESS for then, now in zip(before[ride.topic], ride.counts(), strict=True))
        ]

    deadline = time.monotonic() + limit_s
    while behind():
        assert time.monotonic() < deadline, f"{limit_s:.0f} s after {name} some clients are stuck: {behind()}"
        time.sleep(0.05)
    print(f"{name}: made in {made - began:.1f} s, all clients went on {time.monotonic() - made:.1f} s later")


def start(cluster: Cluster, broker: int) -> None:
    cluster.start(broker)
    cluster.wait_until_in_sync(STEP_S)


def leader_of(cluster: Cluster, rides: dict[str, Ride]) -> int:
    """Return the leader of the first topic's first partition."""
    topic = next(iter(rides.values())).topic
    with Client(cluster.bootstrap) as client:
        return client.topics([topic])[topic].leaders[0].broker_id


def elect(cluster: Cluster) -> None:
    with Client(cluster.bootstrap) as client:
        assert not [election.error for election in elect_leaders(client, None, unclean=False) if election.error]


def reassign(cluster: Cluster, rides: dict[str, Ride], replicas: list[list[int]]) -> None:
    """Give the partitions of all topics these replicas, and wait until they have them."""
    wanted: dict[tuple[str, int], list[int] | None] = {
        (ride.topic, partition): brokers for ride in rides.values() for partition, brokers in enumerate(replicas)
    }
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=LOG)
    with Client(cluster.bootstrap) as client:
        assert alter_reassignments(client, wanted) == {}

    def moved() -> bool:
        topics = admin.list_topics(timeout=LIMIT_S).topics
        for (topic, partition), brokers in wanted.items():
            state = topics[topic].partitions[partition]
            if not sorted(state.replicas) == sorted(state.isrs) == sorted(brokers or []):
                return False
        return True

    wait_until(moved, f"the replicas {replicas}", STEP_S)


def is_complete(ride: Ride) -> bool:
    return all(
        set(ride.producer.acknowledged) <= {record.value for record in consumer.records} for consumer in ride.consumers
    )


def read_log(cluster: Cluster, topic: str) -> list[Consumed]:
    """Return every record of the topic, partition by partition, in order."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"}, logger=LOG)
    found: list[Consumed] = []
    try:
        for partition in range(PARTITIONS):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), LIMIT_S)
            consumer.assign([TopicPartition(topic, partition, 0)])
            deadline = time.monotonic() + LIMIT_S
            next_offset = 0
            while next_offset < end:
                assert time.monotonic() < deadline, f"{topic}-{partition} cannot be read to its end {end}"
                for message in consumer.consume(1000, 0.1):
                    key, value, offset = message.key(), message.value(), message.offset()
                    assert message.error() is None, message.error()
                    assert isinstance(key, bytes)
                    assert isinstance(value, bytes)
                    assert offset is not None
                    found.append(Consumed(Place(partition, offset), key.decode(), int(value)))
                    next_offset = offset + 1
    finally:
        consumer.close()
    return found


def by_key(records: list[Consumed]) -> dict[str, list[int]]:
    """Return the values of each key, in order, without those that were read before."""
    values: dict[str, dict[int, None]] = defaultdict(dict)
    for record in records:
        values[record.key][record.value] = None
    return {key: list(found) for key, found in values.items()}


@pytest.mark.tidelog_only
@pytest.mark.timeout(600)  # the first test includes the whole sequence, on a machine under load
@pytest.mark.exercises("rolling")
@pytest.mark.parametrize("name", NAMES)
def test_clients_go_on(name: str, rides: dict[str, Ride]) -> None:
    """No error reaches the application. No acknowledged record is lost, or is twice in the log, or out of order."""
    if name not in rides:
        pytest.skip(f"Kafka's Java tools cannot run here: {missing_for_java()}")
    ride = rides[name]
    assert ride.errors() == []
    acknowledged, log = ride.producer.acknowledged, LOGS[ride.topic]
    assert len(acknowledged) == max(acknowledged) + 1
    log_values = {record.place: record.value for record in log}
    misplaced = [(value, place) for value, place in acknowledged.items() if log_values.get(place) != value]
    assert misplaced == [], "acknowledged records that are not where the broker said"
    for consumer in ride.consumers:
        wrong = [record for record in consumer.records if log_values.get(record.place) != record.value]
        assert wrong == [], "consumed records that are not in the log"
    if ride.family.idempotent:
        values = [record.value for record in log]
        assert len(values) == len(set(values)), "records are in the log twice"
        for records in (log, *(consumer.records for consumer in ride.consumers)):
            assert all(values == sorted(values) for values in by_key(records).values()), "records out of order"
