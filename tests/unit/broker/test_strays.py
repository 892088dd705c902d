"""Directories of partitions that the metadata does not know, as a kill during a deletion leaves them, or an old copy
of the metadata.
"""

import logging
import shutil
from pathlib import Path

import pytest

from process_harness.raw import RawConnection
from tidelog.log.checkpoints import format_partition_metadata
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode

GONE_ID = bytes([7] * 16)
RECORDS = [b"some", b"records"]


def strays_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if "unknown partition directories exist" in record.getMessage()
    ]


def test_a_start_tells_of_them_and_leaves_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        client.create_topic("kept")
        assert client.produce("kept", 0, RECORDS).error_code == ErrorCode.NONE
    for name in ("gone-0", "gone-1", "__cluster_metadata-0"):
        shutil.copytree(data / "kept-0", data / name)
        (data / name / "partition.metadata").write_bytes(format_partition_metadata(GONE_ID))
    (data / "notes-2").mkdir()  # somebody else's
    with caplog.at_level(logging.WARNING, "tidelog"), Broker(data=data) as broker:
        [told] = strays_told(caplog)
        assert f"path={data} count=2 first=gone-" in told
        with RawConnection((broker.host, broker.port)) as client:
            assert client.read_all("kept", 0) == (ErrorCode.NONE, RECORDS)
            client.create_topic("gone", 2)
            assert client.read_all("gone", 0) == (ErrorCode.NONE, [])
            assert client.produce("gone", 0, [b"new"]).base_offset == 0
    assert (data / "notes-2").is_dir()
    assert (data / "__cluster_metadata-0").is_dir()
    assert len(list(data.glob("gone-*-stray"))) == 2, "renamed when a topic of that name was made"
    caplog.clear()
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        assert client.read_all("gone", 0) == (ErrorCode.NONE, [b"new"])
    assert strays_told(caplog) == []


def test_an_old_copy_of_the_metadata_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, old = tmp_path / "data", tmp_path / "old.sqlite"
    with Broker(data=data):
        pass
    shutil.copy(data / "metadata.sqlite", old)
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        client.create_topic("orders")
        assert client.produce("orders", 0, RECORDS).error_code == ErrorCode.NONE
    shutil.copy(data / "metadata.sqlite", right := tmp_path / "right.sqlite")
    shutil.copy(old, data / "metadata.sqlite")
    with caplog.at_level(logging.WARNING, "tidelog"), Broker(data=data):
        assert "first=orders-0" in strays_told(caplog)[0]
    shutil.copy(right, data / "metadata.sqlite")
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        assert client.read_all("orders", 0) == (ErrorCode.NONE, RECORDS)
