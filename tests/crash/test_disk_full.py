"""The disk fills up while the broker runs: producers are told, readers go on, and with space again so do producers."""

from pathlib import Path

import pytest

from process_harness.child import address_of, can_mount, on_small_disk, start
from process_harness.raw import RawConnection
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

DISK_BYTES = 48 << 20
OTHERS_BYTES = 8 << 20
"""Of a file that is none of the broker's, and is removed when the disk is full."""
VALUE = bytes(200_000)


@pytest.mark.skipif(not can_mount(), reason="a full disk takes a mount in a namespace of its own")
@pytest.mark.parametrize("durability", ["interval", "fsync"])
def test_a_disk_that_fills_up_while_running(tmp_path: Path, durability: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    with (tmp_path / "log").open("wb") as log:
        flags = ["--set", f"durability={durability}", "--set", "log.segment.delete.delay.ms=0"]
        broker = start(mount / "data", log, *flags, before=on_small_disk(mount, DISK_BYTES))
        try:
            address = address_of(broker)
            # The mount is the child's alone: this is the way into it.
            others = Path(f"/proc/{broker.pid}/root{mount}/others")
            others.write_bytes(bytes(OTHERS_BYTES))
            with RawConnection(address) as client:
                kept = fill_up(client)
                others.unlink()
                go_on(client, kept)
            assert broker.poll() is None
            broker.terminate()
            assert broker.wait(30) == 0
        finally:
            broker.kill()
            broker.communicate()
    assert "request failed" not in (tmp_path / "log").read_text()


def fill_up(client: RawConnection) -> int:
    """Returns how many records topic orders has."""
    for topic in ("ballast", "orders"):
        client.create_topic(topic)
    assert client.produce("orders", 0, [b"first"]).error_code == ErrorCode.NONE
    ballast = 0
    while (code := client.produce("ballast", 0, [VALUE]).error_code) == ErrorCode.NONE:
        ballast += 1
        assert ballast * len(VALUE) < DISK_BYTES, "more than the disk holds was acknowledged"
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    kept = 1
    while client.produce("orders", 0, [b"small " * 50]).error_code == ErrorCode.NONE:
        kept += 1
    for _ in range(20):
        assert client.produce("orders", 0, [VALUE]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    refused_without_a_crash(client)
    code, values = client.read_all("ballast", 0)
    assert (code, len(values)) == (ErrorCode.NONE, ballast)
    code, values = client.read_all("orders", 0)
    assert (code, len(values), values[0]) == (ErrorCode.NONE, kept, b"first")
    return kept


def go_on(client: RawConnection, kept: int) -> None:
    """With space again everything works, without a restart."""
    assert client.produce("orders", 0, [b"space again"]).error_code == ErrorCode.NONE
    code, values = client.read_all("orders", 0)
    assert (code, len(values), values[-1]) == (ErrorCode.NONE, kept + 1, b"space again")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="ballast")], timeout_ms=30_000)
    deleted = client.ask(request, 6)
    assert isinstance(deleted, DeleteTopicsResponse)
    assert deleted.responses[0].error_code == ErrorCode.NONE
    client.create_topic("after")
    assert client.produce("after", 0, [b"first"]).error_code == ErrorCode.NONE


def refused_without_a_crash(client: RawConnection) -> None:
    """Topics and commits need the disk as well: an error, whichever, and the connection lives."""
    topics = [CreatableTopic(name=f"more-{number}", num_partitions=20, replication_factor=1) for number in range(20)]
    created = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    assert isinstance(created, CreateTopicsResponse)
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * 4000)
    topic = OffsetCommitRequestTopic(name="orders", partitions=[part])
    for _ in range(20):
        answer = client.ask(OffsetCommitRequest(group_id="billing", topics=[topic]), 8)
        assert isinstance(answer, OffsetCommitResponse)
