"""Files: Kafka's dump-log reads Tidelog's files without errors, and `tidelog log verify` reads Kafka's."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop_harness.java_tools import JavaTools, Ran
from interop_harness.suite import CODECS, LIMIT_S, NewTopicNamed, Unique, wait_until
from interop_harness.target import Target
from tidelog.testing import Broker
from transaction_harness.raw_producer import RawProducer

CLIENT = "Java kafka-clients and Kafka's tools"

COMPLAINTS = re.compile(
    r"mismatch|non-consecutive|is followed by|corrupt|error|exception|isvalid: false|out of order", re.IGNORECASE
)

RECORDS = 20_000


def fill(bootstrap: str, topic: str) -> None:
    """RECORDS records of 200 bytes in partition 0: every codec, idempotent and not."""
    for n, codec in enumerate(CODECS):
        settings = {
            "compression.type": codec,
            "enable.idempotence": n % 2 == 0,
            "batch.num.messages": 100,
            "linger.ms": 5,
        }
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        for number in range(RECORDS // len(CODECS)):
            producer.produce(topic, b"%0200d" % number, b"k%d" % number, 0, headers=[("codec", codec.encode())])
            producer.poll(0)
        assert producer.flush(LIMIT_S) == 0


def commit(bootstrap: str, group: str, topic: str, protocol: str = "classic") -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "group.protocol": protocol,
        }
    )
    try:
        consumer.subscribe([topic])
        assert consumer.poll(LIMIT_S) is not None
        consumer.commit(offsets=[TopicPartition(topic, 0, 42, "metadata")], asynchronous=False)
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of Tidelog's, stopped cleanly: topic `log` in three segments, commits of the group `readers`,
    and of `new-readers` of the consumer protocol; both once more as `gone` and `new-gone`, which were deleted."""
    data = tmp_path_factory.mktemp("data")
    settings = {"log.segment.bytes": 1 << 20, "log.index.interval.bytes": 4096}
    with Broker(process=True, data=data, settings=settings) as broker:
        fill(broker.bootstrap, "log")
        commit(broker.bootstrap, "readers", "log")
        commit(broker.bootstrap, "new-readers", "log", "consumer")
        commit(broker.bootstrap, "gone", "log")
        commit(broker.bootstrap, "new-gone", "log", "consumer")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        deleted = admin.delete_consumer_groups(["gone", "new-gone"])
        assert [future.result(LIMIT_S) for future in deleted.values()] == [None, None]
    assert len(list((data / "log-0").glob("*.log"))) >= 2
    return data


FIRST_OF_A_SEGMENT = re.compile(r"^Non-consecutive offsets in \S+\n(?: +-1 is followed by \d+\n)+", re.MULTILINE)
"""Said of every segment that does not begin at offset 0, Kafka's own too: it counts from -1 in each file."""


def dump(java: JavaTools, files: list[Path], *options: str) -> Ran:
    """Raises AssertionError when there is a complaint."""
    ran = java.run("dump-log", "--files", ",".join(map(str, files)), *options)
    said = FIRST_OF_A_SEGMENT.sub("", ran.err) + ran.out
    assert [line for line in said.splitlines() if COMPLAINTS.search(line)] == []
    return ran


@pytest.mark.tidelog_only
@pytest.mark.exercises("files")
def test_dump_log_reads_every_record(java: JavaTools, written: Path) -> None:
    ran = dump(java, sorted((written / "log-0").glob("*.log")), "--deep-iteration", "--print-data-log")
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", ran.out, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert {*re.findall(r"compresscodec: (\w+)", ran.out)} == {*CODECS}


@pytest.mark.tidelog_only
@pytest.mark.exercises("files")
@pytest.mark.parametrize("option", ["--index-sanity-check", "--verify-index-only", "--deep-iteration"])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_dump_log_reads_indexes(java: JavaTools, written: Path, suffix: str, option: str) -> None:
    files = sorted((written / "log-0").glob(f"*.{suffix}"))
    assert len(files) >= 2
    ran = dump(java, files, option)
    if option == "--index-sanity-check":
        assert ran.out.count("passed sanity check") == len(files)
    if option == "--deep-iteration":
        assert len(re.findall(r"^(?:offset|timestamp): \d+", ran.out, re.MULTILINE)) > len(files)


@pytest.mark.tidelog_only
@pytest.mark.exercises("files")
def test_dump_log_reads_producer_snapshots(java: JavaTools, written: Path) -> None:
    files = sorted((written / "log-0").glob("*.snapshot"))
    assert files
    assert "producerId: " in dump(java, files).out


@pytest.mark.tidelog_only
@pytest.mark.exercises("files")
def test_dump_log_decodes_the_groups(java: JavaTools, written: Path) -> None:
    ran = dump(java, sorted(written.glob("__consumer_offsets-*/*.log")), "--offsets-decoder")
    payloads = re.findall(r"^\| offset: .*? key: (\{.*?\}) payload: (\{.*\})$", ran.out, re.MULTILINE)
    read = [(json.loads(key), json.loads(payload)["data"]) for key, payload in payloads]
    consumer_kinds = {int(key["type"]) for key, _ in read if key["data"].get("groupId") == "new-readers"}
    assert {3, 5, 6, 7, 8} <= consumer_kinds
    decoded = [
        (key["data"], value) for key, value in read if int(key["type"]) <= 2 and key["data"]["group"] == "readers"
    ]
    commits = [(key, value) for key, value in decoded if "topic" in key]
    assert [(key["group"], key["topic"], key["partition"]) for key, _ in commits] == [("readers", "log", 0)] * len(
        commits
    )
    # librdkafka sends the NUL at the end of its string along; other clients' metadata is compared to the letter.
    assert (42, "metadata") in [(value["offset"], value["metadata"].rstrip("\0")) for _, value in commits]
    groups = [value for key, value in decoded if "topic" not in key]
    assert [value["protocolType"] for value in groups][1:] == ["consumer"] * (len(groups) - 1)  # it begins empty
    assert groups[-1]["members"] == []


@pytest.fixture(scope="module")
def transactions(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of Tidelog's with a transactional id in each state, at each level of transaction.version."""
    data = tmp_path_factory.mktemp("transactions")
    settings = {"transactional.id.expiration.ms": 1000, "transaction.state.log.num.partitions": 2} | {
        f"transaction.{name}.transaction.cleanup.interval.ms": 100 for name in ("abort.timed.out", "remove.expired")
    }
    with Broker(process=True, data=data, settings=settings) as broker, ExitStack() as stack:
        bootstrap = broker.bootstrap

        def producer(name: str, **options: int) -> RawProducer:
            raw = stack.enter_context(RawProducer(bootstrap, name, **options))
            raw.initialize()
            return raw

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("tx", 2)])["tx"].result(LIMIT_S)
        for level in (2, 1, 0):
            if level < 2:
                feature = f"transaction.version={level}"
                java.run("features", "--bootstrap-server", bootstrap, "downgrade", "--feature", feature)
            producer(f"committed-{level}").transaction([("tx", 0, b"a"), ("tx", 1, b"b")])
            producer(f"aborted-{level}").transaction([("tx", 0, b"c")], commit=False)
            late = producer(f"late-{level}", timeout_ms=300)
            assert late.add("tx", 1) == 0
            if level == 2:
                options = ["--num-records", 50, "--record-size", 9, "--throughput", -1, "--transaction-duration-ms", 50]
                java.run(
                    *("producer-perf-test", "--bootstrap-server", bootstrap, "--topic", "tx"),
                    *("--transactional-id", "version-2", *options),
                )
        listing = ("transactions", "--bootstrap-server", bootstrap, "list")
        wait_until(lambda: "Complete" not in java.run(*listing).out, "all transactional ids have expired")
        assert producer("open").add("tx", 0, 1) == 0
    return data


@pytest.mark.tidelog_only
@pytest.mark.exercises("files", "admin-transactions")
def test_dump_log_decodes_the_transactions(java: JavaTools, transactions: Path) -> None:
    ran = dump(java, sorted(transactions.glob("__transaction_state-*/*.log")), "--transaction-log-decoder")
    history: dict[str, list[dict[str, Any] | None]] = {}
    for key, payload in re.findall(r"^\| offset: .*? key: (\{.*?\}) payload: (.*)$", ran.out, re.MULTILINE):
        name = json.loads(key)["data"]["transactionalId"]
        history.setdefault(name, []).append(None if payload == "<DELETE>" else json.loads(payload))
    empty, ongoing, prepare_commit, prepare_abort, complete_commit, complete_abort = range(6)

    def states(name: str) -> list[int | None]:
        return [None if each is None else each["data"]["transactionStatus"] for each in history[name]]

    for level in (2, 1, 0):
        committed = [empty, ongoing, ongoing, prepare_commit, complete_commit, None]
        assert states(f"committed-{level}") == committed, "None: the id has expired"
        assert states(f"aborted-{level}") == [empty, ongoing, prepare_abort, complete_abort, None]
        assert states(f"late-{level}") == [empty, ongoing, prepare_abort, complete_abort, None]
        versions = {each["version"] for each in history[f"committed-{level}"] if each is not None}
        assert versions == {"0" if level == 0 else "1"}
        decided = history[f"committed-{level}"][3]
        assert decided is not None
        assert decided["data"]["transactionPartitions"] == [{"topic": "tx", "partitionIds": [0, 1]}]
    assert states("open") == [empty, ongoing]
    records = [each["data"] for each in history["version-2"] if each is not None]
    assert {each.get("clientTransactionVersion", 0) for each in records} == {0, 2}  # 0: before its first transaction
    completed = [each["producerEpoch"] for each in records if each["transactionStatus"] == complete_commit]
    assert completed == [*range(1, len(completed) + 1)], "each end of a transaction has the next epoch"


@pytest.mark.tidelog_only
@pytest.mark.exercises("files")
@pytest.mark.parametrize(("group", "kinds"), [("gone", {0, 1, 2}), ("new-gone", {0, 1, 3, 4, 5, 6, 7, 8})])
def test_dump_log_reads_the_tombstones_of_groups(java: JavaTools, written: Path, group: str, kinds: set[int]) -> None:
    """Of a deleted group each key that was ever written ends with one."""
    ran = dump(java, sorted(written.glob("__consumer_offsets-*/*.log")), "--offsets-decoder")
    last: dict[str, str] = {}
    for key, payload in re.findall(r"^\| offset: .*? key: (\{.*?\}) payload: (.*)$", ran.out, re.MULTILINE):
        last[key] = payload
    of_group = {
        key: payload
        for key, payload in last.items()
        if group in (json.loads(key)["data"].get("group"), json.loads(key)["data"].get("groupId"))
    }
    assert {int(json.loads(key)["type"]) for key in of_group} <= kinds
    assert len(of_group) >= 2
    assert {*of_group.values()} == {"<DELETE>"}
    assert "<DELETE>" not in {payload for key, payload in last.items() if '"log"' in key and "readers" in key}


def verify(path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tidelog", "log", "verify", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)


@pytest.mark.tidelog_only
@pytest.mark.exercises("files")
def test_our_own_verify_agrees(written: Path) -> None:
    ran = verify(written)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.exercises("files")
def test_verify_reads_what_the_broker_wrote(
    target: Target, bootstrap: str, new_topic: NewTopicNamed, unique: Unique, tmp_path: Path
) -> None:
    """Of a running broker, as a copy of the moment: against Kafka this is Kafka's own directory."""
    if target.data is None:
        pytest.skip("the log is not on this machine")
    topic = new_topic(**{"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"})
    fill(bootstrap, topic)
    commit(bootstrap, unique("group"), topic)
    directories = [f"{topic}-0", *(path.name for path in target.data.glob("__consumer_offsets-*"))]
    for name in directories:
        shutil.copytree(target.data / name, tmp_path / name)
        ran = verify(tmp_path / name)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(list((tmp_path / f"{topic}-0").glob("*.log"))) >= 2


@pytest.mark.exercises("files")
def test_verify_sees_a_flipped_bit(
    target: Target, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Else the test above could not fail."""
    if target.data is None:
        pytest.skip("the log is not on this machine")
    topic = new_topic()
    fill(bootstrap, topic)
    shutil.copytree(target.data / f"{topic}-0", tmp_path / f"{topic}-0")
    (file,) = (tmp_path / f"{topic}-0").glob("*.log")
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    assert verify(tmp_path / f"{topic}-0").returncode == 1
