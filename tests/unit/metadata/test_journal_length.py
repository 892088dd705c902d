"""However many entries a journal has had, the store has only the last snapshot and a limited number of entries."""

import asyncio
from pathlib import Path

import pytest

from tidelog.metadata.journal import SNAPSHOT_BYTES_MIN, Journal
from tidelog.metadata.leadership import CONTROLLER_LEASE, HeldLease
from tidelog.metadata.records import ControllerElected, JournalRecord, PartitionChanged, PartitionState, TopicCreated
from tidelog.metadata.sqlite import SqliteStore
from tidelog.model.ids import TopicId
from tidelog.runtime.real import real_runtime

TOPIC = TopicId(bytes(range(16)))
RECORDS_PER_ENTRY = 1000


@pytest.mark.parametrize("partition_count", [10, 20_000])
def test_a_long_journal_is_loaded_from_its_snapshot_and_few_entries(tmp_path: Path, partition_count: int) -> None:
    async def scenario() -> None:
        runtime = real_runtime()
        store = SqliteStore(str(tmp_path / "metadata.sqlite"), runtime.clock, runtime.tasks, runtime.disk)
        journal = Journal(store, runtime)
        lease = await HeldLease.acquire(store, runtime, CONTROLLER_LEASE, "test", None)
        assert lease is not None
        states = tuple(PartitionState(n, 0, (n, n + 1), (n,), 0) for n in range(partition_count))
        await journal.append([ControllerElected(1, lease.lease.epoch)], lease)
        await journal.append([TopicCreated("orders", TOPIC, states)], lease)
        written_bytes = 0
        for number in range(60):
            first = number * RECORDS_PER_ENTRY
            changes: list[JournalRecord] = [
                PartitionChanged(TOPIC, index % partition_count, leader=index)
                for index in range(first, first + RECORDS_PER_ENTRY)
            ]
            await journal.append(changes, lease)
            snapshot = await store.snapshot()
            position = 0 if snapshot is None else snapshot.position
            entries = [len(entry.data) for entry in await store.read(position)]
            # The entry that makes a snapshot due is there, too, until the snapshot is stored.
            limit = max(SNAPSHOT_BYTES_MIN, 0 if snapshot is None else 2 * len(snapshot.data))
            assert sum(entries) - (entries[0] if position == 0 else 0) - max(entries) <= limit
            written_bytes += entries[-1]
            journal.save_snapshot_if_due()
            if journal._snapshot_task is not None:
                await journal._snapshot_task
        assert written_bytes > 2 * SNAPSHOT_BYTES_MIN
        loaded = Journal(store, runtime)
        await loaded.replay()
        assert loaded.image.position == journal.image.position
        assert loaded.image.topics["orders"].partitions == journal.image.topics["orders"].partitions
        await store.close()
        await runtime.close()

    asyncio.run(scenario())
