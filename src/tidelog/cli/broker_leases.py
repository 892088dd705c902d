"""The leases of a broker process in the metadata store, as the supervisor of the brokers uses them.

A lease normally ends when its term is over, some seconds after its holder has died. The supervisor knows at once that a
process is dead, and ends its leases, so that the other brokers need not wait.
"""

import logging
from typing import TYPE_CHECKING

from tidelog.config.properties import parse_properties
from tidelog.log.checkpoints import META_PROPERTIES
from tidelog.metadata.leadership import CONTROLLER_LEASE
from tidelog.metadata.store import Lease, StoreFailed, StoreUnavailable

if TYPE_CHECKING:
    from tidelog.config.metadata_store import StoreAddress
    from tidelog.metadata.store import Store
    from tidelog.runtime.interfaces import Disk, Runtime

logger = logging.getLogger("tidelog.supervisor")

BROKER_LEASES = "broker/"
"""Prefix of the names of the leases of brokers; the broker's number follows."""


class BrokerLeases:
    """Reads and ends leases in the store at `address`. No method raises because of the store."""

    def __init__(self, address: "StoreAddress", runtime: "Runtime") -> None:
        self._address = address
        self._runtime = runtime

    async def controller(self) -> int | None:
        """Return the number of the broker that is the controller; None if there is none or the store is away."""
        for lease in await self._held(CONTROLLER_LEASE):
            if lease.name == CONTROLLER_LEASE:
                return broker_number(lease)
        return None

    async def of_broker(self, number: int, directory: str) -> list[Lease]:
        """Return the leases that the broker with this number and this data directory holds.

        A process with the same number and another directory, started by mistake, has other leases.
        """
        directory_id = await self._runtime.tasks.run_blocking(read_directory_id, self._runtime.disk, directory)
        return [
            lease
            for lease in await self._held("")
            if broker_number(lease) == number and directory_id and directory_id in lease.holder
        ]

    async def end(self, leases: list[Lease]) -> None:
        """End leases of a process that is known to be dead. A lease that another process has acquired since is not
        affected, because an acquisition raises the epoch.
        """
        if not leases:
            return
        store = self._open()
        try:
            for lease in leases:
                await store.release(lease)
                logger.info("lease of a dead broker ended name=%s holder=%s epoch=%d", *lease)
        except (StoreFailed, StoreUnavailable) as error:
            logger.warning("lease of a dead broker not ended, it ends by itself reason=%s", error)
        finally:
            await store.close()

    async def _held(self, prefix: str) -> list[Lease]:
        store = self._open()
        try:
            return await store.held_leases(prefix)
        except (StoreFailed, StoreUnavailable) as error:
            logger.warning("leases of brokers not read reason=%s", error)
            return []
        finally:
            await store.close()

    def _open(self) -> "Store":
        from tidelog.broker.metadata_store import make_store

        return make_store(self._address, "", self._runtime)


def read_directory_id(disk: "Disk", directory: str) -> str:
    """Return the id of the data directory; "" if it cannot be read. Blocks."""
    try:
        text = disk.read(f"{directory}/{META_PROPERTIES}").decode()
        return next((p.value.strip() for p in parse_properties(text) if p.name == "directory.id"), "")
    except (OSError, ValueError):
        return ""


def broker_number(lease: Lease) -> int | None:
    """Return the number of the broker that holds this lease; None if the lease is not one of a broker.

    The lease of a broker has its number in its name. The holder of the controller's lease is `broker-N` or
    `broker-N/...`.
    """
    if lease.name.startswith(BROKER_LEASES):
        text = lease.name.removeprefix(BROKER_LEASES)
    elif lease.name == CONTROLLER_LEASE and lease.holder.startswith("broker-"):
        text = lease.holder.removeprefix("broker-").partition("/")[0]
    else:
        return None
    return int(text) if text.isascii() and text.isdigit() else None
