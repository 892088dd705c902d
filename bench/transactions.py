"""Measures transactions: throughput by size, latency from end to end, and the cost of idle transactional ids.

    .venv/bin/python bench/transactions.py [--against kafka] [--brokers 1|3] [--seconds S] [--ids N] [--json]
    .venv/bin/python bench/transactions.py --bootstrap HOST:PORT --pid PID

Without --bootstrap, Tidelog runs in a separate process; with `--against kafka`, Apache Kafka (script/kafka) is measured
after it in the same run. With `--brokers 3` both are clusters of three brokers, with three replicas of each topic and
min.insync.replicas=2, and their logs are on /dev/shm. Compare figures of one run only. The client is confluent-kafka in
this process.

- throughput: records of 100 bytes per second, in transactions of 1, 10, 100 and 1000 records, and of the same producer
  without transactions (idempotent, acks=all). Each transaction is committed before the next one begins.
- latency: a producer writes a record every 2 ms and commits every 100 ms; a read_committed consumer measures the time
  from `produce` until it has the record. Half of the interval between two commits is part of the latency.
- idle ids: memory and CPU of the brokers before and after so many transactional ids were initialized.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import cluster
from tidelog.client.blocking import Client
from tidelog.client.cluster import Address
from tidelog.client.operations import Ask, Request
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

ROOT = Path(__file__).parents[1]
SIZES = (1, 10, 100, 1000)
VALUE = bytes(100)
PARTITIONS = 3
COMMIT_S = 0.1
RECORD_S = 0.002
IN_FLIGHT = 100
"""Number of InitProducerId requests that are sent before the first answer is awaited."""
QUIET = {"log_level": 0}


class Target(NamedTuple):
    name: str
    bootstrap: str
    pids: list[int]
    replicas: int = 1


@contextmanager
def tidelog() -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="bench-transactions-") as data:
        command = [sys.executable, "-m", "tidelog", "start", "--listen", "127.0.0.1:0", "--data", data]
        process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield Target("tidelog", process.stdout.readline().split(" listening on ")[1].split()[0], [process.pid])
        finally:
            process.terminate()
            process.wait()


@contextmanager
def kafka(port: int) -> Iterator[Target]:
    replicas = ["transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1"]
    options = [word for setting in replicas for word in ("--set", setting)]
    command = [str(ROOT / "script/kafka"), "start", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready: "):
                yield Target("kafka", line.split()[1], [int(line.rsplit(" ", 1)[1])])
                return
        raise SystemExit("Kafka does not start")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextmanager
def three_brokers(name: str) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="bench-transactions-", dir="/dev/shm") as directory:
        data = Path(directory) / name
        if name == "kafka":
            brokers = cluster.kafka_cluster(data)
        else:
            brokers = cluster.tidelog_cluster(ROOT, data, cluster.REPLICAS, cluster.TIDELOG_PORT)
        try:
            bootstrap = ",".join(f"127.0.0.1:{port}" for port in brokers.ports)
            pids = [brokers.pid_of(port) for port in brokers.ports]
            yield Target(f"{name}, three brokers", bootstrap, pids, cluster.REPLICAS)
        finally:
            brokers.stop()


def create(target: Target, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, **QUIET})
    settings = {"min.insync.replicas": "2"} if target.replicas > 1 else {}
    admin.create_topics([NewTopic(topic, PARTITIONS, target.replicas, config=settings)])[topic].result(60)


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 1, **QUIET}
    producer = Producer(settings)
    producer.init_transactions(120)
    return producer


def throughput(target: Target, size: int, seconds: float) -> float:
    """Return records per second in transactions of `size` records; with size 0, without transactions."""
    topic, bootstrap = f"throughput-{size}", target.bootstrap
    create(target, topic)
    if size:
        producer = transactional(bootstrap, topic)
    else:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, **QUIET})
    written = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        if size:
            producer.begin_transaction()
        for number in range(size or 1000):
            while True:
                try:
                    producer.produce(topic, VALUE, partition=(written + number) % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.01)
        written += size or 1000
        if size:
            producer.commit_transaction(60)
        else:
            producer.poll(0)
    producer.flush(60)
    return written / (time.perf_counter() - began)


def latencies_ms(target: Target, seconds: float) -> list[float]:
    """Return the time from `produce` to the consumer for each record, in order."""
    topic, bootstrap = "latency", target.bootstrap
    create(target, topic)
    producer = transactional(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 500,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    latencies: list[float] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            for record in consumer.consume(1000, 0.05):
                if record.error() is None:
                    latencies.append((time.perf_counter_ns() - int(record.value() or b"0")) / 1e6)

    reader = threading.Thread(target=read)
    reader.start()
    end = time.perf_counter() + seconds
    written = 0
    while time.perf_counter() < end:
        producer.begin_transaction()
        commit_at = time.perf_counter() + COMMIT_S
        while time.perf_counter() < commit_at:
            producer.produce(topic, b"%d" % time.perf_counter_ns(), partition=written % PARTITIONS)
            producer.poll(0)
            written += 1
            time.sleep(RECORD_S)
        producer.commit_transaction(60)
    deadline = time.perf_counter() + 10
    while len(latencies) < written and time.perf_counter() < deadline:
        time.sleep(0.01)
    ended.set()
    reader.join()
    consumer.close()
    return latencies


class Usage(NamedTuple):
    resident_mib: float
    cpu_s: float


def usage(pids: list[int]) -> Usage:
    used = [usage_of_process(pid) for pid in pids]
    return Usage(sum(each.resident_mib for each in used), sum(each.cpu_s for each in used))


def usage_of_process(pid: int) -> Usage:
    status = Path(f"/proc/{pid}/status").read_text()
    (resident,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Usage(int(resident.split()[1]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def coordinators_of(client: Client, names: list[str]) -> dict[str, Address]:
    """Return the coordinators of the transactional ids that have one now."""
    answer = client.ask_any(FindCoordinatorRequest(key_type=1, coordinator_keys=names), client.deadline())
    assert isinstance(answer, FindCoordinatorResponse)
    return {found.key: Address(found.host, found.port) for found in answer.coordinators if not found.error_code}


def idle_ids(target: Target, count: int, seconds: float) -> dict[str, float]:
    """Initialize transactional ids. Return the memory before and after, and the CPU of the idle brokers."""
    before = usage(target.pids)
    began = time.perf_counter()
    with Client(target.bootstrap) as client:
        names = [f"idle-{number}" for number in range(count)]
        while names:
            now, names = names[:IN_FLIGHT], names[IN_FLIGHT:]
            coordinators = coordinators_of(client, now)
            requests = [Request(coordinators[name], InitProducerIdRequest(name, 60_000)) for name in coordinators]
            deadline = client.deadline()
            answers = client.collect(client.send_all(Ask(requests), deadline), deadline)
            initialized = {
                name
                for name, answer in zip(coordinators, answers, strict=True)
                if isinstance(answer, InitProducerIdResponse) and not answer.error_code
            }
            names += [name for name in now if name not in initialized]  # their coordinators are not ready yet
    made_s = time.perf_counter() - began
    after = usage(target.pids)
    time.sleep(seconds)
    idle = usage(target.pids)
    return {
        "ids": count,
        "made_per_s": count / made_s,
        "resident_mib_before": before.resident_mib,
        "resident_mib_after": after.resident_mib,
        "cpu_percent_idle": 100 * (idle.cpu_s - after.cpu_s) / seconds,
    }


def measure(target: Target, seconds: float, ids: int) -> dict[str, Any]:
    plain = throughput(target, 0, seconds)
    by_size = {size: throughput(target, size, seconds) for size in SIZES}
    latencies = latencies_ms(target, seconds)
    percentiles = statistics.quantiles(latencies, n=100)
    return {
        "target": target.name,
        "idempotent_records_per_s": plain,
        "records_per_s_by_size": by_size,
        "latency_ms": {"p50": percentiles[49], "p99": percentiles[98], "max": max(latencies)},
        "idle": idle_ids(target, ids, seconds),
    }


def show(result: dict[str, Any]) -> None:
    plain = result["idempotent_records_per_s"]
    print(f"{result['target']}: {plain:,.0f} records/s without transactions")
    for size, rate in result["records_per_s_by_size"].items():
        print(f"  transactions of {size:>4} records: {rate:>10,.0f} records/s, {100 * rate / plain:5.1f} %")
    latency = result["latency_ms"]
    print(f"  latency: p50 {latency['p50']:.0f} ms, p99 {latency['p99']:.0f} ms, max {latency['max']:.0f} ms")
    idle = result["idle"]
    memory = idle["resident_mib_after"] - idle["resident_mib_before"]
    print(
        f"  {idle['ids']:,.0f} transactional ids: {idle['made_per_s']:,.0f} made/s, {memory:.1f} MiB,"
        f" idle CPU {idle['cpu_percent_idle']:.1f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", choices=["kafka"], help="measure Apache Kafka too, after Tidelog")
    parser.add_argument("--port", type=int, default=29092, help="of a single broker of Kafka")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1, help="brokers of each cluster")
    parser.add_argument("--bootstrap", help="a running broker, instead of a new one")
    parser.add_argument("--pid", type=int, help="its process, for memory and CPU")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each measurement")
    parser.add_argument("--ids", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    if arguments.bootstrap:
        if not arguments.pid:
            parser.error("--bootstrap needs --pid")
        results.append(
            measure(Target("broker", arguments.bootstrap, [arguments.pid]), arguments.seconds, arguments.ids)
        )
    else:
        with three_brokers("tidelog") if arguments.brokers > 1 else tidelog() as target:
            results.append(measure(target, arguments.seconds, arguments.ids))
        if arguments.against:
            with three_brokers("kafka") if arguments.brokers > 1 else kafka(arguments.port) as target:
                results.append(measure(target, arguments.seconds, arguments.ids))
    if arguments.json:
        print(json.dumps(results))
    else:
        for result in results:
            show(result)


if __name__ == "__main__":
    main()
