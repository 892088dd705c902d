"""`tidelog.testing.Cluster`: brokers that a test can kill, pause and start."""

import asyncio
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.testing import Broker, BrokerFailedError, Cluster

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": 20_000})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, str(value), on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(LIMIT_S) == 0
    assert not failures


def consume(cluster: Cluster, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", "auto.offset.reset": "earliest"})
    deadline = time.monotonic() + LIMIT_S
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            values.append(int(value))
    consumer.close()
    return values


def test_no_acknowledged_record_is_lost_when_a_broker_is_killed(cluster: Cluster) -> None:
    produce(cluster, "killed", range(50))
    for number in cluster.numbers:
        cluster.wait_until_in_sync()
        cluster.kill(number)
        assert number not in cluster.running
        produce(cluster, "killed", range(50 * number, 50 * number + 50))
        cluster.start(number)
    assert sorted(set(consume(cluster, "killed", 200))) == list(range(200))


def test_a_broker_keeps_its_port_and_its_data(cluster: Cluster) -> None:
    produce(cluster, "kept", range(10))
    address, pid = cluster.address(2), cluster.pid(2)
    cluster.restart(2)
    assert (cluster.address(2), cluster.pid(2) != pid) == (address, True)
    cluster.wait_until_in_sync()
    assert consume(cluster, "kept", 10) == list(range(10))


def test_a_broker_that_has_lost_its_data_fetches_all_records_again(cluster: Cluster) -> None:
    produce(cluster, "emptied", range(500))
    cluster.wait_until_in_sync()
    assert cluster.data is not None
    for number in cluster.numbers:  # one of them leads
        cluster.kill(number)
        shutil.rmtree(cluster.data / f"broker-{number}")
        cluster.start(number)
        cluster.wait_until_in_sync()
        logs = [(cluster.data / f"broker-{n}/emptied-0/{0:020}.log").read_bytes() for n in cluster.numbers]
        assert len(logs[0]) > 500 * 10
        assert logs == [logs[0]] * 3
    assert consume(cluster, "emptied", 500) == list(range(500))


def test_a_paused_broker_is_replaced_and_returns(cluster: Cluster) -> None:
    produce(cluster, "paused", range(10))
    cluster.wait_until_in_sync()
    cluster.pause(3)
    try:
        wait_until_out_of_sync(cluster)
        produce(cluster, "paused", range(10, 20))
    finally:
        cluster.resume(3)
    cluster.wait_until_in_sync()
    assert sorted(set(consume(cluster, "paused", 20))) == list(range(20))


def wait_until_out_of_sync(cluster: Cluster) -> None:
    """Wait until the cluster reports that a broker or a replica is missing, which takes as long as a lease."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            cluster.wait_until_in_sync(0)
        except TimeoutError as error:
            if "3" in str(error):
                return
        time.sleep(0.1)
    pytest.fail("the cluster has not noticed that a broker is paused")


def test_a_log_and_an_unknown_broker(cluster: Cluster) -> None:
    assert " started cluster=" in cluster.log(1)
    with pytest.raises(ValueError, match="there is no broker 4; the brokers are 1, 2, 3"):
        cluster.kill(4)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="at least one broker, not 0"):
        Cluster(0)
    with pytest.raises(ValueError, match=r"node\.id is set by the cluster"):
        Cluster(1, settings={"node.id": 7})
    with pytest.raises(RuntimeError, match="has not started"):
        _ = Cluster(1).bootstrap


def test_a_wrong_setting_is_named_and_nothing_remains() -> None:
    cluster = Cluster(2, settings={"num.partitions": 0})
    with pytest.raises(BrokerFailedError, match=r"num\.partitions"):
        cluster.start()
    assert (cluster.data, cluster.running) == (None, [])


def test_the_cause_of_a_failed_start_is_raised_although_a_broker_does_not_stop_cleanly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(text: str) -> None:
        raise BrokerFailedError(text)

    cluster = Cluster(1)
    monkeypatch.setattr(Broker, "start", lambda broker: fail("the port is in use"))
    monkeypatch.setattr(Broker, "stop", lambda broker: fail("it was killed"))
    monkeypatch.setattr(Broker, "is_started", True)
    with pytest.raises(BrokerFailedError, match="the port is in use") as raised:
        cluster.start()
    assert raised.value.__notes__ == ["another broker did not stop cleanly: it was killed"]
    assert cluster.data is None


def use_in_child(cluster: Cluster, bootstrap: str) -> None:
    """Run in a forked process: the cluster must not be touched."""
    cluster.stop()
    for change in (cluster.kill, cluster.pause, cluster.start):
        with pytest.raises(RuntimeError, match=bootstrap):
            change(1)
    os._exit(0)


def test_a_forked_process_leaves_the_cluster_alone(cluster: Cluster) -> None:
    child = multiprocessing.get_context("fork").Process(target=use_in_child, args=[cluster, cluster.bootstrap])
    child.start()
    child.join(LIMIT_S)
    assert child.exitcode == 0
    assert cluster.data is not None
    assert cluster.data.exists()
    with pytest.raises(TypeError, match="cannot be copied"):
        pickle.dumps(cluster)


PROGRAM = """
import asyncio, os, sys
from tidelog.testing import Cluster

async def main():
    async with Cluster(2) as cluster:
        print(cluster.data, cluster.pid(1), cluster.pid(2), flush=True)
        {then}

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("then", "code"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)],
    ids=["orderly", "raises", "killed"],
)
def test_nothing_remains_after_the_program(then: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(then=then)], stdout=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert ended.returncode == code
    directory, *pids = ended.stdout.split()
    assert Path(directory).exists() == (code < 0)
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}/status").exists() for pid in pids) and not all(map(is_zombie, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if code < 0:
        subprocess.run(["rm", "-r", directory], check=True)


def is_zombie(pid: str) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_cluster_in_an_event_loop() -> None:
    async def run() -> list[int]:
        async with Cluster(1) as cluster:
            await asyncio.to_thread(cluster.restart, 1)
            return cluster.running

    assert asyncio.run(run()) == [1]
