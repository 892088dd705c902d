"""Two real file systems, one of them small: it fills up, and only its partitions are refused; one is moved away."""

from pathlib import Path

import pytest

from process_harness.child import address_of, can_mount, on_small_disk, start
from process_harness.raw import RawConnection
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
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
    assert "not put aside" not in text
