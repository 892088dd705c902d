"""A topic is deleted and made anew, and kill -9 at once: the new one has its records, and nothing of the old one."""

from pathlib import Path

import pytest

from process_harness.raw import RawConnection
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

TOPIC = "orders"
RECORDS, START = 30, 20
NEW = [b"new 0", b"new 1", b"new 2"]


def connected(broker: Broker) -> RawConnection:
    return RawConnection((broker.host, broker.port))


def old_topic(broker: Broker) -> None:
    with connected(broker) as client:
        client.create_topic(TOPIC)
        for number in range(RECORDS):
            assert client.produce(TOPIC, 0, [b"old %d" % number]).error_code == ErrorCode.NONE
        part = DeleteRecordsPartition(partition_index=0, offset=START)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(TOPIC, [part])], timeout_ms=10_000)
        answer = client.ask(request, 2)
        assert isinstance(answer, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].low_watermark == START


def made_anew(broker: Broker) -> None:
    with connected(broker) as client:
        deleted = client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=30_000), 6)
        assert isinstance(deleted, DeleteTopicsResponse)
        assert deleted.responses[0].error_code == ErrorCode.NONE
        client.create_topic(TOPIC)
        for value in NEW:
            assert client.produce(TOPIC, 0, [value]).error_code == ErrorCode.NONE


def damage(partition: Path, lost: str) -> None:
    log = partition / f"{0:020d}.log"
    if lost == "the end":
        log.write_bytes(log.read_bytes()[:100])
    elif lost == "the start":
        log.rename(partition / f"{25:020d}.log")
    elif lost == "the id":
        (partition / "partition.metadata").write_bytes(b"version: 7")


@pytest.mark.parametrize("lost", ["nothing", "the end", "the start", "the id"])
def test_killed_before_the_next_checkpoint(tmp_path: Path, lost: str) -> None:
    data = tmp_path / "data"
    broker = Broker(process=True, data=data)
    broker.start()
    try:
        old_topic(broker)
        broker.restart()  # in order: the checkpoints have all of it
        if lost != "nothing":
            broker.kill()
            damage(data / f"{TOPIC}-0", lost)
            broker.start()
            assert f"partition offline partition={TOPIC}-0" in broker.log()
        for _ in range(3):
            made_anew(broker)
            broker.kill()
            broker.start()
            with connected(broker) as client:
                assert client.read_all(TOPIC, 0) == (ErrorCode.NONE, NEW)
                assert client.produce(TOPIC, 0, [b"more"]).base_offset == len(NEW)
            assert "offline partition=" not in broker.log()
    finally:
        broker.stop()
