"""Quotas with real clients and Kafka's own tool, on Tidelog or on Apache Kafka.

A rate is measured over ten windows of a second at the least: by any moment no more has passed than the quota times the
seconds until then and ten (Kafka's eleven windows of one second), and the one request that goes over it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from kafka import KafkaProducer

from interop_harness.java_tools import JavaTools
from interop_harness.suite import NewTopicNamed, Unique

LIMIT_S = 60
BURST_S = 10
QUOTA = 100_000
RECORD = bytes(10_000)
RECORDS = 200
"""Twice what the burst lets through: ten seconds at the quota remain."""


def tidelog(bootstrap: str, *arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
    environment = os.environ | {"TIDELOG_BOOTSTRAP": bootstrap, "COLUMNS": "200"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stderr if code else ran.stdout


@contextmanager
def quota(bootstrap: str, client_id: str, **values: float) -> Iterator[None]:
    tidelog(bootstrap, "quota", "set", "--client-id", client_id, *(f"{k}={v}" for k, v in values.items()))
    until_told(bootstrap, client_id, present=True)
    try:
        yield
    finally:
        tidelog(bootstrap, "quota", "remove", "--client-id", client_id)


def until_told(bootstrap: str, client_id: str, *, present: bool) -> None:
    """Kafka's brokers take a change some time after it was answered."""
    deadline = time.monotonic() + LIMIT_S
    while bool(json.loads(tidelog(bootstrap, "quota", "list", "--client-id", client_id, "--json"))) is not present:
        assert time.monotonic() < deadline


def test_a_confluent_producer_is_slowed_down_to_its_quota(
    bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    """What it was told to wait is in its statistics, and no moment has seen more bytes than the quota allows."""
    topic, client_id = new_topic(partitions=1), unique("hog")
    throttles: list[float] = []

    def statistics(text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            throttles.append(broker["throttle"]["max"])

    with quota(bootstrap, client_id, producer_byte_rate=QUOTA):
        producer = Producer({
            "bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 0, "batch.num.messages": 1,
            "statistics.interval.ms": 500, "stats_cb": statistics,
        })  # fmt: skip
        acknowledged: list[float] = []
        failed: list[object] = []

        def delivered(error: object, message: object) -> None:
            acknowledged.append(time.monotonic())
            if error is not None:
                failed.append(error)

        began = time.monotonic()
        for _ in range(RECORDS):
            producer.produce(topic, RECORD, on_delivery=delivered)
        assert producer.flush(LIMIT_S) == 0
    assert not failed
    for count, at in enumerate(acknowledged, 1):
        assert count * len(RECORD) <= QUOTA * (at - began + BURST_S) + 2 * len(RECORD)
    assert acknowledged[-1] - began >= RECORDS * len(RECORD) / QUOTA - BURST_S
    assert max(throttles) > 0


def test_a_kafka_python_producer_is_slowed_down_to_its_quota(
    bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic, client_id = new_topic(partitions=1), unique("hog")
    with quota(bootstrap, client_id, producer_byte_rate=QUOTA):
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=client_id, batch_size=0)
        began = time.monotonic()
        sent = [producer.send(topic, RECORD) for _ in range(RECORDS)]
        for count, future in enumerate(sent, 1):
            future.get(LIMIT_S)
            assert count * len(RECORD) <= QUOTA * (time.monotonic() - began + BURST_S) + 2 * len(RECORD)
        took_s = time.monotonic() - began
        told = max(group.get("throttle-time-max", 0) for group in producer.metrics().values())
        producer.close()
    assert took_s >= RECORDS * len(RECORD) / QUOTA - BURST_S
    assert told > 0


def test_a_java_producer_is_slowed_down_to_its_quota(
    java: JavaTools, bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic, client_id = new_topic(partitions=1), unique("hog")
    with quota(bootstrap, client_id, producer_byte_rate=QUOTA):
        began = time.monotonic()
        ran = java.run(
            "producer-perf-test", "--topic", topic, "--num-records", RECORDS, "--record-size", len(RECORD),
            "--throughput", -1, "--bootstrap-server", bootstrap, "--print-metrics",
            "--command-property", f"client.id={client_id}",
        )  # fmt: skip
        took_s = time.monotonic() - began
    assert f"{RECORDS} records sent" in ran.out
    assert took_s >= RECORDS * len(RECORD) / QUOTA - BURST_S
    (line,) = [line for line in ran.out.splitlines() if "produce-throttle-time-max" in line]
    assert float(line.rpartition(":")[2]) > 0


def test_kafkas_configs_tool_on_clients_users_and_addresses(java: JavaTools, bootstrap: str, unique: Unique) -> None:
    name = unique("c")

    def configs(*arguments: str) -> str:
        return java.run("configs", "--bootstrap-server", bootstrap, *arguments).out

    client = ("--entity-type", "clients", "--entity-name", name)
    both = ("--entity-type", "users", "--entity-name", name, "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "203.0.113.9")
    added = configs("--alter", *client, "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    assert f"Completed updating config for client {name}." in added
    configs("--alter", *both, "--add-config", "consumer_byte_rate=2048")
    configs("--alter", *address, "--add-config", "connection_creation_rate=7")
    until_told(bootstrap, name, present=True)
    described = configs("--describe", *client)
    assert f"Quota configs for client-id '{name}' are" in described
    assert "producer_byte_rate=1024.0" in described
    assert "request_percentage=12.5" in described
    described = configs("--describe", *both)
    assert (
        f"Quota configs for user-principal '{name}', the default client-id are consumer_byte_rate=2048.0" in described
    )
    assert "connection_creation_rate=7.0" in configs("--describe", *address)
    configs("--alter", *client, "--delete-config", "producer_byte_rate,request_percentage")
    configs("--alter", *both, "--delete-config", "consumer_byte_rate")
    configs("--alter", *address, "--delete-config", "connection_creation_rate")
    until_told(bootstrap, name, present=False)
    assert configs("--describe", *client) == ""


def test_the_command_line(bootstrap: str, unique: Unique) -> None:
    name = unique("c")
    whose = ("--user", name, "--default-client-id")
    said = tidelog(bootstrap, "quota", "set", *whose, "producer_byte_rate=1.5MiB", "request_percentage=12.5")
    assert said == (f"producer_byte_rate, request_percentage are now set for the default client-id, user {name}.\n")
    until_told_of_user(bootstrap, name, 2)
    document = json.loads(tidelog(bootstrap, "quota", "list", "--user", name, "--json"))
    assert document == [{
        "entity": [{"type": "client-id", "name": None}, {"type": "user", "name": name}],
        "quotas": {"producer_byte_rate": 1572864.0, "request_percentage": 12.5},
    }]  # fmt: skip
    assert [line.split() for line in tidelog(bootstrap, "quota", "list", "--user", name).splitlines()] == [
        ["USER", "CLIENT", "ID", "IP", "QUOTA", "VALUE"],
        [name, "(default)", "-", "producer_byte_rate", "1572864"],
        [name, "(default)", "-", "request_percentage", "12.5"],
    ]
    tidelog(bootstrap, "quota", "remove", *whose, "request_percentage")
    until_told_of_user(bootstrap, name, 1)
    assert "has no request_percentage" in tidelog(bootstrap, "quota", "remove", *whose, "request_percentage", code=1)
    assert tidelog(bootstrap, "quota", "remove", *whose) == (
        f"producer_byte_rate is no longer set for the default client-id, user {name}.\n"
    )
    until_told_of_user(bootstrap, name, 0)
    assert "has no quotas" in tidelog(bootstrap, "quota", "remove", *whose, code=1)
    refused = tidelog(bootstrap, "quota", "set", "--client-id", name, "producer_byte_rate=0", code=1)
    assert "producer_byte_rate" in refused
    assert "greater than 0" in refused
    assert "no user, client id or address" in tidelog(bootstrap, "quota", "set", "producer_byte_rate=1", code=2)


def until_told_of_user(bootstrap: str, name: str, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = json.loads(tidelog(bootstrap, "quota", "list", "--user", name, "--json"))
        if sum(len(entry["quotas"]) for entry in found) == count:
            return
        assert time.monotonic() < deadline
