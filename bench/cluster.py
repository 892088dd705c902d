#!/usr/bin/env python3
"""Compares three Tidelog brokers with three Kafka nodes: replicated writes, fail-over, catch-up.

    bench/cluster.py [--rounds N] [--only LIST] [--without-kafka] [--tidelog SOURCE] [--data DIR] [--json FILE]
                     [--markdown FILE]

Both clusters run at the same time on this machine, and each row is measured in one and then in the other, in every
round in the other order. So other work of the machine affects both alike; compare only ratios. Topics have three
replicas and min.insync.replicas=2, producers use acks=all. The logs are on /dev/shm. Rows (--only takes their names):

    small, 1k, bulk   requests of 1 record of 100 B, of 16 records of 1 KB, and of 1 MB: a bounded number in flight
    rate              1,000 small requests per second; a time counts from when the request was due
    creation          a topic with 1,000 partitions: until every replica is in sync and has a first record
    fail-over         kill -9 of one broker: until each of its partitions has another leader that has acknowledged a
                      record; the cluster is idle. Only for the last round
    fail-over-loaded  the same while the other brokers get 500 small requests per second. Only Tidelog
    catch-up          a broker is paused for 12 s while 500 MB are written: MB/s until it is in sync again
    processes         requests of one record with acks=1 on one and on two Tidelog processes of this machine
    topics            1,000 topics with 10 partitions: until they are created, until each partition has acknowledged a
                      record, and after kill -9 of a broker until all its partitions have another leader. Runs only if
                      --only names it

The table shows the median of the rounds, and the least and greatest value as the spread. `cpu` is the CPU time of
the cluster for one request, in microseconds. --tidelog takes another checkout, to compare two versions of the source.
Needs gcc; Java and mvn for Kafka. It stops everything that it starts, and removes everything that it writes.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import compare
from round_trips import batch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "src"))

from tidelog.wire.message import Message
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDELOG_PORT, KAFKA_PORT = 24300, 24400
REPLICAS = 3
PARTITIONS = 12
MANY_PARTITIONS = 1000
TOPICS, PARTITIONS_OF_TOPIC = 1000, 10
PAUSE_S = 12.0
"""Longer than the time after which a broker that does not answer leaves the in-sync replicas, in seconds."""
CATCH_UP_MB = 500
WAIT_MAX_S = 400.0
KAFKA_SETTINGS = (
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "log.segment.delete.delay.ms=100",
    # The nodes of Kafka end when they do not find their quorum in time, as on a busy machine.
    "initial.broker.registration.timeout.ms=300000",
    "controller.quorum.election.timeout.ms=10000",
    "controller.quorum.fetch.timeout.ms=20000",
    "controller.quorum.request.timeout.ms=20000",
)
# name: (bytes of a batch, records, requests, requests in flight on a connection, connections, requests per second)
WRITES = {
    "small": (161, 1, 20_000, 1, 96, 0),
    "1k": (16_384, 16, 6_000, 2, 12, 0),
    "bulk": (1_000_000, 1000, 300, 1, 12, 0),
    "rate": (161, 1, 5_000, 50, 12, 1000),
}
Values = dict[str, float]


M = TypeVar("M", bound=Message)


def ask(port: int, request: Message, response: type[M], version: int, timeout_s: float = 30) -> M:
    """Send one request of a version that is not flexible. Raises OSError."""
    try:
        data = compare.exchange(port, request.api_key, version, request.encode(version), timeout_s)
    except struct.error:
        raise OSError("the connection was closed") from None
    return response.decode(data, 0, version)[0]


class Cluster:
    """A cluster of brokers on this machine, in processes of their own."""

    def __init__(self, name: str, command: list[str], ports: list[int], data: pathlib.Path) -> None:
        self.name, self.ports, self.data = name, ports, data
        data.mkdir(parents=True)
        log = open(f"{data}.log", "w")  # noqa: SIM115 - open while the cluster runs
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.wait_for(lambda: all(len(self.brokers(port)) == len(ports) for port in ports), "start")

    def wait_for(self, holds: Callable[[], bool], what: str, pause_s: float = 0.05) -> float:
        """Return the seconds until `holds()`. A broker that does not answer means that it does not hold yet."""
        began = time.monotonic()
        while time.monotonic() - began < WAIT_MAX_S:
            if self.process.poll() is not None:
                log = pathlib.Path(f"{self.data}.log").read_text().splitlines()
                raise SystemExit("\n".join([*log[-10:], f"{self.name} ended"]))
            with contextlib.suppress(OSError):
                if holds():
                    return time.monotonic() - began
            time.sleep(pause_s)
        raise SystemExit(f"{self.name}: {what} took longer than {WAIT_MAX_S} s")

    def brokers(self, port: int) -> dict[int, int]:
        """Return the port of each broker that is alive, by its id."""
        request = MetadataRequest(topics=[])
        return {b.node_id: b.port for b in ask(port, request, MetadataResponse, 4, 5).brokers}

    def topic(self, name: str, port: int) -> dict[int, tuple[int, list[int]]]:
        """Return the leader and the in-sync replicas of each partition."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        [topic] = ask(port, request, MetadataResponse, 4).topics
        return {p.partition_index: (p.leader_id, p.isr_nodes) for p in topic.partitions}

    def create(self, name: str, partitions: int, replicas: int = REPLICAS) -> None:
        """Create a topic, and wait until each partition has acknowledged a record."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
        [result] = ask(self.ports[0], CreateTopicsRequest([topic], 60_000), CreateTopicsResponse, 4, 90).topics
        if result.error_code:
            raise SystemExit(f"{self.name}: CreateTopics {name}: error code {result.error_code}")
        self.write_to_each(name, range(partitions), self.ports[0])

    def delete(self, name: str, port: int) -> None:
        ask(port, DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000), DeleteTopicsResponse, 3, 90)

    def write_to_each(self, name: str, partitions: Iterable[int], port: int, but: int | None = None) -> None:
        """Write one record to each partition with acks=all, and repeat for partitions without a leader. The broker
        `but` is known to be dead.
        """
        records, remaining = batch(1, 100), set(partitions)
        began = time.monotonic()
        while remaining:
            if time.monotonic() - began > WAIT_MAX_S:
                raise SystemExit(f"{self.name}: {len(remaining)} partitions of {name} take no record")
            try:
                ports = self.brokers(port)
                leaders: dict[int, list[int]] = {}
                for index, (leader, _) in self.topic(name, port).items():
                    if index in remaining and leader in ports and leader != but:
                        leaders.setdefault(leader, []).append(index)
                for leader, indexes in leaders.items():
                    with contextlib.suppress(OSError):
                        remaining -= self._write(ports[leader], name, indexes, records)
            except OSError:
                pass
            if remaining:
                time.sleep(0.005)

    def _write(self, port: int, name: str, indexes: list[int], records: bytes) -> set[int]:
        data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index, records) for index in indexes])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        [topic] = ask(port, request, ProduceResponse, 7).responses
        return {partition.index for partition in topic.partition_responses if not partition.error_code}

    def pid_of(self, port: int) -> int:
        """Return the process that listens on the port."""
        inodes = {
            fields[9]
            for sockets in ("tcp", "tcp6")  # Java listens with sockets of IPv6, also on addresses of IPv4
            for line in pathlib.Path(f"/proc/net/{sockets}").read_text().splitlines()[1:]
            if (fields := line.split())[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port
        }
        for pid in compare.process_tree(self.process.pid):
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                        return pid
        raise SystemExit(f"{self.name}: no process listens on {port}")

    def stop(self) -> None:
        pids = compare.process_tree(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.data, ignore_errors=True)


def tidelog_cluster(
    source: pathlib.Path, data: pathlib.Path, brokers: int, port: int, name: str = "tidelog"
) -> Cluster:
    command = ["env", f"PYTHONPATH={source / 'src'}", str(ROOT / ".venv/bin/python"), "-m", "tidelog", "start"]
    command += ["--brokers", str(brokers), "--listen", f"127.0.0.1:{port}", "--data", str(data)]
    return Cluster(name, command, [port + i for i in range(brokers)], data)


def kafka_cluster(data: pathlib.Path) -> Cluster:
    command = [str(ROOT / "script/kafka"), "start", "--nodes", "3", "--port", str(KAFKA_PORT), "--data", str(data)]
    for setting in KAFKA_SETTINGS:
        command += ["--set", setting]
    return Cluster("kafka", command, [KAFKA_PORT + 10 * i for i in range(3)], data)


def run_load(arguments: list[str]) -> str:
    result = subprocess.run([compare.build("load"), *arguments], capture_output=True, text=True, timeout=WAIT_MAX_S)
    if result.returncode:
        raise SystemExit(f"load {' '.join(arguments)[:200]}: {result.stderr}")
    return result.stdout


def load_arguments(cluster: Cluster, topic: str, row: tuple[int, int, int, int, int, int], acks: int) -> list[str]:
    size, records, requests, in_flight, connections, rate = row
    ports, leaders = cluster.brokers(cluster.ports[0]), cluster.topic(topic, cluster.ports[0])
    routes = [f"{ports[leader]}:{index}" for index, (leader, _) in sorted(leaders.items())]
    targets = [routes[i % len(routes)] for i in range(connections)]
    return ["leaders", str(acks), topic, *map(str, (size, records, requests, in_flight, rate)), *targets]


def write(cluster: Cluster, name: str, topic: str, acks: int = -1, replicas: int = REPLICAS) -> Values:
    row = WRITES[name]
    cluster.create(topic, PARTITIONS, replicas)
    arguments = load_arguments(cluster, topic, row, acks)
    compare.touch_memory(cluster.data.parent)
    busy = compare.cpu(cluster.process.pid)
    out = run_load(arguments)
    values = {"cpu us": (compare.cpu(cluster.process.pid) - busy) / row[2] * 1e6}
    for quantile in ("p50", "p99"):
        values[f"{quantile} us"] = float(re.search(rf"{quantile}=(\d+)us", out)[1])
    if not row[5]:
        figure, pattern = ("MB/s", r"([\d.]+) MB/s") if row[0] > 1000 else ("requests/s", r"(\d+) req/s")
        values[figure] = float(re.search(pattern, out)[1])
    cluster.delete(topic, cluster.ports[0])
    return values


def creation(cluster: Cluster, topic: str) -> Values:
    began = time.monotonic()
    cluster.create(topic, MANY_PARTITIONS)
    created = time.monotonic() - began
    cluster.wait_for(
        lambda: all(len(isr) == REPLICAS for _, isr in cluster.topic(topic, cluster.ports[0]).values()), "ISR"
    )
    values = {"first record s": created, "in sync s": time.monotonic() - began}
    time.sleep(2)
    busy = compare.cpu(cluster.process.pid)
    time.sleep(3)
    values["idle cpu %"] = (compare.cpu(cluster.process.pid) - busy) / 3 * 100
    values["RSS MB"] = compare.rss(cluster.process.pid)
    cluster.delete(topic, cluster.ports[0])
    return values


def victim_of(cluster: Cluster, port: int) -> tuple[int, int]:
    """Return id and port of a broker that is not the active controller."""
    if cluster.name == "kafka":  # its brokers name any of them as the controller
        command = [ROOT / "script/kafka", "tool", "metadata-quorum", "--bootstrap-server", f"127.0.0.1:{port}"]
        out = subprocess.run([*command, "describe", "--status"], capture_output=True, text=True, check=True).stdout
        controller = int(re.search(r"LeaderId:\s+(\d+)", out)[1])
    else:
        controller = ask(port, MetadataRequest(topics=[]), MetadataResponse, 4).controller_id
    return next((b, p) for b, p in cluster.brokers(port).items() if b != controller and p != port)


def fail_over(cluster: Cluster, topic: str, loaded: bool = False) -> Values:
    """Kill one broker, and wait until each of its partitions has another leader that acknowledges a record."""
    port = cluster.ports[0]
    cluster.create(topic, MANY_PARTITIONS)
    cluster.wait_for(lambda: all(len(isr) == REPLICAS for _, isr in cluster.topic(topic, port).values()), "ISR")
    victim, victim_port = victim_of(cluster, port)
    led = [index for index, (leader, _) in cluster.topic(topic, port).items() if leader == victim]
    load = None
    if loaded:
        cluster.create(f"{topic}-load", PARTITIONS)
        arguments = load_arguments(cluster, f"{topic}-load", (161, 1, 5000, 50, 12, 500), -1)
        arguments = [argument for argument in arguments if not argument.startswith(f"{victim_port}:")]
        load = threading.Thread(target=run_load, args=(arguments,))
        load.start()
        time.sleep(2)
    pid = cluster.pid_of(victim_port)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    elected = threading.Event()
    elected_s: list[float] = []

    def watch() -> None:
        def all_elected() -> bool:
            leaders = cluster.topic(topic, port)
            return all(leaders[index][0] not in (victim, -1) for index in led)

        cluster.wait_for(all_elected, "elections", 0.01)
        elected_s.append(time.monotonic() - began)
        elected.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    cluster.write_to_each(topic, led, port, but=victim)
    answered = time.monotonic() - began
    watcher.join()
    if load is not None:
        load.join()
    if cluster.name != "kafka":  # the supervisor starts the broker again
        cluster.wait_for(lambda: all(len(isr) == REPLICAS for _, isr in cluster.topic(topic, port).values()), "ISR")
    cluster.delete(topic, port)
    return {"leaders": len(led), "elected s": elected_s[0], "answered s": answered}


def topics(cluster: Cluster, prefix: str) -> Values:
    port = cluster.ports[0]
    names = [f"{prefix}-{number}" for number in range(TOPICS)]

    def states() -> list[tuple[int, list[int]]]:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        described = ask(port, request, MetadataResponse, 4, 90).topics
        return [(part.leader_id, part.isr_nodes) for topic in described for part in topic.partitions]

    def is_in_sync() -> bool:
        found = states()
        return len(found) == TOPICS * PARTITIONS_OF_TOPIC and all(len(isr) == REPLICAS for _, isr in found)

    began = time.monotonic()
    for first in range(0, TOPICS, 100):
        wanted = [CreatableTopic(name, PARTITIONS_OF_TOPIC, REPLICAS) for name in names[first : first + 100]]
        for result in ask(port, CreateTopicsRequest(wanted, 60_000), CreateTopicsResponse, 4, 90).topics:
            if result.error_code:
                raise SystemExit(f"{cluster.name}: CreateTopics {result.name}: error code {result.error_code}")
    values = {"created s": time.monotonic() - began}
    cluster.wait_for(is_in_sync, "ISR")
    values["in sync s"] = time.monotonic() - began
    began = time.monotonic()
    for name in names:
        cluster.write_to_each(name, range(PARTITIONS_OF_TOPIC), port)
    values["first records s"] = time.monotonic() - began
    values["RSS MB"] = compare.rss(cluster.process.pid)
    began = time.monotonic()
    states()
    values["Metadata ms"] = (time.monotonic() - began) * 1000
    victim, victim_port = victim_of(cluster, port)
    values["leaders"] = sum(leader == victim for leader, _ in states())
    began = time.monotonic()
    os.kill(cluster.pid_of(victim_port), signal.SIGKILL)
    cluster.wait_for(lambda: all(leader not in (victim, -1) for leader, _ in states()), "elections", 0.01)
    values["elected s"] = time.monotonic() - began
    if cluster.name != "kafka":  # the supervisor starts the broker again
        cluster.wait_for(is_in_sync, "ISR")
        values["in sync again s"] = time.monotonic() - began
    return values


def catch_up(cluster: Cluster, topic: str) -> Values:
    port = cluster.ports[0]
    cluster.create(topic, PARTITIONS)
    _, paused_port = victim_of(cluster, port)
    paused = cluster.pid_of(paused_port)
    os.kill(paused, signal.SIGSTOP)
    try:
        time.sleep(PAUSE_S)
        cluster.write_to_each(topic, range(PARTITIONS), port)
        row = (1_000_000, 1000, CATCH_UP_MB, 1, PARTITIONS, 0)
        run_load(load_arguments(cluster, topic, row, -1))
    finally:
        os.kill(paused, signal.SIGCONT)
    took = cluster.wait_for(
        lambda: all(len(isr) == REPLICAS for _, isr in cluster.topic(topic, port).values()), "catch-up", 0.02
    )
    cluster.delete(topic, port)
    return {"in sync s": took, "MB/s": CATCH_UP_MB / took}


def processes(source: pathlib.Path, root: pathlib.Path, round_: int) -> Values:
    """Return the throughput of two processes as a ratio to that of one, and the same for CPU time of a request."""
    figures = {}
    for brokers in (1, 2):
        cluster = tidelog_cluster(
            source, root / f"processes-{brokers}", brokers, TIDELOG_PORT + 50, f"{brokers} brokers"
        )
        try:
            write(cluster, "small", "warm", 1, 1)
            figures[brokers] = write(cluster, "small", f"row{round_}", 1, 1)
        finally:
            cluster.stop()
    one, two = figures[1], figures[2]
    return {
        "requests/s of one": one["requests/s"],
        "requests/s of two / one": two["requests/s"] / one["requests/s"],
        "cpu of two / one": two["cpu us"] / one["cpu us"],
    }


ROWS: dict[str, Callable[[Cluster, str], Values]] = {
    **{name: lambda cluster, topic, name=name: write(cluster, name, topic) for name in WRITES},  # type: ignore[misc]
    "creation": creation,
    "catch-up": catch_up,
    "fail-over-loaded": lambda cluster, topic: fail_over(cluster, topic, loaded=True),
    "fail-over": fail_over,
    "topics": topics,
}
Figures = dict[str, dict[str, dict[str, list[float]]]]
"""Row -> figure -> cluster -> the value of each round."""


def table(figures: Figures, names: list[str]) -> list[str]:
    lines = [f"| row | figure | {' | '.join(names)} | ratio |", "|---|---|" + "---:|" * (len(names) + 1)]
    for row, by_figure in figures.items():
        for figure, by_cluster in by_figure.items():
            cells = []
            for name in names:
                values = by_cluster.get(name, [])
                spread = f" ({min(values):,.4g} to {max(values):,.4g})" if len(values) > 1 else ""
                cells.append(f"{statistics.median(values):,.4g}{spread}" if values else "-")
            medians = [statistics.median(by_cluster[name]) for name in names if by_cluster.get(name)]
            ratio = f"{medians[0] / medians[1]:.2f}" if len(medians) == 2 and medians[1] else "-"
            lines.append(f"| {row} | {figure} | {' | '.join(cells)} | {ratio} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join([*list(ROWS)[:-1], "processes"]), help="rows, separated by commas")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--tidelog", type=pathlib.Path, default=ROOT, help="the checkout whose source is measured")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    parser.add_argument("--json", type=pathlib.Path, help="every figure of every round")
    parser.add_argument("--markdown", type=pathlib.Path, help="the table, for docs/performance.md")
    chosen = parser.parse_args()
    rows = chosen.only.split(",")
    root = pathlib.Path(tempfile.mkdtemp(prefix="cluster-", dir=chosen.data))
    figures: Figures = {}
    clusters: list[Cluster] = []

    def add(row: str, name: str, values: Values) -> None:
        for figure, value in values.items():
            figures.setdefault(row, {}).setdefault(figure, {}).setdefault(name, []).append(value)
            print(f"{name}, {row}, {figure}: {value:,.4g}", file=sys.stderr, flush=True)

    try:
        if set(rows) != {"processes"}:
            clusters.append(tidelog_cluster(chosen.tidelog, root / "tidelog", 3, TIDELOG_PORT))
            if not chosen.without_kafka:
                clusters.append(kafka_cluster(root / "kafka"))
        for round_ in range(chosen.rounds + 1):  # the first round warms up; only the writes need it
            for row in (row for row in ROWS if row in rows and (round_ or row in WRITES)):
                for cluster in clusters[:: -1 if round_ % 2 else 1]:
                    if cluster.name == "kafka" and row.startswith("fail-over") and row != "fail-over":
                        continue
                    if row == "fail-over" and cluster.name == "kafka" and round_ < chosen.rounds:
                        continue
                    values = ROWS[row](cluster, f"{row}-{round_}")
                    if round_:
                        add(row, cluster.name, values)
        for cluster in clusters:
            cluster.stop()
        clusters.clear()
        for round_ in range(chosen.rounds if "processes" in rows else 0):
            add("processes", "tidelog", processes(chosen.tidelog, root, round_))
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(root, ignore_errors=True)
    lines = table(figures, ["tidelog"] if chosen.without_kafka else ["tidelog", "kafka"])
    print("\n".join(lines))
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
