"""Two real file systems, one of them small: it fills up, and only its partitions are refused; one is moved away."""

import shutil
import signal
from pathlib import Path

import pytest
from workload import wait_until

from process_harness.child import address_of, can_mount, on_small_disk, start
from process_harness.raw import RawConnection
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

DISK_BYTES = 16 << 20
VALUE = bytes(200_000)


def places(client: RawConnection) -> dict[str, str]:
    """The directory of each topic's partition, once nothing moves."""
    while True:
        answer = client.ask(DescribeLogDirsRequest(topics=None), 4)
        assert isinstance(answer, DescribeLogDirsResponse)
        found = [(r, topic.name, p) for r in answer.results for topic in r.topics for p in topic.partitions]
        if not any(p.is_future_key for _, _, p in found):
            return {name: result.log_dir for result, name, _ in found}


@pytest.mark.skipif(not can_mount(), reason="a full disk takes a mount in a namespace of its own")
def test_a_small_disk_beside_a_large_one(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    directories = [tmp_path / "large", small / "data"]
    with (tmp_path / "log").open("wb") as log:
        broker = start(Path(",".join(map(str, directories))), log, before=on_small_disk(small, DISK_BYTES))
        try:
            with RawConnection(address_of(broker)) as client:
                for topic in ("one", "two"):
                    client.create_topic(topic)
                where = {path: topic for topic, path in places(client).items()}
                here, there = where[str(directories[1])], where[str(directories[0])]
                kept = 0
                while (code := client.produce(here, 0, [VALUE]).error_code) == ErrorCode.NONE:
                    kept += 1
                    assert kept * len(VALUE) < DISK_BYTES
                assert code == ErrorCode.KAFKA_STORAGE_ERROR
                assert client.produce(there, 0, [VALUE]).error_code == ErrorCode.NONE, "the other disk has room"
                move = AlterReplicaLogDir(str(directories[0]), [AlterReplicaLogDirTopic(here, [0])])
                client.ask(AlterReplicaLogDirsRequest([move]), 2)
                assert places(client) == {"one": str(directories[0]), "two": str(directories[0])}
                assert client.produce(here, 0, [VALUE]).error_code == ErrorCode.NONE
                code, values = client.read_all(here, 0)
                assert (code, values) == (ErrorCode.NONE, [VALUE] * (kept + 1))
            broker.terminate()
            assert broker.wait(30) == 0
        finally:
            broker.kill()
            broker.communicate()
    text = (tmp_path / "log").read_text()
    assert text.count("appends refused") == 1
    assert "directory offline" not in text
    assert "partition offline" not in text
    assert "not renamed" not in text


@pytest.mark.skipif(not can_mount(), reason="a full disk takes a mount in a namespace of its own")
def test_deleting_a_topic_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    """With nothing else freed there; after kill -9 the topic that was made anew has nothing of the old one."""
    small = tmp_path / "small"
    small.mkdir()
    directories = [tmp_path / "large", small / "data"]
    flags = ["--set", f"cordoned.log.dirs={directories[0]}", "--set", "log.segment.delete.delay.ms=0"]
    with (tmp_path / "log").open("wb") as log:
        broker = start(Path(",".join(map(str, directories))), log, *flags, before=on_small_disk(small, DISK_BYTES))
        copies = [tmp_path / "large-copy", tmp_path / "small-copy"]
        try:
            with RawConnection(address_of(broker)) as client:
                for topic in ("ballast", "orders"):
                    client.create_topic(topic)
                assert client.produce("orders", 0, [b"first"]).error_code == ErrorCode.NONE
                assert client.produce("ballast", 0, [VALUE]).error_code == ErrorCode.NONE
                points = Path(f"/proc/{broker.pid}/root{directories[1]}/recovery-point-offset-checkpoint")
                wait_until(lambda: points.exists() and "ballast 0 1" in points.read_text(), "a checkpoint")
                for size in (200_000, 2000, 100, 1):  # to the last byte, or nearly
                    while client.produce("ballast", 0, [bytes(size)]).error_code == ErrorCode.NONE:
                        pass
                assert client.produce("orders", 0, [VALUE]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                request = DeleteTopicsRequest(topics=[DeleteTopicState(name="ballast")], timeout_ms=30_000)
                deleted = client.ask(request, 6)
                assert isinstance(deleted, DeleteTopicsResponse)
                assert deleted.responses[0].error_code == ErrorCode.NONE
                wait_until(lambda: client.produce("orders", 0, [VALUE]).error_code == ErrorCode.NONE, "room again")
                client.create_topic("ballast")
                assert client.produce("ballast", 0, [b"anew"]).error_code == ErrorCode.NONE
            # The small disk goes with the process that has mounted it: the next one has a copy of what is on it.
            broker.send_signal(signal.SIGSTOP)
            for directory, copy in zip(directories, copies, strict=True):
                shutil.copytree(f"/proc/{broker.pid}/root{directory}", copy)
        finally:
            broker.kill()
            broker.communicate()
        broker = start(Path(",".join(map(str, copies))), log)
        try:
            with RawConnection(address_of(broker)) as client:
                assert client.read_all("ballast", 0) == (ErrorCode.NONE, [b"anew"])
                assert client.read_all("orders", 0) == (ErrorCode.NONE, [b"first", VALUE])
            broker.terminate()
            assert broker.wait(30) == 0
        finally:
            broker.kill()
            broker.communicate()
    text = (tmp_path / "log").read_text()
    assert "offline " not in text.replace(" offline=0", "")
    assert "not renamed" not in text
