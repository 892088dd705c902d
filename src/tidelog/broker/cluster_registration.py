"""The registration of a cluster's broker. It contains facts about the previous run, which are read from the data
directories (KIP-966).
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.last_run import (
    LastRun,
    directory_ids,
    read_last_run,
    write_last_run,
    write_synced_mark,
)
from tidelog.replication.synced_mark import SyncedMark
from tidelog.runtime.boot import read_boot_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.config.broker_config import BrokerConfig
    from tidelog.metadata.registration import Registration
    from tidelog.metadata.service import MetadataService
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime


class ClusterRegistration:
    """The last run and the registration of a broker. `paths` are its data directories, which the caller has locked."""

    def __init__(self, runtime: "Runtime", config: "BrokerConfig", paths: "Sequence[str]") -> None:
        self._runtime = runtime
        self._config = config
        self._paths = paths
        self._last_run = LastRun()
        self._boot_id = ""

    async def read_last_run(self) -> None:
        run_blocking, disk = self._runtime.tasks.run_blocking, self._runtime.disk
        self._boot_id = await run_blocking(read_boot_id, disk)
        self._last_run = await run_blocking(read_last_run, disk, self._paths, self._boot_id)

    @property
    def ended_run(self) -> str | None:
        """The incarnation of the broker's last run if that last run has certainly ended; otherwise None."""
        return self._last_run.incarnation if self._last_run.has_ended else None

    async def register(
        self,
        metadata: "MetadataService",
        registration: "Registration",
        partitions: "Partitions",
        *,
        was_stopped_cleanly: bool,
        logs_are_open: bool,
    ) -> None:
        """Register the broker, write the current run into the file `broker.run` of each data directory, and create the
        `SyncedMark` of the partitions.
        """
        run_blocking, disk = self._runtime.tasks.run_blocking, self._runtime.disk
        is_synced = was_stopped_cleanly or self._last_run.is_synced
        await metadata.register(
            registration._replace(
                boot_id=self._boot_id,
                directories=await run_blocking(directory_ids, disk, self._paths),
                previous_epoch=self._last_run.broker_epoch,
                is_synced=is_synced,
            )
        )
        assert metadata.lifecycle is not None
        # The mark in `broker.run` says that all acknowledged records are synced. If this is true now, it remains true
        # until logs are opened, so this run may begin with the mark. But if the broker's setting `durability` is not
        # fsync, this run begins without the mark, because the mark would usually be withdrawn when the logs are opened.
        keeps_mark = is_synced and not logs_are_open and self._config.get("durability") == "fsync"
        run = LastRun(registration.incarnation, metadata.lifecycle.broker_epoch, self._boot_id, keeps_mark)
        await run_blocking(write_last_run, disk, self._paths, run)
        store = partial(write_synced_mark, disk, self._paths, run)
        partitions.synced_mark = SyncedMark(self._runtime, partitions, store, is_stored=keeps_mark)
        if logs_are_open:
            partitions.synced_mark.partitions_changed()
