"""The environments of the contract suite: each makes stores of one kind, and faults that every kind has."""

import asyncio
import errno
import sqlite3
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from store_harness.proxy import Proxy
from store_harness.servers import Servers
from tidelog.metadata.etcd import EtcdStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import Store
from tidelog.metadata.zookeeper import ZooKeeperStore
from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.real import real_runtime
from tidelog.simulation.shared_store import HOST as STORE_HOST
from tidelog.simulation.shared_store import SharedStore
from tidelog.simulation.store import SimStore
from tidelog.simulation.world import World, simulated


class Environment:
    """Makes stores that share one journal."""

    ttl_ms = 1000
    """A short term of a lease."""
    slack_s = 0.05
    """A lease that is not renewed can be acquired by others at most this long after its term."""
    has_processes = True
    """Whether stores behave as those of several processes; otherwise `open` returns the same store again."""
    away_changes_nothing = True
    """Whether an append fails with StoreUnavailable while the store is away."""

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    def open(self) -> Store:
        """Return a store as another process would use it."""
        raise NotImplementedError

    def lose_next_answer(self, store: Store) -> None:
        """Lose the answer to the next call of `store`, which is executed."""
        raise NotImplementedError

    def recovered(self, store: Store) -> Store:
        """Return a store that works again after a lost answer. For most kinds this is the same store."""
        return store

    def go_away(self) -> None:
        raise NotImplementedError

    def come_back(self) -> None:
        raise NotImplementedError


class SimulatedFile(Environment):
    """`SimStore`: a file on the simulated disk of one broker."""

    has_processes = False

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        with simulated(7) as world:
            self._host = world.host("a")
            self._store: SimStore | None = None
            world.run(scenario)

    def open(self) -> Store:
        if self._store is None:
            runtime = self._host.runtime
            runtime.disk.make_dirs("/data")
            runtime.disk.sync_dir("/")
            self._store = SimStore("/data/metadata", runtime.clock, runtime.tasks, runtime.disk)
        return self._store

    def lose_next_answer(self, store: Store) -> None:
        self._host.disk.fail("sync", "/data/metadata", errno.EIO)

    def recovered(self, store: Store) -> Store:
        self._host.kill()
        self._store = None
        return self.open()

    def go_away(self) -> None:
        self._host.disk.limit_space(self._host.disk.size("/data/metadata"))

    def come_back(self) -> None:
        self._host.disk.limit_space(None)


class SimulatedServer(Environment):
    """`SharedStore`: a server on the simulated network."""

    away_changes_nothing = False

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        with simulated(7) as world:
            self._world: World = world
            self._server = SharedStore(world)
            self._hosts: dict[int, str] = {}
            world.run(scenario)

    def open(self) -> Store:
        name = f"broker-{len(self._hosts)}"
        store = self._server.handle(name, self._world.host(name).runtime)
        self._hosts[id(store)] = name
        return store

    def lose_next_answer(self, store: Store) -> None:
        # The request is under way after this turn of the loop; its answer then meets a link that is cut.
        loop, network, host = self._world.loop, self._world.network, self._hosts[id(store)]
        execute = self._server.append

        def append_and_cut(*arguments: Any) -> None:
            execute(*arguments)
            self._server.append = execute  # type: ignore[method-assign]
            network.partition_one_way(STORE_HOST, host)
            loop.call_later(20, network.heal)

        self._server.append = append_and_cut  # type: ignore[method-assign]

    def go_away(self) -> None:
        for name in self._hosts.values():
            self._world.network.partition(STORE_HOST, name)

    def come_back(self) -> None:
        self._world.network.heal()


class RealEnvironment(Environment):
    """Runs on asyncio's loop with the real runtime."""

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def on_loop() -> None:
            self._runtime: Runtime = real_runtime()
            self._stores: list[Store] = []
            try:
                await scenario
            finally:
                self.come_back()
                for store in self._stores:
                    await store.close()
                await self._runtime.close()
                self.close()

        asyncio.run(on_loop())

    def open(self) -> Store:
        store = self._make()
        self._stores.append(store)
        return store

    def _make(self) -> Store:
        raise NotImplementedError

    def close(self) -> None:
        """Release what the environment itself holds."""


class _ConnectionThatLosesAnAnswer:
    """A connection of SQLite whose next COMMIT is executed and then fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._has_failed = False

    def execute(self, statement: str, *arguments: Any) -> Any:
        result = self._connection.execute(statement, *arguments)
        if statement == "COMMIT" and not self._has_failed:
            self._has_failed = True
            raise sqlite3.OperationalError("disk I/O error")
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Sqlite(RealEnvironment):
    ttl_ms = 600

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "metadata.sqlite")
        self._blocker: sqlite3.Connection | None = None

    def _make(self) -> Store:
        runtime = self._runtime
        return SqliteStore(self._path, runtime.clock, runtime.tasks, runtime.disk)

    def lose_next_answer(self, store: Store) -> None:
        assert isinstance(store, SqliteStore)
        store._connection = _ConnectionThatLosesAnAnswer(store._connection)  # type: ignore[assignment, arg-type]

    def go_away(self) -> None:
        self._blocker = sqlite3.connect(self._path, isolation_level=None)
        self._blocker.execute("BEGIN IMMEDIATE")

    def come_back(self) -> None:
        if self._blocker is not None:
            self._blocker.close()
            self._blocker = None


class Remote(RealEnvironment):
    """Stores on real servers, each server behind a proxy. Each environment has keys of its own."""

    ttl_ms = 2000

    def __init__(self, servers: Servers) -> None:
        self.root = f"/test/{uuid.uuid4().hex}"
        self.proxies = [Proxy(address) for address in servers.addresses]
        self.addresses = [("127.0.0.1", proxy.port) for proxy in self.proxies]

    def lose_next_answer(self, store: Store) -> None:
        for proxy in self.proxies:
            proxy.lose_next_answer()

    def go_away(self) -> None:
        for proxy in self.proxies:
            proxy.go_away()

    def come_back(self) -> None:
        for proxy in self.proxies:
            proxy.come_back()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()


class Etcd(Remote):
    slack_s = 2.0  # etcd counts in seconds, and looks for leases that have ended twice a second

    def _make(self) -> Store:
        return EtcdStore("etcd://test", self.addresses, self.root, self._runtime)


class ZooKeeper(Remote):
    slack_s = 1.5

    def _make(self) -> Store:
        return ZooKeeperStore("zookeeper://test", self.addresses, self.root, self._runtime, session_ms=2600)
