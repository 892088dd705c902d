"""The servers of the contract suite: one of each kind for most tests, three for those that stop some of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store_harness import servers
from store_harness.environments import (
    Environment,
    Etcd,
    SimulatedFile,
    SimulatedServer,
    Sqlite,
    ZooKeeper,
)

KINDS = ("simulated file", "simulated server", "sqlite", "etcd", "zookeeper")
REMOTE_KINDS = {"etcd": Etcd, "zookeeper": ZooKeeper}


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[str, int], servers.Servers]]:
    """Return a function that starts the servers of one kind, or returns those that were started already."""
    started: dict[tuple[str, int], servers.Servers] = {}

    def get(kind: str, count: int) -> servers.Servers:
        if (kind, count) not in started:
            started[kind, count] = servers.start(kind, count)
        return started[kind, count]

    yield get
    for each in started.values():
        each.stop()


@pytest.fixture(params=KINDS)
def environment(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    running: Callable[[str, int], servers.Servers],
) -> Environment:
    kind: str = request.param
    monkeypatch.setattr("tidelog.metadata.sqlite.BUSY_MS", 1500)
    # Short journals have several buckets, and trims need several transactions.
    monkeypatch.setattr("tidelog.metadata.zookeeper.BUCKET_ENTRIES", 50)
    monkeypatch.setattr("tidelog.metadata.zookeeper.TRIM_NODES", 30)
    monkeypatch.setattr("tidelog.metadata.etcd.TRIM_KEYS", 30)
    if kind in REMOTE_KINDS:
        return REMOTE_KINDS[kind](running(kind, 1))
    return {"simulated file": SimulatedFile, "simulated server": SimulatedServer}.get(kind, lambda: Sqlite(tmp_path))()
