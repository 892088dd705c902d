"""The promises of `Store`, for every kind of store."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from store_harness.environments import Environment
from tidelog.metadata.store import (
    SHARED_VALUE_BYTES_MAX,
    AppendUnknown,
    EntryTooLarge,
    Lease,
    LeaseLost,
    PositionTaken,
    Snapshot,
    Store,
    StoredEntry,
    StoreUnavailable,
    settle_append,
)

Scenario = Callable[[Environment], Coroutine[Any, Any, None]]


def contract(scenario: Scenario) -> Callable[[Environment], None]:
    """Make a test of a scenario."""

    def test(environment: Environment) -> None:
        environment.run(scenario(environment))

    test.__doc__ = scenario.__doc__
    return test


async def acquired(store: Store, holder: str = "one", ttl_ms: int | None = None, name: str = "controller") -> Lease:
    lease = await store.acquire(name, holder, ttl_ms)
    assert lease is not None
    return lease


async def acquired_after_its_end(store: Store, holder: str, environment: Environment) -> Lease:
    """Acquire a lease whose holder does not renew it: not before its term is over, and soon after."""
    lease = None
    for _ in range(100):
        lease = await store.acquire("controller", holder, environment.ttl_ms)
        if lease is not None:
            break
        await asyncio.sleep(0.1)
    assert lease is not None
    return lease


# The journal


@contract
async def test_entries_follow_each_other(environment: Environment) -> None:
    store = environment.open()
    assert await store.read(0) == []
    lease = await acquired(store)
    for position in range(5):
        await store.append(position, b"entry %d" % position, lease, "w1", position + 10)
    expected = [StoredEntry(at, b"entry %d" % at, "w1", at + 10) for at in range(5)]
    assert await store.read(0) == expected
    assert await store.read(3) == expected[3:]
    assert await store.read(0, limit=2) == expected[:2]
    assert await store.read(5) == []
    assert await environment.open().read(0) == expected


@contract
async def test_an_entry_may_have_any_bytes_and_no_writer(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    values = [b"", bytes(range(256)), b"x" * 400_000]
    for position, value in enumerate(values):
        await store.append(position, value, lease)
    assert await store.read(0) == [StoredEntry(at, value) for at, value in enumerate(values)]


@contract
async def test_positions_are_taken_once_and_leave_no_gap(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    with pytest.raises(AssertionError):
        await store.append(1, b"leaves a gap", lease)
    await store.append(0, b"first", lease)
    for _ in range(2):
        with pytest.raises(PositionTaken):
            await store.append(0, b"second", lease)
        with pytest.raises(AssertionError):
            await store.append(2, b"leaves a gap", lease)
    assert await store.read(0) == [StoredEntry(0, b"first")]


@contract
async def test_of_two_appenders_one_wins_each_position(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    lease = await acquired(one)
    won: dict[str, list[int]] = {"a": [], "b": []}

    async def append_until_ten(store: Store, writer: str) -> None:
        position = 0
        while len(won[writer]) < 10:
            try:
                await store.append(position, b"of " + writer.encode(), lease, writer, len(won[writer]))
            except PositionTaken:
                position = (await store.read(position))[-1].position + 1
            else:
                won[writer].append(position)
                position += 1

    await asyncio.gather(append_until_ten(one, "a"), append_until_ten(two, "b"))
    assert sorted(won["a"] + won["b"]) == list(range(20))
    entries = await one.read(0)
    assert entries == await two.read(0)
    assert [at for at, _, writer, _ in entries if writer == "a"] == won["a"]
    assert [number for _, _, writer, number in entries if writer == "a"] == list(range(10))


@contract
async def test_many_entries_are_read_in_order(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    for position in range(260):
        await store.append(position, b"%d" % position, lease)
    assert [entry.data for entry in await store.read(0)] == [b"%d" % i for i in range(260)]
    assert [entry.position for entry in await store.read(90, 120)] == list(range(90, 210))
    for covered in (130, 200, 260):
        await store.save_snapshot(Snapshot(covered, b"state"))
        assert [entry.position for entry in await store.read(0)] == list(range(covered, 260))
    await store.append(260, b"goes on", lease)
    assert await environment.open().read(0) == [StoredEntry(260, b"goes on")]


@contract
async def test_large_entries_are_read_in_pages(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    for position in range(24):
        await store.append(position, bytes([position]) * 470_000, lease)
    positions: list[int] = []
    while page := await store.read(len(positions)):
        assert all(entry.data == bytes([entry.position]) * 470_000 for entry in page)
        positions += [entry.position for entry in page]
    assert positions == list(range(24))


@contract
async def test_an_entry_above_the_limit_changes_nothing(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    large = b"x" * (SHARED_VALUE_BYTES_MAX + 1)
    if store.entry_bytes_max is None:
        await store.append(0, large, lease)
        assert (await store.read(0))[0].data == large
    else:
        with pytest.raises(EntryTooLarge, match=str(len(large))):
            await store.append(0, large, lease)
        await store.append(0, large[: store.entry_bytes_max], lease)
        assert len((await store.read(0))[0].data) == store.entry_bytes_max


@contract
async def test_a_wait_ends_with_the_entry_of_another_process(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    lease = await acquired(one)
    waiting = asyncio.create_task(two.wait(1))
    await one.append(0, b"zero", lease)
    await two.wait(0)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await one.append(1, b"one", lease)
    await asyncio.wait_for(waiting, 8)
    assert loop.time() - began_s < 2  # it was woken; a slice of polling is longer for some kinds
    assert (await two.read(1))[0].data == b"one"


@contract
async def test_a_cancelled_wait_delays_nothing(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    waits = [asyncio.create_task(store.wait(5)) for _ in range(3)]
    await asyncio.sleep(0.3)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await store.append(0, b"zero", lease)
    await asyncio.wait_for(store.wait(0), 5)
    await asyncio.wait_for(store.close(), 5)


# Snapshots


@contract
async def test_a_snapshot_replaces_the_entries_before_it(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    assert await store.snapshot() is None
    for position in range(10):
        await store.append(position, b"x" * 1000, lease)
    await store.save_snapshot(Snapshot(7, b"state"))
    for each in (store, environment.open()):
        assert await each.snapshot() == Snapshot(7, b"state")
        assert [entry.position for entry in await each.read(0)] == [7, 8, 9]
        assert [entry.position for entry in await each.read(8)] == [8, 9]
    with pytest.raises(PositionTaken):
        await store.append(3, b"covered", lease)
    await store.save_snapshot(Snapshot(10, b"later state"))
    assert await store.read(0) == []
    with pytest.raises(PositionTaken):
        await store.append(9, b"covered", lease)
    await store.append(10, b"goes on", lease)
    await store.wait(10)
    assert await environment.open().read(10) == [StoredEntry(10, b"goes on")]


@contract
async def test_an_earlier_snapshot_is_ignored(environment: Environment) -> None:
    """A controller that was paused while it saved a snapshot must not replace a newer one."""
    store = environment.open()
    lease = await acquired(store)
    for position in range(6):
        await store.append(position, b"x", lease)
    await store.save_snapshot(Snapshot(5, b"new"))
    await environment.open().save_snapshot(Snapshot(2, b"old"))
    assert await store.snapshot() == Snapshot(5, b"new")
    assert [entry.position for entry in await store.read(0)] == [5]


@contract
async def test_a_large_snapshot_has_parts(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    data = b"".join(b"%07d," % i for i in range(250_000))
    for position, content in enumerate((data, data[::-1], b"")):
        await store.append(position, b"x", lease)
        await store.save_snapshot(Snapshot(position + 1, content))
        assert await environment.open().snapshot() == Snapshot(position + 1, content)


@contract
async def test_an_inspection_reads_everything(environment: Environment) -> None:
    store = environment.open()
    assert await store.inspect() is None
    lease = await acquired(store)
    for position in range(4):
        await store.append(position, b"%d" % position, lease)
    await store.save_snapshot(Snapshot(2, b"two"))
    await store.close()
    stored = await environment.open().inspect()
    expected = (Snapshot(2, b"two"), [StoredEntry(2, b"2"), StoredEntry(3, b"3")])
    assert stored in (expected, None)  # None: this kind cannot read without changes


@contract
async def test_without_its_history_the_store_is_the_same(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store, "one", environment.ttl_ms)
    for position in range(4):
        await store.append(position, b"%d" % position, lease)
        await store.renew(lease, environment.ttl_ms)
        waiting = asyncio.create_task(store.wait(position + 1))
        await store.discard_history()
        waiting.cancel()
    for each in (store, environment.open()):
        assert [entry.data for entry in await each.read(0)] == [b"0", b"1", b"2", b"3"]
        assert await each.held_leases("") == [lease]


# Leases


@contract
async def test_a_lease_has_one_holder_and_each_acquisition_a_new_epoch(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    first = await acquired(one, "one", environment.ttl_ms)
    assert first == Lease("controller", "one", 1)
    assert await two.acquire("controller", "two", environment.ttl_ms) is None
    assert await two.acquire("broker/2", "two", environment.ttl_ms) == Lease("broker/2", "two", 1)
    again = await acquired(two, "one", environment.ttl_ms)  # the same holder, in another process
    assert again.epoch == 2
    with pytest.raises(LeaseLost):
        await one.append(0, b"under the first", first)
    with pytest.raises(LeaseLost):
        await one.renew(first, environment.ttl_ms)
    await one.release(first)  # it is lost already
    await two.append(0, b"under the second", again)
    await two.release(again)
    with pytest.raises(LeaseLost):
        await two.append(1, b"released", again)
    other = await acquired(one, "two", environment.ttl_ms)
    assert other.epoch == 3
    await one.append(1, b"under the third", other)


@contract
async def test_a_renewed_lease_does_not_end(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    lease = await acquired(one, "one", environment.ttl_ms)
    for position in range(6):
        await asyncio.sleep(environment.ttl_ms / 3000)
        await one.renew(lease, environment.ttl_ms)
        assert await two.acquire("controller", "two", environment.ttl_ms) is None
        await one.append(position, b"in time", lease)
    assert await two.held_leases("") == [lease]


@contract
async def test_a_lease_that_is_not_renewed_ends_after_its_term(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    first = await acquired(one, "one", environment.ttl_ms)
    second = await acquired_after_its_end(two, "two", environment)
    passed_s = loop.time() - began_s
    assert environment.ttl_ms / 1000 <= passed_s <= environment.ttl_ms / 1000 + environment.slack_s + 0.5
    assert second.epoch == first.epoch + 1
    for call in (one.append(0, b"too late", first), one.renew(first, environment.ttl_ms)):
        with pytest.raises(LeaseLost):
            await call
    await two.append(0, b"in time", second)
    await one.release(first)
    assert [entry.data for entry in await one.read(0)] == [b"in time"]
    assert await one.held_leases("") == [second]


@contract
async def test_after_its_term_a_holder_changes_nothing_even_without_a_successor(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store, "one", environment.ttl_ms)
    await asyncio.sleep(environment.ttl_ms / 1000 + environment.slack_s)
    for call in (store.append(0, b"too late", lease), store.renew(lease, environment.ttl_ms)):
        with pytest.raises(LeaseLost):
            await call
    assert (await acquired(store, "one", environment.ttl_ms)).epoch == 2


@contract
async def test_a_lease_without_a_term_stays(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    lease = await acquired(one, "one", None)
    await asyncio.sleep(environment.ttl_ms / 1000 + environment.slack_s)
    assert await two.acquire("controller", "two", None) is None
    await one.append(0, b"still held", lease)
    if environment.has_processes:
        await one.close()
        assert await two.acquire("controller", "two", None) is None
    assert (await acquired(two, "one", None)).epoch == 2


@contract
async def test_leases_of_brokers_are_listed_until_they_end(environment: Environment) -> None:
    store = environment.open()
    assert await store.held_leases("broker/") == []
    leases = [await acquired(store, f"incarnation-{i}", None, f"broker/{i}") for i in (1, 2, 3)]
    await acquired(store)
    short = await acquired(store, "incarnation-4", environment.ttl_ms, "broker/4")
    assert await store.held_leases("broker/") == [*leases, short]
    await store.release(leases[1])
    for _ in range(100):
        held = await environment.open().held_leases("broker/")
        held = await store.held_leases("broker/")
        assert set(held) >= {leases[0], leases[2]}
        if short not in held:
            break
        await asyncio.sleep(0.1)
    assert held == [leases[0], leases[2]]


# Lost answers and an absent store


@contract
async def test_a_lost_answer_leaves_the_outcome_open_and_it_is_found_out(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    await store.append(0, b"zero", lease, "w1", 0)
    environment.lose_next_answer(store)
    with pytest.raises(AppendUnknown):
        await store.append(1, b"one", lease, "w1", 1)
    store = environment.recovered(store)
    for _ in range(60):  # until the store is back
        try:
            await settle_append(store, 1, b"one", lease, "w1", 1)
            break
        except (StoreUnavailable, AppendUnknown):
            await asyncio.sleep(0.5)
    assert await store.read(0) == [StoredEntry(0, b"zero", "w1", 0), StoredEntry(1, b"one", "w1", 1)]
    await store.append(2, b"two", lease, "w1", 2)


@contract
async def test_a_lost_append_is_not_mistaken_for_anothers(environment: Environment) -> None:
    one, two = environment.open(), environment.open()
    lease = await acquired(one)
    await one.append(0, b"zero", lease, "w1", 0)
    await two.append(1, b"the same bytes", lease, "w2", 7)
    for writer, number in (("w1", 7), ("w2", 6), ("", 0)):
        with pytest.raises(PositionTaken):
            await settle_append(one, 1, b"the same bytes", lease, writer, number)
    await settle_append(one, 1, b"the same bytes", lease, "w2", 7)
    other = await acquired(two, "one")
    await settle_append(one, 1, b"the same bytes", lease, "w2", 7)  # the lease is lost, and the entry was stored
    with pytest.raises(LeaseLost):
        await settle_append(one, 2, b"never stored", lease, "w1", 8)
    assert len(await two.read(0)) == 2
    await two.append(2, b"two", other)


@contract
async def test_while_the_store_is_away_calls_say_so_and_then_work_again(environment: Environment) -> None:
    store = environment.open()
    lease = await acquired(store)
    await store.append(0, b"zero", lease, "w1", 0)
    environment.go_away()
    with pytest.raises((StoreUnavailable, AppendUnknown)):  # it may be sent on a connection that is just being closed
        await store.append(1, b"one", lease, "w1", 1)
    expected = StoreUnavailable if environment.away_changes_nothing else AppendUnknown
    with pytest.raises(expected):
        await store.append(1, b"one", lease, "w1", 1)
    with pytest.raises(StoreUnavailable):
        await store.renew(lease, environment.ttl_ms)
    environment.come_back()
    for _ in range(60):
        try:
            await settle_append(store, 1, b"one", lease, "w1", 1)
            break
        except (StoreUnavailable, AppendUnknown):
            await asyncio.sleep(0.2)
    assert [entry.data for entry in await environment.open().read(0)] == [b"zero", b"one"]
    await store.append(2, b"two", lease, "w1", 2)
