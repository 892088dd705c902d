"""The broker's parts for transactions: coordinators, the writer of markers, and the guard of partitions."""

from typing import TYPE_CHECKING

from tidelog.coordinator.marker_writer import MarkerWriter
from tidelog.coordinator.transaction_guard import TransactionGuard
from tidelog.coordinator.transactions import TransactionCoordinators

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tidelog.api.services import Services
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.metadata.broker_channels import BrokerChannels
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.peer_connections import PeerConnections
    from tidelog.metadata.producer_ids import ProducerIds
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime
    from tidelog.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse


class TransactionParts:
    """What handlers use of transactions (`coordinators`, `guard`), and what carries out the coordinators' decisions."""

    def __init__(
        self,
        *,
        runtime: "Runtime",
        config: "BrokerConfig",
        partitions: "Partitions",
        metadata: "MetadataCache",
        controller: "ControllerLink",
        producer_ids: "ProducerIds",
        connections: "PeerConnections | None",
        incarnation: str | None,
        services: "Callable[[], Services]",
    ) -> None:
        """`connections` lead to other brokers; None if this broker is alone. `services` is called later."""
        self._runtime = runtime
        self._services = services

        def channels(purpose: str) -> "BrokerChannels | None":
            if connections is None:
                return None
            from tidelog.client.channel import ChannelConfig
            from tidelog.metadata.broker_channels import BrokerChannels

            return BrokerChannels(connections, ChannelConfig(client_id=f"broker-{config.node_id}-{purpose}"))

        self._markers = MarkerWriter(runtime, config.node_id, metadata, self._write_markers, channels("markers"))
        self.coordinators = TransactionCoordinators(
            runtime=runtime,
            config=config,
            partitions=partitions,
            metadata=metadata,
            controller=controller,
            producer_ids=producer_ids,
            perform=self._markers.begin,
            incarnation=incarnation,
        )
        self.guard = TransactionGuard(runtime, config, metadata, self.coordinators, channels("transactions"))

    def close(self) -> None:
        """Answer all waiting requests, and stop. Other brokers write the markers that are missing."""
        self.coordinators.close()
        self._markers.close()
        self.guard.close()

    async def _write_markers(self, request: "WriteTxnMarkersRequest") -> "WriteTxnMarkersResponse":
        """Append markers to partitions that this broker leads."""
        from tidelog.api.write_txn_markers import write_markers

        pending = await self._runtime.turns.run(write_markers(self._services(), request))
        written: asyncio.Future[WriteTxnMarkersResponse] = self._runtime.tasks.future()
        pending.listen(written.set_result)
        return await written
