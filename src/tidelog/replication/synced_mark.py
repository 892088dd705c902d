"""The synced mark: while it is on the disks, all records that this broker has acknowledged are synced (KIP-966).

A broker that returns after a power cut stays in the ISR and the ELR if the mark is on its disks. In this module, a
record is called acknowledged if it is below the local mark of its partition. Such a record may have been acknowledged
to a producer, or it may be below the leader's high watermark, or this broker, as a follower, may have told the leader
in a fetch that it has the record.

    stored      when every partition of this broker has `durability=fsync`, and the records below all local marks are
                synced. From then on, local marks move only after syncs.
    withdrawn   before a partition with a `durability` other than `fsync` is opened, and before the `durability` of a
                partition is changed from `fsync`, because the local mark of such a partition moves without a sync. The
                withdrawal is durable.

So the mark costs nothing on the data path. It changes only with the settings of topics and with the partitions that
this broker has.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.replication.descriptor_retry import RETRY_S
from tidelog.replication.flusher import CHECKPOINTS_LANE

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

StoreMark = Callable[[bool], Mapping[str, OSError]]
"""Stores the mark durably in every data directory (True), or withdraws it (False). Returns the errors by directory.
Blocks."""


class SyncedMark:
    """The mark of one run of the broker. All methods are called on the event loop."""

    def __init__(self, runtime: "Runtime", partitions: "Partitions", store: StoreMark, *, is_stored: bool) -> None:
        """`is_stored` says whether the mark is on the disks already. If it is True, no partition may be open yet."""
        self._tasks = runtime.tasks
        self._partitions = partitions
        self._store = store
        self._may_be_stored = is_stored
        """Whether the mark is on a disk, or may be there after a failed write."""
        self._is_wanted = is_stored
        """Whether the mark should be on the disks. Set to True when every partition has `durability=fsync`. Set to
        False when the mark is withdrawn, when a log has failed before the mark is stored, and when the broker stops."""
        self._lock = asyncio.Lock()
        """Held while the mark is written."""
        self._storing: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[Mapping[str, OSError]] | None = None
        """The running or last write. It continues even if the task that waits for it is cancelled."""

    async def withdraw(self) -> None:
        """Withdraw the mark durably from every disk. The mark is not stored again before the next `partitions_changed`.

        A data directory in which the mark cannot be withdrawn is taken out of use.
        """
        self._is_wanted = False
        if self._may_be_stored:
            async with self._lock:
                if self._may_be_stored:
                    for path, error in (await self._write(False)).items():
                        self._partitions.fail_soon(path, str(error))
                    self._may_be_stored = False

    def partitions_changed(self) -> None:
        """Store the mark soon if every partition has `durability=fsync` now. Called after partitions were opened,
        configured or removed.
        """
        if self._is_wanted:
            return
        self._is_wanted = not self._partitions.unopened and all(map(_has_fsync, self._partitions))
        if self._is_wanted and (self._storing is None or self._storing.done()):
            self._storing = self._tasks.spawn(self._store_when_synced(), name="synced-mark")

    async def close(self) -> None:
        """Wait for a running write and begin no other, because the broker stops. The mark is not withdrawn. Called
        after the flusher was stopped.
        """
        self._is_wanted = False
        if self._storing is not None:
            await asyncio.wait([self._storing])  # not cancelled: a running sync must be processed to its end
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _store_when_synced(self) -> None:
        while self._is_wanted:
            for partition in list(self._partitions):
                await partition.wait_until_thawed()
                await self._partitions.flusher.flush_to(partition, partition.log.log_end_offset)
            async with self._lock:
                # There is no await between this check and the write, so the partitions cannot change in between.
                if not self._is_wanted or any(p.log.failure is not None for p in self._partitions):
                    self._is_wanted = False
                    return
                if all(map(_is_synced, self._partitions)):
                    self._may_be_stored = True
                    errors = await self._write(True)
                    if not errors:
                        return
            await self._tasks.sleep(RETRY_S)

    async def _write(self, is_synced: bool) -> Mapping[str, OSError]:
        self._writing = self._tasks.run_blocking(self._store, is_synced, lane=CHECKPOINTS_LANE)
        await asyncio.wait([self._writing])
        return self._writing.result()


def _has_fsync(partition: "Partition") -> bool:
    return partition.config.durability == "fsync"


def _is_synced(partition: "Partition") -> bool:
    return _has_fsync(partition) and partition.replica.local_mark <= partition.log.durable_offset
