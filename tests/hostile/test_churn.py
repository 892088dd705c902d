"""Topics are created and deleted under load: flushes, checkpoints and removals of the same files do not conflict."""

import time
from pathlib import Path

import pytest

from process_harness import amount, note
from process_harness.raw import RawConnection
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

SECONDS = amount(4, 60)
TOPICS = 5
PARTITIONS = 4


@pytest.mark.parametrize("durability", ["interval", "fsync"])
def test_topics_that_come_and_go(tmp_path: Path, durability: str) -> None:
    settings = {"durability": durability, "durability.interval.ms": 1, "log.segment.delete.delay.ms": 1}
    rounds = 0
    with Broker(process=True, data=tmp_path / "data", settings=settings) as broker:
        with RawConnection((broker.host, broker.port)) as client:
            client.create_topic("stays")
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                come_and_go(client)
                assert client.produce("stays", 0, [b"%d" % rounds]).base_offset == rounds
                rounds += 1
        assert " ERROR " not in broker.log()
        broker.kill()
        broker.restart()
        with RawConnection((broker.host, broker.port)) as client:
            kept = [b"%d" % number for number in range(rounds)]
            assert client.read_all("stays", 0) == (ErrorCode.NONE, kept)
        assert " ERROR " not in broker.log()
    note(f"churn: {rounds * TOPICS} topics made, written to and deleted with durability={durability}")


def come_and_go(client: RawConnection) -> None:
    names = [f"goes-{number}" for number in range(TOPICS)]
    for name in names:
        client.create_topic(name, PARTITIONS)
        for index in range(PARTITIONS):
            produced = client.produce(name, index, [b"first"])
            # A topic of this name that was there before left nothing behind.
            assert (produced.error_code, produced.base_offset) == (ErrorCode.NONE, 0)
    deleted = client.ask(
        DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=30_000), 6
    )
    assert isinstance(deleted, DeleteTopicsResponse)
    assert [result.error_code for result in deleted.responses] == [ErrorCode.NONE] * TOPICS
