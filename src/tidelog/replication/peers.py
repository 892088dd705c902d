"""The work of this broker with the other brokers of its cluster: fetch the partitions that it follows, serve the
followers of the partitions that it leads, and send changes of ISRs to the controller.

A broker that is alone in its cluster has no `Peers` object.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.client.channel import ChannelConfig
from tidelog.client.operations import Backoff
from tidelog.replication.fetchers import Fetchers
from tidelog.replication.followed import FetchSettings
from tidelog.replication.followers import PartitionFollowers
from tidelog.replication.isr_proposals import IsrProposals
from tidelog.replication.offline_replicas import OfflineReplicas
from tidelog.replication.replica import AskForIsr, FetchFrom, Tick
from tidelog.replication.throttles import FollowerThrottle, LeaderThrottle

if TYPE_CHECKING:
    from tidelog.client.channel import Channel
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.metadata.image import BrokerRegistration, MetadataImage
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.fetcher")

PARTITIONS_PER_TURN: Final = 100
"""Number of partitions whose followers are checked in one turn of the event loop."""


class Peers:
    """Fetchers, followers and ISR proposals of one broker."""

    def __init__(
        self,
        runtime: "Runtime",
        config: "BrokerConfig",
        partitions: "Partitions",
        metadata: "MetadataCache",
        controller: "ControllerLink",
        *,
        broker_epoch: Callable[[], int],
        connect: "Callable[[BrokerRegistration, ChannelConfig], Channel]",
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's current registration; -1 before it is registered. `connect`
        creates a channel to a broker and authenticates this broker on it.
        """
        self._runtime = runtime
        self._config = config
        self._partitions = partitions
        self._connect_to = connect
        self._image: MetadataImage = metadata.newest
        """The image from which the brokers' addresses are read."""
        self.followers = PartitionFollowers(partitions, runtime, LeaderThrottle(runtime.clock, config))
        self._proposals = IsrProposals(runtime, controller, config.node_id, broker_epoch)
        self._fetchers = Fetchers(
            runtime,
            partitions,
            broker_id=config.node_id,
            broker_epoch=broker_epoch,
            connect=self._connect,
            settings=FetchSettings.of(config),
            fetchers_per_leader=lambda: config.get("num.replica.fetchers"),
            throttle=FollowerThrottle(runtime.clock, config),
        )
        self._offline = OfflineReplicas(runtime, partitions, controller, broker_epoch)
        self._ticks: asyncio.Task[None] | None = None
        partitions.on_peer_work = self._begin
        partitions.shared.stop_fetching = self._stop_fetching
        partitions.shared.on_refused_append = self._offline.add_refused
        partitions.cuts.on_waiting_promotion = self._offline.add_waiting

    def start(self) -> None:
        """Start fetching. This broker must be registered already."""
        self._fetchers.start()
        self._ticks = self._runtime.tasks.spawn(self._run_ticks(), name="replica-ticks")
        self._offline.check()

    async def stop(self) -> None:
        """End all requests to other brokers, and wait for the syncs and cuts of logs that the fetchers have begun.
        Followers are still served.
        """
        if self._ticks is not None:
            self._ticks.cancel()
        await self._offline.stop()
        await self._proposals.stop()
        await self._fetchers.stop()

    def _begin(self, partition: "Partition", work: AskForIsr | FetchFrom) -> None:
        if isinstance(work, AskForIsr):
            self._proposals.ask(partition, work)
        else:
            self._fetchers.follow(partition, work)

    def _stop_fetching(self, partition: "Partition") -> None:
        self._fetchers.unfollow(partition)
        if partition.log.failure is not None and not partition.deleted:
            self._offline.add(partition)

    def change_addresses(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Use the brokers' addresses from the image `new`. Call this before partitions change their roles."""
        self._image = new
        if self._ticks is not None:
            self._offline.check()
        if old.brokers is new.brokers:
            return
        changed = [
            broker_id
            for broker_id in new.brokers
            if broker_id in old.brokers and old.brokers[broker_id].endpoints != new.brokers[broker_id].endpoints
        ]
        self._fetchers.addresses_changed(changed)

    def _connect(self, leader: int, number: int) -> "Channel | None":
        broker = self._image.brokers.get(leader)
        if broker is None:
            return None
        settings = ChannelConfig(
            client_id=f"broker-{self._config.node_id}-fetcher-{number}",
            request_timeout_ms=self._config.get("replica.socket.timeout.ms"),
            backoff=Backoff(50, max(self._config.get("replica.fetch.backoff.ms"), 50)),
            in_flight_max=1,
        )
        return self._connect_to(broker, settings)

    async def _run_ticks(self) -> None:
        """Check for lagging followers twice per `replica.lag.time.max.ms`, as Kafka does. Before each check, stop idle
        fetchers and check the offline replicas.
        """
        while True:
            await self._runtime.tasks.sleep(self._partitions.lag_max_ms / 2000)
            self._fetchers.stop_idle()
            self._offline.check()
            for number, partition in enumerate(self._partitions):
                if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                    await self._runtime.tasks.sleep(0)
                replica = partition.replica
                if replica.isr is None or replica.is_alone or partition.deleted:
                    continue
                try:
                    partition.step(Tick())
                except Exception:
                    logger.exception("followers not checked partition=%s-%d", partition.topic, partition.index)
