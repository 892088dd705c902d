"""Directories of partitions that the metadata does not know, as a kill in the middle of a deletion leaves them."""

import shutil
from pathlib import Path

from process_harness.raw import RawConnection
from tidelog.log.checkpoints import format_partition_metadata
from tidelog.model.ids import uuid_text
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode

GONE_ID = bytes([7] * 16)
OTHER = [b"another's", b"records"]


def test_a_start_puts_them_aside(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        client.create_topic("kept")
        assert client.produce("kept", 0, OTHER).error_code == ErrorCode.NONE
    for name, topic_id in (("gone-0", GONE_ID), ("gone-1", GONE_ID), ("kept-1", None), ("__cluster_metadata-0", None)):
        shutil.copytree(data / "kept-0", data / name)
        if topic_id is not None:
            (data / name / "partition.metadata").write_bytes(format_partition_metadata(topic_id))
    unreadable = data / "notes-1"
    shutil.copytree(data / "kept-0", unreadable)
    (unreadable / "partition.metadata").write_bytes(b"none")
    nobodys = data / "notes-2"
    nobodys.mkdir()
    points = data / "recovery-point-offset-checkpoint"
    points.write_text(points.read_text().replace("0\n1\n", "0\n2\ngone 0 2\n"))

    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        for number in range(2):
            assert not (data / f"gone-{number}").exists()
            aside = data / f"gone-{number}.{uuid_text(GONE_ID)}-stray"
            assert (aside / f"{0:020d}.log").stat().st_size
        assert not (data / "kept-1").exists()
        assert "gone" not in points.read_text()
        for left in ("__cluster_metadata-0", "notes-1", "notes-2"):
            assert (data / left).is_dir()
        assert client.read_all("kept", 0) == (ErrorCode.NONE, OTHER)
        client.create_topic("gone", 2)
        assert client.read_all("gone", 0) == (ErrorCode.NONE, [])
        assert client.produce("gone", 0, [b"new"]).base_offset == 0
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        assert client.read_all("gone", 0) == (ErrorCode.NONE, [b"new"])
        assert client.read_all("kept", 0) == (ErrorCode.NONE, OTHER)
        assert (data / "__cluster_metadata-0").is_dir()
