"""A start that fails leaves the directories unchanged, so that the next start has nothing to recover."""

import socket
from pathlib import Path
from typing import Any

import pytest

from process_harness.raw import RawConnection
from tidelog.log.directory import CLEAN_MARKER
from tidelog.metadata.service import MetadataService
from tidelog.replication.partitions import Partitions
from tidelog.replication.reconcile import Reconciler
from tidelog.testing import Broker, BrokerFailedError


def used(data: Path) -> None:
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        client.create_topic("t", 3)
        for index in range(3):
            client.produce("t", index, [b"kept"])


def kept(data: Path) -> bool:
    with Broker(data=data) as broker, RawConnection((broker.host, broker.port)) as client:
        return [client.read_all("t", index) for index in range(3)] == [(0, [b"kept"])] * 3


def test_a_busy_port(tmp_path: Path) -> None:
    used(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for _ in range(2):
            with pytest.raises(BrokerFailedError, match="in use"):
                Broker(data=tmp_path, port=taken.getsockname()[1]).start()
            assert (tmp_path / CLEAN_MARKER).exists()
    assert kept(tmp_path)


def test_another_node_id(tmp_path: Path) -> None:
    used(tmp_path)
    with pytest.raises(BrokerFailedError, match=r"node\.id"):
        Broker(data=tmp_path, settings={"node.id": 7}).start()
    assert (tmp_path / CLEAN_MARKER).exists()
    assert kept(tmp_path)


@pytest.mark.parametrize(("owner", "step"), [(MetadataService, "start"), (Reconciler, "apply"), (Partitions, "start")])
def test_what_fails_before_every_log_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    """Nothing is known of logs that were not opened: the next start looks for itself."""
    used(tmp_path)

    async def fails(*_: Any) -> None:
        raise OSError("not today")

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, fails)
        with pytest.raises(BrokerFailedError):
            Broker(data=tmp_path).start()
    assert not (tmp_path / CLEAN_MARKER).exists()
    assert kept(tmp_path)


def test_directories_that_were_not_left_in_order_are_not_now(tmp_path: Path) -> None:
    used(tmp_path)
    (tmp_path / CLEAN_MARKER).unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BrokerFailedError, match="in use"):
        Broker(data=tmp_path, port=taken.getsockname()[1]).start()
    assert not (tmp_path / CLEAN_MARKER).exists()
    assert kept(tmp_path)
