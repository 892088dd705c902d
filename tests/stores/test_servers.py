"""Faults of the servers and of the holder's process: a lost minority, a lost leader, an expired session, a pause."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from store_harness import servers
from store_harness.environments import Etcd, Remote, ZooKeeper
from tidelog.metadata.etcd import EtcdStore
from tidelog.metadata.etcd_gateway import EtcdGateway, EtcdServers, to_text
from tidelog.metadata.leadership import HeldLease
from tidelog.metadata.store import (
    AppendUnknown,
    Lease,
    LeaseLost,
    PositionTaken,
    Snapshot,
    Store,
    StoredEntry,
    StoreFailed,
    StoreUnavailable,
    settle_append,
)
from tidelog.metadata.zookeeper import ZooKeeperStore

KINDS = {"etcd": Etcd, "zookeeper": ZooKeeper}


@pytest.fixture(params=sorted(KINDS))
def three(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Remote, servers.Servers]]:
    """Start three servers for one test, which may stop some of them."""
    monkeypatch.setattr("tidelog.metadata.etcd_gateway.ANSWER_TIMEOUT_S", 1.5)
    monkeypatch.setattr("tidelog.metadata.zookeeper_session.ANSWER_TIMEOUT_S", 1.5)
    started = servers.start(request.param, 3)
    yield KINDS[request.param](started), started
    for pid in started.pids:
        os.kill(pid, signal.SIGCONT)
    started.stop()


async def append_within(store: Store, position: int, lease: Lease, seconds: float) -> None:
    """Append and find out the outcome, as a controller does while servers come and go."""
    latest_s = asyncio.get_running_loop().time() + seconds
    data, writer = b"%d" % position, "w"
    try:
        return await store.append(position, data, lease, writer, position)
    except (AppendUnknown, StoreUnavailable):
        pass
    while True:
        try:
            return await settle_append(store, position, data, lease, writer, position)
        except (AppendUnknown, StoreUnavailable):
            assert asyncio.get_running_loop().time() < latest_s, "the store does not work with two of three servers"
            await asyncio.sleep(0.2)


def test_any_one_of_three_servers_may_be_lost(three: tuple[Remote, servers.Servers]) -> None:
    """Each server stops in turn, the leader among them. Nothing that was acknowledged is lost."""
    environment, started = three

    async def scenario() -> None:
        store, reader = environment.open(), environment.open()
        lease = await store.acquire("controller", "one", None)
        assert lease is not None
        position = 0
        for pid in started.pids:
            os.kill(pid, signal.SIGSTOP)
            for _ in range(3):
                await append_within(store, position, lease, 30)
                position += 1
            os.kill(pid, signal.SIGCONT)
        expected = [StoredEntry(at, b"%d" % at, "w", at) for at in range(position)]
        for each in (store, reader, environment.open()):
            latest_s = asyncio.get_running_loop().time() + 20
            while True:
                try:
                    assert await each.read(0) == expected
                    break
                except StoreUnavailable:
                    assert asyncio.get_running_loop().time() < latest_s
                    await asyncio.sleep(0.2)

    environment.run(scenario())


def test_a_hung_server_ends_no_lease(three: tuple[Remote, servers.Servers], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server hangs just before the first renewal: it accepts connections but never answers. The holder of the lease
    renews it in time on another server.
    """
    environment, started = three
    monkeypatch.setattr("tidelog.metadata.etcd_gateway.ANSWER_TIMEOUT_S", 5.0)
    monkeypatch.setattr("tidelog.metadata.zookeeper_session.ANSWER_TIMEOUT_S", 5.0)
    ttl_ms = {"etcd": 6000, "zookeeper": 3300}[started.kind]

    async def scenario() -> None:
        store: Store = environment.open()
        if isinstance(store, ZooKeeperStore):
            # An election of ZooKeeper's servers may take longer than this lease, so the leader does not hang.
            followers = [
                address
                for address, server in zip(environment.addresses, started.addresses, strict=True)
                if not is_leader(server)
            ]
            store = ZooKeeperStore(
                "zookeeper://test", followers, environment.root, environment._runtime, session_ms=3980
            )
            environment._stores.append(store)
        held = await HeldLease.acquire(store, environment._runtime, "broker/1", "one", ttl_ms)
        assert held is not None
        hung = await asyncio.to_thread(used_server, started)
        renew = store.renew

        async def hang_and_renew(lease: Lease, ttl_ms: int) -> None:
            os.kill(hung, signal.SIGSTOP)
            await renew(lease, ttl_ms)

        monkeypatch.setattr(store, "renew", hang_and_renew)
        renewal = asyncio.create_task(held.renew_until_lost())
        done, _ = await asyncio.wait((held.lost,), timeout=2 * ttl_ms / 1000)
        assert not done, held.lost.result()
        assert held.is_valid
        assert await store.held_leases("broker/") == [held.lease]
        os.kill(hung, signal.SIGCONT)
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)

    def is_leader(address: tuple[str, int]) -> bool:
        with socket.create_connection(address, 5) as connection:
            connection.sendall(b"srvr")
            return b"Mode: leader" in connection.makefile("rb").read()

    def used_server(started: servers.Servers) -> int:
        """Return the process id of the server that the store uses."""
        counts = [len(proxy._pairs) for proxy in environment.proxies]
        return started.pids[counts.index(max(counts))]

    environment.run(scenario())


def test_without_a_majority_nothing_is_confirmed(three: tuple[Remote, servers.Servers]) -> None:
    """A server without a majority may answer a ping; a renewal must not be confirmed by it."""
    environment, started = three

    async def scenario() -> None:
        store = environment.open()
        lease = await store.acquire("controller", "one", environment.ttl_ms)
        assert lease is not None
        await store.append(0, b"0", lease, "w", 0)
        for pid in started.pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises((StoreUnavailable, AppendUnknown)):
            await store.append(1, b"1", lease, "w", 1)
        with pytest.raises((StoreUnavailable, LeaseLost)):
            await store.renew(lease, environment.ttl_ms)
        with pytest.raises(StoreUnavailable):
            await store.read(0)
        for pid in started.pids[1:]:
            os.kill(pid, signal.SIGCONT)
        again = None
        for _ in range(100):
            try:
                again = again or await store.acquire("controller", "two", None)
                if again is not None:
                    break
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.3)
        assert again is not None
        assert again.epoch > lease.epoch
        position = len(await store.read(0))  # the entry of unknown outcome may be there
        assert position in (1, 2)
        await append_within(store, position, again, 20)

    environment.run(scenario())


HOLDER = """
import asyncio, sys
from tidelog.metadata.etcd import EtcdStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import LeaseLost
from tidelog.metadata.zookeeper import ZooKeeperStore
from tidelog.runtime.real import real_runtime

async def main(kind, port, path):
    runtime = real_runtime()
    servers = [("127.0.0.1", int(port))]
    if kind == "etcd":
        store = EtcdStore("etcd://test", servers, path, runtime)
    elif kind == "zookeeper":
        store = ZooKeeperStore("zookeeper://test", servers, path, runtime, session_ms=2600)
    else:
        store = SqliteStore(path, runtime.clock, runtime.tasks, runtime.disk)
    lease = await store.acquire("controller", "paused", 2000)
    await store.append(0, b"before the pause", lease)
    print("holds", flush=True)
    await runtime.tasks.run_blocking(sys.stdin.readline)
    for call in (store.append(1, b"after the pause", lease), store.renew(lease, 2000)):
        try:
            await call
            print("done", flush=True)
        except LeaseLost:
            print("lost", flush=True)
    await store.close()
    await runtime.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["etcd", "zookeeper", "sqlite"])
@pytest.mark.parametrize("successor", [True, False])
def test_a_holder_that_was_paused_changes_nothing(
    kind: str, successor: bool, tmp_path: object, running: Callable[[str, int], servers.Servers]
) -> None:
    """The whole process is stopped for longer than its lease and, with ZooKeeper, its session. Its own memory says
    that it holds the lease.
    """
    from store_harness.environments import Environment, Sqlite

    environment: Environment
    if kind == "sqlite":
        environment = Sqlite(tmp_path)  # type: ignore[arg-type]
        arguments = [kind, "0", environment._path]
    else:
        environment = KINDS[kind](running(kind, 1))
        arguments = [kind, str(environment.proxies[0].port), environment.root]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    stdin, stdout = holder.stdin, holder.stdout

    async def scenario() -> None:
        store = environment.open()
        assert await asyncio.to_thread(stdout.readline) == "holds\n"
        assert await store.acquire("controller", "successor", 4000 if kind == "sqlite" else 2000) is None
        os.kill(holder.pid, signal.SIGSTOP)
        lease = None
        if successor:
            for _ in range(200):
                lease = await store.acquire("controller", "successor", 2000)
                if lease is not None:
                    break
                await asyncio.sleep(0.1)
            assert lease is not None
            await store.append(1, b"of the successor", lease)
        else:
            await asyncio.sleep(5)
        os.kill(holder.pid, signal.SIGCONT)
        stdin.write("go\n")
        stdin.flush()
        assert await asyncio.to_thread(stdout.readline) == "lost\n"
        assert await asyncio.to_thread(stdout.readline) == "lost\n"
        assert [entry.data for entry in await store.read(0)][1:] == ([b"of the successor"] if successor else [])

    try:
        environment.run(scenario())
        assert holder.wait(30) == 0
    finally:
        holder.kill()
        holder.wait(10)
        stdin.close()
        stdout.close()


def test_an_expired_session_ends_the_lease_and_the_next_call_has_a_new_session(
    running: Callable[[str, int], servers.Servers],
) -> None:
    environment = ZooKeeper(running("zookeeper", 1))

    async def scenario() -> None:
        store, other = (
            environment.open(),
            ZooKeeperStore(
                "zookeeper://test", running("zookeeper", 1).addresses, environment.root, environment._runtime
            ),
        )
        environment._stores.append(other)
        lease = await store.acquire("controller", "one", 2000)
        assert lease is not None
        await store.append(0, b"0", lease)
        environment.go_away()
        successor = None
        for _ in range(100):
            successor = await other.acquire("controller", "two", 2000)
            if successor is not None:
                break
            await asyncio.sleep(0.1)
        assert successor is not None
        await other.append(1, b"1", successor)
        environment.come_back()
        for call in (store.append, store.renew):
            for _ in range(50):
                try:
                    await (call(2, b"2", lease) if call == store.append else store.renew(lease, 2000))
                    raise AssertionError("the lease was lost")
                except LeaseLost:
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.2)
        await other.release(successor)
        again = await store.acquire("controller", "one", 2000)
        assert again is not None
        await store.append(2, b"2", again)
        assert len(await other.read(0)) == 3

    environment.run(scenario())


def test_a_session_that_is_shorter_than_the_lease_is_refused(running: Callable[[str, int], servers.Servers]) -> None:
    environment = ZooKeeper(running("zookeeper", 1))

    async def scenario() -> None:
        store = environment.open()
        with pytest.raises(StoreFailed, match="raise maxSessionTimeout"):
            await store.acquire("controller", "one", 5000)

    environment.run(scenario())


def test_the_history_of_etcd_does_not_grow(running: Callable[[str, int], servers.Servers]) -> None:
    """Only the values that were replaced after the last but one call remain."""
    environment = Etcd(running("etcd", 1))

    async def scenario() -> None:
        store = environment.open()
        assert isinstance(store, EtcdStore)
        lease = await store.acquire("broker/1", "one", 2000)
        assert lease is not None

        def is_retained(revision: int) -> bool:
            gateway = EtcdGateway("etcd://test", EtcdServers(environment.addresses))
            try:
                gateway.read("/v3/kv/range", {"key": to_text(store._key("end")), "revision": str(revision)})
            except StoreFailed as error:
                return "compacted" not in str(error)
            finally:
                gateway.close()
            return True

        revisions = []
        for _ in range(3):
            await store.renew(lease, 2000)
            await store.discard_history()
            revisions.append(store._discard_before)
        assert revisions == sorted(set(revisions))
        assert [is_retained(revision) for revision in revisions] == [False, True, True]

    environment.run(scenario())


def test_leases_take_few_round_trips(running: Callable[[str, int], servers.Servers]) -> None:
    """A slow server delays an acquisition and the controller's look at all leases by few round trips."""
    environment = ZooKeeper(running("zookeeper", 1))

    async def scenario() -> None:
        store = environment.open()
        assert isinstance(store, ZooKeeperStore)
        for number in range(5):
            assert await store.acquire(f"broker/{number}", "one", 2000) is not None
        client, calls = store._session.client, list[str]()
        for name in ("sync_async", "get_async", "get_children_async"):
            send = getattr(client, name)
            monkey.setattr(client, name, lambda *args, send=send: [calls.append("request"), send(*args)][1])
        answer = store._session.answer
        monkey.setattr(store._session, "answer", lambda result: [calls.append("answer"), answer(result)][1])
        assert len(await store.held_leases("broker/")) == 5
        assert round_trips(calls) == 2
        calls.clear()
        assert await store.acquire("broker/5", "one", 2000) is not None
        assert round_trips(calls) == 1, "and the transaction's, which is not counted"

    def round_trips(calls: list[str]) -> int:
        return sum(pair == ("request", "answer") for pair in itertools.pairwise(calls))

    with pytest.MonkeyPatch.context() as monkey:
        environment.run(scenario())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_long_journal_loads_from_its_snapshot(kind: str, running: Callable[[str, int], servers.Servers]) -> None:
    """Loading takes as long as the snapshot and the entries after it, however many entries there were before."""
    from process_harness import amount, note

    environment = KINDS[kind](running(kind, 1))
    count, records = amount(800, 20_000), amount(100_000, 1_000_000)

    async def scenario() -> None:
        store = environment.open()
        lease = await store.acquire("controller", "one", None)
        assert lease is not None
        for position in range(count):
            await store.append(position, b"%d" % position, lease, "w", position)
        state = b"".join(b"%020d" % i for i in range(records))
        await store.save_snapshot(Snapshot(count - 10, state))
        await store.close()
        reader = environment.open()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        stored = await reader.inspect()
        seconds = loop.time() - began_s
        assert stored is not None
        assert stored.snapshot == Snapshot(count - 10, state)
        assert [entry.position for entry in stored.entries] == list(range(count - 10, count))
        assert seconds < 10
        note(f"{kind}: a journal of {count} entries and a snapshot of {records} records loaded in {seconds:.2f} s")

    environment.run(scenario())


@pytest.mark.parametrize("question", ["inspect", "read", "snapshot", "append"])
def test_zookeepers_server_gets_the_newest_state_before_it_is_asked(
    question: str, running: Callable[[str, int], servers.Servers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may be behind what other clients have seen: without a sync, a new controller could miss entries."""
    from kazoo.client import KazooClient

    environment = ZooKeeper(running("zookeeper", 1))
    calls: list[str] = []
    for name in ("sync_async", "get_async"):
        real = getattr(KazooClient, name)

        def noted(
            client: KazooClient, path: str, *rest: Any, real: Any = real, name: str = name, **options: Any
        ) -> Any:
            calls.append(name)
            return real(client, path, *rest, **options)

        monkeypatch.setattr(KazooClient, name, noted)

    async def scenario() -> None:
        store, other = environment.open(), environment.open()
        lease = await other.acquire("controller", "one", None)
        assert lease is not None
        await other.append(0, b"0", lease)
        calls.clear()
        if question == "append":
            with pytest.raises(PositionTaken):
                await store.append(0, b"1", lease)
        else:
            await {"inspect": store.inspect, "snapshot": store.snapshot, "read": lambda: store.read(0)}[question]()
        assert calls.index("sync_async") < calls.index("get_async")

    environment.run(scenario())
