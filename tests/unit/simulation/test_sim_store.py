"""The simulated metadata store: the guarantees of the interface, and the data after kills and power cuts."""

import asyncio
import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata.store import Lease, LeaseLost, PositionTaken, Snapshot, StoredEntry, StoreFailed, StoreUnavailable
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.store import SimStore
from tidelog.simulation.world import SimHost, simulated

PATH = "/data/metadata"


def store_of(host: SimHost) -> SimStore:
    runtime = host.runtime
    runtime.disk.make_dirs("/data")
    runtime.disk.sync_dir("/")
    return SimStore(PATH, runtime.clock, runtime.tasks, runtime.disk)


async def taken(store: SimStore, holder: str = "one") -> Lease:
    lease = await store.acquire("controller", holder, None)
    assert lease is not None
    return lease


def test_entries_follow_each_other_and_are_kept() -> None:
    with simulated(1) as world:

        async def scenario() -> None:
            host = world.host("a")
            store = store_of(host)
            lease = await taken(store)
            assert await store.read(0) == []
            for position in range(5):
                await store.append(position, b"entry %d" % position, lease)
            with pytest.raises(PositionTaken):
                await store.append(3, b"late", lease)
            expected = [StoredEntry(position, b"entry %d" % position) for position in range(5)]
            assert await store.read(0) == expected
            assert await store.read(1, 2) == expected[1:3]
            for end in (host.kill, host.cut_power):
                end()
                store = store_of(host)
                assert await store.read(0) == expected

        world.run(scenario())


def test_leases_fence_and_their_epochs_grow() -> None:
    with simulated(2) as world:

        async def scenario() -> None:
            host = world.host("a")
            store = store_of(host)
            first = await store.acquire("controller", "one", 1000)
            assert first is not None
            assert await store.acquire("controller", "two", 1000) is None
            await store.renew(first, 5000)
            await asyncio.sleep(4)
            await store.append(0, b"in time", first)
            await asyncio.sleep(2)
            with pytest.raises(LeaseLost):
                await store.append(1, b"too late", first)
            with pytest.raises(LeaseLost):
                await store.renew(first, 1000)
            second = await store.acquire("controller", "two", None)
            assert second is not None
            assert second.epoch > first.epoch
            await store.release(first)
            assert await store.acquire("controller", "one", None) is None
            await store.release(second)
            host.cut_power()
            store = store_of(host)
            third = await taken(store)
            assert third.epoch > second.epoch

        world.run(scenario())


def test_waiting_ends_with_the_entry() -> None:
    with simulated(3) as world:

        async def scenario() -> None:
            store = store_of(world.host("a"))
            lease = await taken(store)
            waiting = asyncio.create_task(store.wait(1))
            await store.append(0, b"0", lease)
            await asyncio.sleep(1)
            assert not waiting.done()
            await store.append(1, b"1", lease)
            await waiting
            await store.wait(0)

        world.run(scenario())


def test_a_snapshot_replaces_what_it_covers() -> None:
    with simulated(4) as world:

        async def scenario() -> None:
            host = world.host("a")
            store = store_of(host)
            lease = await taken(store)
            assert await store.snapshot() is None
            for position in range(6):
                await store.append(position, bytes(1000), lease)
            size = host.disk.size(PATH)
            await store.save_snapshot(Snapshot(4, b"state"))
            assert host.disk.size(PATH) < size / 2
            await store.append(6, b"6", lease)
            await store.close()
            host.cut_power()
            store = store_of(host)
            assert await store.snapshot() == Snapshot(4, b"state")
            assert [entry.position for entry in await store.read(0)] == [4, 5, 6]
            await store.append(7, b"7", lease)  # the lease outlived it
            await store.save_snapshot(Snapshot(8, b"all"))
            host.kill()
            store = store_of(host)
            assert await store.read(0) == []
            with pytest.raises(PositionTaken):
                await store.append(7, b"7", lease)
            await store.append(8, b"8", lease)

        world.run(scenario())


def test_a_full_disk_changes_nothing_and_a_failing_one_ends_it() -> None:
    with simulated(5) as world:

        async def scenario() -> None:
            host = world.host("a")
            store = store_of(host)
            lease = await taken(store)
            host.disk.limit_space(host.disk.size(PATH) + 50)
            await store.append(0, b"small", lease)
            with pytest.raises(StoreUnavailable):
                await store.append(1, bytes(100), lease)
            with pytest.raises(StoreUnavailable):
                await store.save_snapshot(Snapshot(1, bytes(1000)))
            host.disk.limit_space(None)
            await store.append(1, bytes(100), lease)
            host.disk.fail("sync", PATH, errno.EIO)
            with pytest.raises(StoreFailed, match=PATH):
                await store.append(2, b"lost", lease)
            with pytest.raises(StoreFailed):
                await store.read(0)
            host.kill()
            assert len(await store_of(host).read(0)) >= 2

        world.run(scenario())


def test_damage_before_the_end_is_said() -> None:
    with simulated(6) as world:

        async def scenario() -> None:
            host = world.host("a")
            store = store_of(host)
            lease = await taken(store)
            await store.append(0, b"a" * 40, lease)
            await store.append(1, b"b" * 40, lease)
            size = host.disk.size(PATH)
            host.kill()
            host.disk.open(PATH).pwrite(b"!", size - 60)
            with pytest.raises(StoreFailed, match="damaged"):
                await store_of(host).read(0)
            host.kill()
            host.disk.open(PATH).pwrite(b"a", size - 60)
            host.disk.open(PATH).truncate(size - 3)
            assert await store_of(host).read(0) == [StoredEntry(0, b"a" * 40)]

        world.run(scenario())


@given(seed=st.integers(0, 1 << 30), sizes=st.lists(st.integers(0, 1500), max_size=8), snapshot_at=st.integers(0, 8))
@settings(max_examples=25, deadline=None)
def test_power_may_fail_after_any_step(seed: int, sizes: list[int], snapshot_at: int) -> None:
    with simulated(seed) as world:
        host = world.host("a")
        survivors: list[tuple[int, int, SimDisk]] = []
        acknowledged = [0]
        asked = [0]

        def cut(_operation: str, _path: str) -> None:
            disk = host.disk.power_cut(random.Random(seed + host.disk.operations))
            survivors.append((acknowledged[0], asked[0], disk))

        async def write() -> None:
            store = store_of(host)
            host.disk.on_operation = cut
            lease = await taken(store)
            for position, size in enumerate(sizes):
                asked[0] = position + 1
                await store.append(position, bytes([position]) * size, lease)
                acknowledged[0] = position + 1
                if position == snapshot_at:
                    await store.save_snapshot(Snapshot(position, b"state"))

        async def check() -> None:
            runtime = world.host("b").runtime
            for least, most, disk in survivors:
                store = SimStore(PATH, runtime.clock, runtime.tasks, disk)
                kept = await store.snapshot()
                entries = await store.read(0)
                first = kept.position if kept is not None else 0
                assert least <= first + len(entries) <= most
                wanted = range(first, first + len(entries))
                assert entries == [StoredEntry(at, bytes([at]) * sizes[at]) for at in wanted]

        world.run(write())
        world.run(check())
