#!/usr/bin/env python3
"""Measures how long a broker takes to load a long metadata journal: the last snapshot and the entries after it.

    bench/journal.py [--records N] [--partitions N] [--data DIR]

A topic with `--partitions` partitions is created, and its leaders change until the journal has had `--records` records,
in entries of 1,000 records. The controller writes snapshots as usual, and deletes the entries before them. Then the
journal is loaded from the file by new objects, as at the start of a broker. The time that this takes depends on the
number of partitions, not on the number of records. The CPU times are valid on a busy machine, too.
"""

import argparse
import asyncio
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "src"))

from tidelog.metadata.journal import Journal
from tidelog.metadata.leadership import CONTROLLER_LEASE, HeldLease
from tidelog.metadata.records import ControllerElected, JournalRecord, PartitionChanged, PartitionState, TopicCreated
from tidelog.metadata.sqlite import SqliteStore
from tidelog.model.ids import TopicId
from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.real import real_runtime

RECORDS_PER_ENTRY = 1000
TOPIC = TopicId(bytes(range(16)))


async def write(runtime: Runtime, path: str, record_count: int, partition_count: int) -> None:
    store = SqliteStore(path, runtime.clock, runtime.tasks, runtime.disk)
    journal = Journal(store, runtime)
    lease = await HeldLease.acquire(store, runtime, CONTROLLER_LEASE, "bench", None)
    assert lease is not None
    state = PartitionState(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3), partition_epoch=0)
    await journal.append([ControllerElected(1, lease.lease.epoch)], lease)
    await journal.append([TopicCreated("orders", TOPIC, (state,) * partition_count)], lease)
    for first in range(0, record_count, RECORDS_PER_ENTRY):
        changes: list[JournalRecord] = [
            PartitionChanged(TOPIC, number % partition_count, leader=1 + number // partition_count % 3)
            for number in range(first, min(first + RECORDS_PER_ENTRY, record_count))
        ]
        await journal.append(changes, lease)
        journal.save_snapshot_if_due()
    await journal.stop()
    await store.close()


async def load(runtime: Runtime, path: str) -> None:
    store = SqliteStore(path, runtime.clock, runtime.tasks, runtime.disk)
    snapshot = await store.snapshot()
    assert snapshot is not None
    entries = await store.read(snapshot.position, -1)
    print(
        f"snapshot: {len(snapshot.data) / 1e6:.2f} MB; after it: {len(entries)} entries, "
        f"{sum(len(entry.data) for entry in entries) / 1e6:.2f} MB; "
        f"file: {pathlib.Path(path).stat().st_size / 1e6:.2f} MB"
    )
    journal = Journal(store, runtime)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await journal.replay()
    print(f"load: {time.perf_counter() - began_s:.3f} s, CPU {time.process_time() - cpu_s:.3f} s")
    await store.close()


async def run(options: argparse.Namespace) -> None:
    runtime = real_runtime()
    with tempfile.TemporaryDirectory(prefix="journal-", dir=options.data) as directory:
        path = f"{directory}/metadata.sqlite"
        cpu_s = time.process_time()
        await write(runtime, path, options.records, options.partitions)
        print(
            f"{options.records:,} records of {options.partitions:,} partitions: CPU {time.process_time() - cpu_s:.1f} s"
        )
        await load(runtime, path)
    await runtime.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--data", type=pathlib.Path, help="directory for the file; it is deleted afterwards")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
