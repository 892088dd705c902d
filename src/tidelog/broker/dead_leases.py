"""End the leases of a broker process that has certainly ended. The program that has started the process uses this
module.

If the holder of a lease is killed, the lease normally ends some seconds later, when the lease's term is over. But the
process that has started the broker knows at once that the broker has ended. So it ends the broker's leases, and the
other brokers elect new leaders without waiting.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.broker.last_run import directory_ids, read_last_run
from tidelog.broker.metadata_store import make_store
from tidelog.metadata.leadership import CONTROLLER_LEASE, controller_holder, holding_broker
from tidelog.metadata.registration import broker_lease
from tidelog.metadata.store import StoreFailed, StoreUnavailable, find_lease
from tidelog.model.ids import uuid_text

if TYPE_CHECKING:
    from tidelog.config.metadata_store import StoreAddress
    from tidelog.metadata.store import Store
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.broker")


class BrokerLeases:
    """Reads and ends the brokers' leases in the store at `address`. Errors of the store are logged and not raised."""

    def __init__(self, address: "StoreAddress", runtime: "Runtime") -> None:
        self._address = address
        self._runtime = runtime

    async def prepare(self) -> None:
        """Load the modules that `end` needs, by a first use of the store. Loading them takes longer than `end` itself.
        If `end` had to load them, the partitions that a dead broker led would have no leader during this time.
        """
        await self.controller()

    async def controller(self) -> int | None:
        """Return the node id of the controller, or None if there is no controller or the store cannot be reached."""
        store = self._open()
        try:
            lease = await find_lease(store, CONTROLLER_LEASE)
        except (StoreFailed, StoreUnavailable) as error:
            logger.warning("lease of the controller not read reason=%s", error)
            return None
        finally:
            await store.close()
        return None if lease is None else holding_broker(lease)

    async def end(self, node_id: int, directories: Sequence[str]) -> None:
        """End the leases of the broker's last run in these data directories. The process of this run must have ended.

        The leases of all other processes remain, even if such a process is a broker with the same node id. This is
        certain because the field `holder` of a lease contains the id of the run or of the data directory, and each
        acquisition increments the lease's epoch.
        """
        store = self._open()
        try:
            run_blocking, disk = self._runtime.tasks.run_blocking, self._runtime.disk
            run = await run_blocking(read_last_run, disk, directories)
            holders = {broker_lease(node_id): run.incarnation}
            for directory in (await run_blocking(directory_ids, disk, directories))[:1]:
                holders[CONTROLLER_LEASE] = controller_holder(node_id, uuid_text(directory))
            for lease in await store.held_leases(""):
                if lease.holder and lease.holder == holders.get(lease.name):
                    await store.release(lease)
                    logger.info("lease of a dead broker released name=%s epoch=%d", lease.name, lease.epoch)
        except (StoreFailed, StoreUnavailable) as error:
            logger.warning("leases of a dead broker not ended node=%d reason=%s", node_id, error)
        finally:
            await store.close()

    def _open(self) -> "Store":
        return make_store(self._address, "", self._runtime)
