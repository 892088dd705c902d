"""One broker: its parts, in the order in which they start. They stop in the reverse order.

inspect the data directories (lock, identity, journal, Kafka's partitions) -> bind the listeners' addresses
  -> acquire the data directories: only from here on, files are changed
    -> metadata (journal in the store -> image)
      -> partitions (logs, recovery)  -> coordinators (replay of internal topics)
        -> listen

A broker of a cluster acquires its lease before it replays the journal. If brokers are fenced when they register (see
`MetadataService.fences_new_brokers`), the broker registers before it opens partitions, and remains fenced. When it
listens, it sends heartbeats, and may lead partitions after the controller has unfenced it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.api.fetch_sessions import FetchSessions
from tidelog.api.preferred_replica import RACK_AWARE_SELECTOR
from tidelog.api.services import Services
from tidelog.broker.adoption import (
    Adoption,
    Identity,
    adopt,
    read_all_partitions,
    read_identities,
    refuse_foreign,
    use_node_id,
)
from tidelog.broker.connection_bounds import ConnectionBounds
from tidelog.broker.fresh import FreshDirectories, are_still_fresh, find_fresh_directories, remove_created_files
from tidelog.broker.listener import Listener
from tidelog.broker.metadata_store import (
    check_directories,
    is_elsewhere,
    make_store,
    refuse_empty_store,
    write_marks,
)
from tidelog.broker.start_report import directory_state, log_start, warn_of_settings
from tidelog.broker.transaction_parts import TransactionParts
from tidelog.config.broker_config import ConfigError
from tidelog.config.topic_config import TopicSettings
from tidelog.coordinator.groups import GroupCoordinators
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.log.file_kinds import METADATA_STORE
from tidelog.metadata.leadership import controller_holder
from tidelog.metadata.link import CONTROLLER_TIMEOUT_MS
from tidelog.metadata.producer_ids import ProducerIds
from tidelog.metadata.publisher import MetadataCache
from tidelog.metadata.service import MetadataService
from tidelog.model.ids import TopicId, uuid_text
from tidelog.quotas.client_quotas import ClientQuotas
from tidelog.quotas.connections import ConnectionQuotas
from tidelog.quotas.windows import Window
from tidelog.replication.compaction import Compaction
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.replication.lease_guard import LeaseGuard
from tidelog.replication.partitions import Partitions

if TYPE_CHECKING:
    from tidelog.broker.cluster_registration import ClusterRegistration
    from tidelog.broker.controller_channel import NetworkControllerChannel
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.metadata.image import MetadataImage
    from tidelog.metadata.link import RequestExecutor
    from tidelog.metadata.peer_connections import PeerConnections
    from tidelog.metadata.records import JournalRecord
    from tidelog.metadata.store import Store
    from tidelog.replication.peers import Peers
    from tidelog.runtime.interfaces import Listener as SocketListener
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.broker")

DRAIN_S: Final = 5.0
"""When the broker stops, clients have this time, in seconds, to read their last responses."""

StoreFactory = Callable[[str, "Runtime"], "Store"]
"""A function that returns the metadata store for a path and a runtime. `tidelog.simulation` passes such a function."""


class BrokerServer:
    """A broker. The constructor does not start it. All methods run on the runtime's loop."""

    def __init__(
        self,
        config: "BrokerConfig",
        runtime: "Runtime",
        *,
        store_factory: StoreFactory | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """Without `store_factory`, the setting metadata.store determines the metadata store.

        `lease_ms` is the duration of the leases if `store_factory` returns a store that other brokers also use.
        """
        self.config = config
        self.runtime = runtime
        self._store_address = config.metadata_store
        self._store_factory = store_factory or partial(make_store, self._store_address, node_id=config.node_id)
        self._store_is_elsewhere = is_elsewhere(self._store_address, config.data_directories)
        """Whether the metadata store is outside the data directories. Other processes may then use it, too."""
        self._lease_ms = config.lease_ms if self._store_is_elsewhere else lease_ms
        self._channel: NetworkControllerChannel | None = None
        """The connections to the controllers on other brokers; None if no other broker can use the metadata store."""
        self.peer_connections: PeerConnections | None = None
        """Opens connections to the other brokers; None if no other broker can use the metadata store."""
        self._directories: DataDirectories | None = None
        self._fresh_before_lock: FreshDirectories | None = None
        """The data directories, if all of them were new or empty before they were locked."""
        self._fresh: FreshDirectories | None = None
        """The data directories, if all of them were still new or empty after they were locked."""
        self._adoption: Adoption | None = None
        """The topics that `_inspect` found in directories without a journal."""
        self._cache = MetadataCache()
        self._metadata: MetadataService | None = None
        self._bound_sockets: list[SocketListener] = []
        """Sockets that are bound to the listeners' addresses and do not listen yet."""
        self._listeners: list[Listener] = []
        self._housekeeping: asyncio.Task[None] | None = None
        self._compaction: Compaction | None = None
        self._peers: Peers | None = None
        """None if no other broker can use the metadata store."""
        self._services: Services | None = None
        self._transactions: TransactionParts | None = None
        self._logs_opened = False
        """Whether every log was opened, or reported as offline."""
        self._cluster_registration: ClusterRegistration | None = None
        """None if no other broker can use the metadata store, and before the directories are locked."""
        self._failed: asyncio.Future[str] = runtime.tasks.future()

    @property
    def services(self) -> Services:
        assert self._services is not None, "the broker has not started"
        return self._services

    @property
    def controller(self) -> "RequestExecutor | None":
        """The object that executes the controller requests of other brokers; None before the start has created it."""
        return None if self._metadata is None else self._metadata.controller

    @property
    def broker_epoch(self) -> int:
        """The epoch with which this run is registered in its cluster; -1 before the registration, and without a
        cluster.
        """
        lifecycle = None if self._metadata is None else self._metadata.lifecycle
        return -1 if lifecycle is None else lifecycle.broker_epoch

    @property
    def host(self) -> str:
        return self._listeners[0].host

    @property
    def port(self) -> int:
        """The port of the first listener; the actual port if port 0 was configured."""
        return self._listeners[0].port

    @property
    def cluster_id(self) -> str:
        return self.services.metadata.image.cluster_id

    # Starting

    async def start(self) -> None:
        """Start the broker, and return when it serves clients.

        Raises ConfigError, AdoptionError, UnusableDirectories, OSError, and the errors of the metadata store. Each
        message states the problem in one line. A damaged partition does not prevent the start: the partition is
        offline, and the broker's log says why.
        """
        try:
            await self._start()
        except BaseException:
            await self._release_failed_start()
            raise

    async def _start(self) -> None:
        began_s = self.runtime.clock.monotonic()
        identity = await self._inspect()
        await self._bind()
        directories, metadata = await self._acquire_directories()
        services = self.services
        if self._channel is not None:
            from tidelog.broker.cluster_registration import ClusterRegistration

            paths = [directory.path for directory in directories.online]
            self._cluster_registration = ClusterRegistration(self.runtime, self.config, paths)
            await self._cluster_registration.read_last_run()
        if self._store_is_elsewhere:
            new_ids = await self._start_with_store_elsewhere(directories, metadata, identity)
        else:
            await metadata.start(identity.cluster_id, self._first_records, previous_incarnation=self._ended_run)
            new_ids = self._new_directory_ids(directories)
        cluster_id = services.metadata.image.cluster_id
        write_identity = directories.write_identity
        await self.runtime.tasks.run_blocking(write_identity, cluster_id, self.config.node_id, new_ids)
        is_fenced_at_first = metadata.fences_new_brokers
        if is_fenced_at_first:
            await self._register()
        reconciler = services.partitions.reconciler
        self._make_peers(services, metadata)
        await metadata.subscribe(reconciler.apply, reconciler.change_roles)
        await metadata.subscribe(services.groups.on_image, services.groups.host.change_roles)
        # The coordinators of transactions react only to changes of roles, and need no call for each new image.
        metadata.publisher.subscribe_roles(services.transactions.host.change_roles)
        metadata.publisher.subscribe_roles(self._apply_quotas)
        await services.partitions.start()
        self._logs_opened = True
        services.groups.start()
        services.transactions.start()
        if self._channel is not None:
            self._guard_leaders(metadata)
        if not is_fenced_at_first:
            await self._register()
        if self._peers is not None:
            # Until its own image contains its registration, this broker cannot prove to other brokers that it is
            # registered. The broker epoch is the registration's position in the journal.
            await metadata.publisher.wait_for(self.broker_epoch + 1)
            self._peers.start()
        self._listen()
        await metadata.begin_to_serve()
        self._housekeeping = self.runtime.tasks.spawn(self._run_housekeeping(), name="housekeeping")
        if self.config.log_cleaner_enable:
            self._compaction = Compaction(self.runtime, self.config, services.partitions)
            self._compaction.start()
        seconds = self.runtime.clock.monotonic() - began_s
        is_new = identity.cluster_id is None and not len(services.partitions)
        log_start(self.config, cluster_id, directory_state(directories, is_new=is_new), services.partitions, seconds)
        warn_of_settings(self.config)

    def _make_peers(self, services: Services, metadata: MetadataService) -> None:
        """Create the `Peers` object, if other brokers can use the metadata store. This must happen before the
        partitions get their roles.
        """
        if self.peer_connections is None:
            return
        from tidelog.replication.peers import Peers  # a single broker starts faster without this import

        selector = self.config.get("replica.selector.class")
        if selector not in (None, "", RACK_AWARE_SELECTOR):
            raise ConfigError(f"replica.selector.class is {selector}; the only selector is {RACK_AWARE_SELECTOR}")
        peers = self._peers = Peers(
            self.runtime,
            self.config,
            services.partitions,
            self._cache,
            services.controller,
            broker_epoch=lambda: self.broker_epoch,
            connect=self.peer_connections.channel,
        )
        services.followers = peers.followers
        services.selects_replicas = selector == RACK_AWARE_SELECTOR
        metadata.publisher.subscribe_roles(peers.change_addresses)

    async def _start_with_store_elsewhere(
        self, directories: DataDirectories, metadata: MetadataService, identity: Identity
    ) -> list[str]:
        """Start the metadata service, mark the directories, and return new ids for directories without an id.

        The id of the first directory becomes part of the text that names this broker as holder of the controller lease.
        This id is the same after a restart, but different for another broker with the same node id.
        """
        run_blocking = self.runtime.tasks.run_blocking
        new_ids = self._new_directory_ids(directories)
        directory_id = await run_blocking(directories.first_id) or new_ids[0]
        holder = controller_holder(self.config.node_id, directory_id)
        await metadata.start(identity.cluster_id, self._first_records, holder, self._ended_run)
        paths = [directory.path for directory in directories.online]
        await run_blocking(write_marks, self.runtime.disk, self._store_address, paths)
        return new_ids

    @property
    def _ended_run(self) -> str | None:
        """The incarnation of the previous run of this broker, if that run has certainly ended; otherwise None."""
        return None if self._cluster_registration is None else self._cluster_registration.ended_run

    def _new_directory_ids(self, directories: DataDirectories) -> list[str]:
        return [uuid_text(self.runtime.new_uuid()) for _ in directories.online]

    async def _inspect(self) -> Identity:
        """Check the data directories and the metadata store, without changing any file. Return the identity of the
        directories.
        """
        run_blocking, disk, paths = self.runtime.tasks.run_blocking, self.runtime.disk, self.config.data_directories
        await run_blocking(refuse_foreign, disk, paths)
        self._fresh_before_lock = await run_blocking(find_fresh_directories, disk, paths)
        elsewhere = self._store_is_elsewhere
        directories = self._directories = await run_blocking(DataDirectories.inspect, disk, paths, elsewhere)
        online = [directory.path for directory in directories.online]
        identity = await run_blocking(read_identities, disk, online)
        use_node_id(identity, self.config, directories.metadata_path if online else self.config.data_directory)
        is_marked = await run_blocking(
            partial(check_directories, elsewhere=elsewhere), disk, self._store_address, online
        )
        store_path = f"{directories.metadata_path}/{METADATA_STORE}" if online else ""
        has_journal = False
        if elsewhere or (store_path and disk.exists(store_path)):
            self._metadata = self._make_metadata(store_path)
            has_journal = await self._metadata.inspect(identity.cluster_id) or not elsewhere
        if is_marked and not has_journal:
            await run_blocking(refuse_empty_store, disk, self._store_address, online[0])
        if online and not has_journal and not is_marked:  # a marked directory was already used by Tidelog
            self._adoption = await self._adopt(online)
        return identity

    def _make_metadata(self, store_path: str) -> MetadataService:
        store = self._store_factory(store_path, self.runtime)
        metadata = MetadataService(
            store, self.config, self.runtime, self._cache, lease_ms=self._lease_ms, channel=self._make_channel()
        )
        metadata.on_failed = self._report_failure
        return metadata

    def _make_channel(self) -> "NetworkControllerChannel | None":
        """Return a new channel to the controllers on other brokers, or None if no other broker can use the store."""
        if self._lease_ms is None:
            return None
        from tidelog.broker.controller_channel import NetworkControllerChannel
        from tidelog.metadata.peer_connections import PeerConnections

        config, runtime = self.config, self.runtime
        self.peer_connections = PeerConnections(config, self._cache, runtime, self._incarnation)
        self._channel = NetworkControllerChannel(self.peer_connections, config.node_id, runtime.turns)
        return self._channel

    def _incarnation(self) -> str:
        """Return the id of this run of the broker's process. Only the brokers of the cluster may know it."""
        assert self._metadata is not None
        return self._metadata.incarnation

    async def _adopt(self, paths: "Sequence[str]") -> Adoption:
        """Read Kafka's partitions in the directories, and return the journal records of their topics."""
        found = await self.runtime.tasks.run_blocking(read_all_partitions, self.runtime.disk, paths)
        return adopt(found, self.config, lambda: TopicId(self.runtime.new_uuid()), ", ".join(paths))

    async def _bind(self) -> None:
        """Bind the listeners' addresses. Connections are refused until `_listen`."""
        for endpoint in self.config.endpoints:
            self._bound_sockets.append(await self.runtime.network.bind(endpoint.host, endpoint.port))

    async def _acquire_directories(self) -> tuple[DataDirectories, MetadataService]:
        """Begin to use the data directories, and create the parts of the broker."""
        run_blocking, disk, paths = self.runtime.tasks.run_blocking, self.runtime.disk, self.config.data_directories
        directories = self._directories
        assert directories is not None
        await run_blocking(directories.acquire)
        if self._fresh_before_lock is not None and await run_blocking(are_still_fresh, disk, paths):
            self._fresh = self._fresh_before_lock
        metadata = self._metadata
        if metadata is None:
            metadata = self._metadata = self._make_metadata(f"{directories.metadata_path}/{METADATA_STORE}")
        self._services = self._make_services(directories, metadata)
        return directories, metadata

    def _apply_quotas(self, old: "MetadataImage", new: "MetadataImage") -> None:
        if old.client_quotas is not new.client_quotas:
            self.services.quotas.set(new.client_quotas)
            self.services.connection_quotas.set(new.client_quotas)

    def _make_services(self, directories: DataDirectories, metadata: MetadataService) -> Services:
        config, runtime, cache, controller = self.config, self.runtime, self._cache, metadata.link
        topic_settings = TopicSettings(config)

        def log_config(image: "MetadataImage", topic: str) -> LogConfig:
            return LogConfig.from_settings(topic_settings.of(image.topics[topic].config))

        directories.cordoned = lambda: config.cordoned_directories
        partitions = Partitions(
            runtime,
            directories,
            log_config,
            node_id=config.node_id,
            flush_interval_ms=config.durability_interval_ms,
            lag_max_ms=config.get("replica.lag.time.max.ms"),
        )
        partitions.on_all_failed = self._report_failure
        partitions.moves.bytes_per_second = lambda: config.get("replica.alter.log.dirs.io.max.bytes.per.second")
        quotas = ClientQuotas(
            Window(config.quota_window_num, config.quota_window_size_seconds * 1000),
            Window(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000),
        )
        metadata.controller.mutation_quota = quotas.mutations
        incarnation = None if self._channel is None else metadata.incarnation
        producer_ids = ProducerIds(controller, config.node_id, None if self._channel is None else CONTROLLER_TIMEOUT_MS)
        transactions = self._transactions = TransactionParts(
            runtime=runtime,
            config=config,
            partitions=partitions,
            metadata=cache,
            controller=controller,
            producer_ids=producer_ids,
            connections=self.peer_connections,
            incarnation=incarnation,
            services=lambda: self.services,
        )
        services = Services(
            runtime=runtime,
            config=config,
            metadata=cache,
            controller=controller,
            partitions=partitions,
            groups=GroupCoordinators(
                runtime=runtime,
                config=config,
                partitions=partitions,
                metadata=cache,
                controller=controller,
                incarnation=incarnation,
            ),
            transactions=transactions.coordinators,
            transaction_guard=lambda: transactions.guard,
            producer_ids=producer_ids,
            quotas=quotas,
            connection_quotas=ConnectionQuotas(
                Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
            ),
            fetch_sessions=FetchSessions(
                runtime.clock, runtime.random, config.max_incremental_fetch_session_cache_slots, turns=runtime.turns
            ),
        )
        if self.peer_connections is not None:
            from tidelog.api.peer_brokers import PeerBrokers

            services.peer_brokers = PeerBrokers(config.node_id, self._incarnation, metadata.controller, cache, runtime)
        return services

    def _close_transactions(self) -> None:
        if self._transactions is not None:
            self._transactions.close()

    async def _first_records(self) -> "Sequence[JournalRecord]":
        """Return the first records of a new journal. They create the topics whose partitions are in the directories."""
        directories = self._directories
        assert directories is not None
        adoption = self._adoption or await self._adopt([directory.path for directory in directories.online])
        for notice in adoption.notices:
            logger.warning("adopted %s", notice)
        if adoption.records:
            prepare = directories.prepare_adoption
            await self.runtime.tasks.run_blocking(prepare, adoption.topics, lane=CHECKPOINTS_LANE)
        return adoption.records

    async def _register(self) -> None:
        """Register the listeners' addresses in the metadata."""
        metadata, directories = self._metadata, self._directories
        assert metadata is not None
        assert directories is not None
        endpoints = zip(self.config.endpoints, self._bound_sockets, strict=True)
        bound = [endpoint._replace(port=sockets.port) for endpoint, sockets in endpoints]
        registration = metadata.registration(self.config.advertised_endpoints(bound))
        if self._cluster_registration is None:
            await metadata.register(registration)
            return
        await self._cluster_registration.register(
            metadata,
            registration,
            self.services.partitions,
            was_stopped_cleanly=directories.clean,
            logs_are_open=self._logs_opened,
        )

    def _listen(self) -> None:
        """Accept connections."""
        bounds = ConnectionBounds(self.config)
        while self._bound_sockets:
            name = self.config.endpoints[len(self._listeners)].listener
            accepts_brokers = self.peer_connections is not None and name == self.config.inter_broker_listener
            listener = Listener(self.services, bounds, self._bound_sockets[0], name, accepts_brokers=accepts_brokers)
            listener.start()
            self._listeners.append(listener)
            self._bound_sockets.pop(0)

    def _guard_leaders(self, metadata: MetadataService) -> None:
        """Create the guard: without a lease, this broker must not lead partitions that another broker may lead."""
        lifecycle, partitions = metadata.lifecycle, self.services.partitions
        assert lifecycle is not None
        guard = LeaseGuard(partitions, self.runtime.clock.monotonic, lifecycle.session_ms)
        lifecycle.on_lease_over, lifecycle.on_lease_regained = guard.lease_is_over, guard.lease_is_regained
        partitions.shared.check_lease = lifecycle.check_lease
        for host in (self.services.groups.host, self.services.transactions.host):
            host.check_lease = lifecycle.check_lease

    # Running

    async def _run_housekeeping(self) -> None:
        """Try to open offline partitions, and run retention: for the first time soon after the start, then at the
        interval of retention.
        """
        await self.runtime.tasks.sleep(self.config.log_initial_task_delay_ms / 1000)
        while True:
            for name, task in (
                ("opening of offline partitions", self.services.partitions.open_again),
                ("retention", self.services.partitions.enforce_retention),
            ):
                try:
                    await task()
                except Exception:
                    logger.exception("housekeeping failed task=%s", name)  # the next run tries again
            await self.runtime.tasks.sleep(self.config.log_retention_check_interval_ms / 1000)

    def _report_failure(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_result(reason)

    async def wait_for_failure(self) -> str:
        """Wait until the broker cannot continue. Returns the reason in one line."""
        return await asyncio.shield(self._failed)

    # Stopping

    async def stop(self) -> None:
        """Stop the broker: answer outstanding requests, flush all logs, and mark the directories clean."""
        services = self.services
        if self._metadata is not None and self._metadata.lifecycle is not None and not self._failed.done():
            await self._metadata.lifecycle.shut_down()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self._compaction is not None:
            await self._compaction.stop()
        for listener in self._listeners:
            listener.stop_accepting()
            listener.stop_requests()
        # An offset commit that is handled in steps must reach its coordinator before the coordinator closes.
        await services.turns.wait_until_idle(DRAIN_S)
        services.groups.close()
        self._close_transactions()
        services.partitions.release_waiting()
        await asyncio.gather(*(listener.drain(DRAIN_S) for listener in self._listeners))
        directories = self._directories
        assert directories is not None
        assert self._metadata is not None
        try:
            if self._peers is not None:
                await self._peers.stop()
            unclean = await services.partitions.close()
            await self._metadata.stop()
            self._close_channel()
            await self.runtime.tasks.run_blocking(directories.close, unclean)
        finally:
            directories.release()
        logger.info("stopped cluster=%s node=%d", self.cluster_id, self.config.node_id)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()

    async def _release_failed_start(self) -> None:
        """Release the resources of a failed start.

        If the start failed before it acquired the directories, they are unchanged. Otherwise, if they were new, the
        files that the start has created are removed, unless a client may have connected. If all directories were clean,
        they are marked clean again, unless the start failed between the creation of `Services` and the opening of the
        last log. In all other cases, they remain unclean, as after a crash.
        """
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self._compaction is not None:
            await self._compaction.stop()
        for sockets in self._bound_sockets:
            sockets.close()
        for listener in self._listeners:
            listener.stop_accepting()
            await listener.drain(0)
        directories = self._directories
        close_cleanly = directories is not None and directories.clean and (self._services is None or self._logs_opened)
        unclean: dict[str, str] = {}
        if self._peers is not None:
            await self._peers.stop()
        if self._services is not None:
            self._services.groups.close()
            self._close_transactions()
            if close_cleanly:
                unclean = await self._services.partitions.close()
            else:
                await self._services.partitions.abandon()
        if self._metadata is not None:
            await self._metadata.stop()
        self._close_channel()
        if directories is not None:
            if not directories.is_acquired:
                pass  # nothing was changed
            elif self._fresh is not None and not self._listeners:
                await self._remove_created_files(self._fresh)
            elif close_cleanly:
                await self.runtime.tasks.run_blocking(directories.close, unclean)
            directories.release()

    async def _remove_created_files(self, fresh: FreshDirectories) -> None:
        """Remove the files that the start has created. The directories are locked, so no other broker uses them."""
        run_blocking, disk, paths = self.runtime.tasks.run_blocking, self.runtime.disk, self.config.data_directories
        try:
            await run_blocking(remove_created_files, disk, fresh, paths)
        except OSError as error:
            logger.warning("new data directories not removed paths=%s reason=%s", ",".join(paths), error)
