"""The broker's parts for transactions: coordinators, the writer of markers, and the guard of partitions.

The writer and the guard are created, and their modules are imported, when the first transaction needs them.
"""

from typing import TYPE_CHECKING

from tidelog.coordinator.transactions import TransactionCoordinators

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tidelog.api.services import Services
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.coordinator.marker_writer import MarkerWriter
    from tidelog.coordinator.runtime import CoordinatorPartition
    from tidelog.coordinator.transaction.core import TransactionCore
    from tidelog.coordinator.transaction.markers import MarkersToWrite
    from tidelog.coordinator.transaction_guard import TransactionGuard
    from tidelog.metadata.broker_channels import BrokerChannels
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.peer_connections import PeerConnections
    from tidelog.metadata.producer_ids import ProducerIds
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.model.steps import Steps
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime
    from tidelog.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse


class TransactionParts:
    """The parts that handlers use (`coordinators`, `guard`), and the writer that carries out the coordinators'
    decisions.
    """

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
        """`connections` lead to other brokers; None if no other broker can use the metadata store. The services do not
        exist yet when this object is created, so `services` is called only when markers are written.
        """
        self._runtime = runtime
        self._config = config
        self._metadata = metadata
        self._connections = connections
        self._services = services
        self._marker_writer: MarkerWriter | None = None
        self._guard: TransactionGuard | None = None
        self._is_closed = False
        self.coordinators = TransactionCoordinators(
            runtime=runtime,
            config=config,
            partitions=partitions,
            metadata=metadata,
            controller=controller,
            producer_ids=producer_ids,
            perform=self._begin_markers,
            incarnation=incarnation,
        )

    @property
    def guard(self) -> "TransactionGuard":
        if self._guard is None:
            from tidelog.coordinator.transaction_guard import TransactionGuard

            channels = self._channels("transactions")
            self._guard = TransactionGuard(self._runtime, self._config, self._metadata, self.coordinators, channels)
            if self._is_closed:
                self._guard.close()
        return self._guard

    @property
    def _markers(self) -> "MarkerWriter":
        if self._marker_writer is None:
            from tidelog.coordinator.marker_writer import MarkerWriter

            node_id, channels = self._config.node_id, self._channels("markers")
            self._marker_writer = MarkerWriter(self._runtime, node_id, self._metadata, self._write_markers, channels)
        return self._marker_writer

    def close(self) -> None:
        """Answer all waiting requests, and stop. The next coordinators write the markers that are missing."""
        self._is_closed = True
        self.coordinators.close()
        if self._marker_writer is not None:
            self._marker_writer.close()
        if self._guard is not None:
            self._guard.close()

    def _channels(self, purpose: str) -> "BrokerChannels | None":
        if self._connections is None:
            return None
        from tidelog.client.channel import ChannelConfig
        from tidelog.metadata.broker_channels import BrokerChannels

        config = ChannelConfig(client_id=f"broker-{self._config.node_id}-{purpose}")
        return BrokerChannels(self._connections, config)

    def _begin_markers(self, coordinator: "CoordinatorPartition[TransactionCore]", markers: "MarkersToWrite") -> None:
        if not self._is_closed:
            self._markers.begin(coordinator, markers)

    async def _write_markers(self, request: "WriteTxnMarkersRequest") -> "WriteTxnMarkersResponse":
        """Append markers to partitions that this broker leads."""
        from tidelog.api.write_txn_markers import write_markers

        pending = await self._runtime.turns.run(write_markers(self._services(), request))
        written: asyncio.Future[Steps[WriteTxnMarkersResponse]] = self._runtime.tasks.future()
        pending.listen(written.set_result)
        return await self._runtime.turns.run(await written)
