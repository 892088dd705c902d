"""The life of one broker of a cluster: its lease in the store, its registration, its heartbeats, its shutdown.

The lease says that the process lives. The broker acquires it before it opens anything, so a second process with the
same node id is refused, and renews it until it stops. When the lease has ended, the controller fences the broker.

The heartbeats carry everything else to the controller: how far the broker has followed the journal, so that it is
unfenced, and that it wants to shut down. They go on for the whole life of the broker, so that a broker which was fenced
comes back by itself.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.leadership import RETRY_S, HeldLease
from tidelog.metadata.link import BrokerHeartbeat, ControllerLink, RegisterBroker
from tidelog.metadata.publisher import MetadataCache, Publisher
from tidelog.metadata.registration import Heartbeat, HeartbeatReply, Registration, broker_lease
from tidelog.metadata.store import LeaseLost, Store, StoreFailed, StoreUnavailable, find_lease
from tidelog.runtime.cancelling import cancel_and_wait
from tidelog.runtime.interfaces import Runtime
from tidelog.wire.errors import ApiError, ErrorCode

logger = logging.getLogger("tidelog.metadata")

ACQUIRE_EXTRA_S: Final = 4.0
"""A start waits for the lease of a process that ended for this time after a full term, in seconds, since a store may
notice the end of a lease late."""
HEARTBEAT_RETRY_S: Final = 0.2
"""Pause before the next heartbeat after one that failed, and while the broker waits for a change of its state."""
HEARTBEAT_TIMEOUT_MS: Final = 5000
"""Longest time that one heartbeat waits for its answer."""
LEASE_CHECK_S: Final = 0.5
"""Interval of `on_lease_over` while this broker has no lease, in seconds."""


class BrokerLifecycle:
    """The lease, registration and heartbeats of this run of the broker."""

    def __init__(
        self,
        store: Store,
        link: ControllerLink,
        publisher: Publisher,
        cache: MetadataCache,
        config: BrokerConfig,
        runtime: Runtime,
        incarnation: str,
    ) -> None:
        self.broker_epoch = -1
        """The epoch with which this run of the broker is registered; -1 before that."""
        self.on_lease_over: Callable[[], None] | None = None
        """Called when the lease has ended, and again at intervals while this broker has none."""
        self.on_lease_regained: Callable[[], None] | None = None
        """Called when this broker has a lease again, and has processed the metadata that the controller then had."""
        self.on_failed: Callable[[str], None] | None = None
        """Called with the reason when another process runs as this broker."""
        self.session_ms = config.lease_ms
        """Term of the broker's lease, in milliseconds."""
        self._store = store
        self._link = link
        self._publisher = publisher
        self._cache = cache
        self._config = config
        self._runtime = runtime
        self._clock = runtime.clock
        self._tasks = runtime.tasks
        self._node_id = config.node_id
        self._incarnation = incarnation
        self._registration: Registration | None = None
        self._lease: HeldLease | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._is_fenced = True
        self._wants_shutdown = False
        self._may_stop = False
        self._wake: asyncio.Future[None] = runtime.tasks.future()
        """Done when the next heartbeat must not wait for the interval."""
        self._answered: asyncio.Future[None] = runtime.tasks.future()
        """Done at the next answer to a heartbeat."""
        self._is_logged = False
        """Whether the log has a line about the present series of failed heartbeats."""

    # The lease

    async def acquire_lease(self, previous_incarnation: str | None = None) -> None:
        """Acquire this broker's lease, when the lease of its earlier run has ended, and renew it from now on.

        `previous_incarnation`: an earlier run that has ended for sure, since this process has locked its directories.
        Its lease is released at once.

        Raises LeaseLost if another process still holds the lease after a full term. Also raises as `Store.acquire`.
        """
        name = broker_lease(self._node_id)
        ends_s = self._clock.monotonic() + self.session_ms / 1000 + ACQUIRE_EXTRA_S
        is_logged = False
        while True:
            lease = await self._acquire()
            if lease is not None:
                break
            held = await find_lease(self._store, name)
            if held is not None and held.holder == previous_incarnation:
                await self._store.release(held)
                continue
            if self._clock.monotonic() >= ends_s:
                raise LeaseLost(f"another process runs as broker {self._node_id}: stop it, or choose another node.id")
            if not is_logged:
                logger.warning("broker lease is held by another process, waiting for its end lease=%s", name)
                is_logged = True
            await self._tasks.sleep(RETRY_S)
        self._lease = lease
        self._keeping = self._tasks.spawn(self._keep_lease(lease), name="broker-lease")

    async def _acquire(self) -> HeldLease | None:
        return await HeldLease.acquire(
            self._store, self._runtime, broker_lease(self._node_id), self._incarnation, self.session_ms
        )

    async def _keep_lease(self, lease: HeldLease) -> None:
        """Renew the lease, and acquire it again whenever it was lost."""
        while True:
            await lease.keep()
            logger.error("broker lease lost node=%d reason=%s", self._node_id, lease.lost.result())
            regained = await self._regain()
            if regained is None:
                self._fail(f"another process runs as broker {self._node_id}")
                return
            self._lease = lease = regained
            self._tasks.spawn(self._return_to_work(lease), name="broker-lease-regained")

    async def _regain(self) -> HeldLease | None:
        """Acquire the lease again. Returns None if another process has it."""
        acquiring = self._tasks.spawn(self._acquire_when_reachable(), name="broker-lease-regain")
        try:
            while not acquiring.done():
                self._notify(self.on_lease_over)
                await asyncio.wait((acquiring,), timeout=LEASE_CHECK_S)
            return acquiring.result()
        finally:
            acquiring.cancel()

    async def _acquire_when_reachable(self) -> HeldLease | None:
        while True:
            try:
                return await self._acquire()
            except (StoreUnavailable, StoreFailed):
                await self._tasks.sleep(RETRY_S)

    async def _return_to_work(self, lease: HeldLease) -> None:
        """Lead partitions again, as soon as this broker knows what the controller decided while it had no lease."""
        while lease.is_valid:
            if self.broker_epoch < 0 or await self._beat_once():
                logger.warning("broker lease acquired again node=%d", self._node_id)
                self._notify(self.on_lease_regained)
                return
            self._notify(self.on_lease_over)
            await self._tasks.sleep(HEARTBEAT_RETRY_S)

    def _notify(self, listener: Callable[[], None] | None) -> None:
        if listener is not None:
            try:
                listener()
            except Exception:
                logger.exception("listener of the broker's lease failed")

    def note_registration(self, registration: Registration, broker_epoch: int) -> None:
        """Store the registration of this run and its epoch, which the controller has answered."""
        self._registration = registration
        self.broker_epoch = broker_epoch

    # Heartbeats

    async def begin_to_serve(self) -> None:
        """Send heartbeats from now on, and wait until this broker may lead partitions.

        All listeners must have processed the image before, so that the broker can serve its partitions. Raises ApiError
        if the controller has not unfenced this broker within `initial.broker.registration.timeout.ms`.
        """
        self._beating = self._tasks.spawn(self._send_heartbeats(), name="broker-heartbeats")
        ends_s = self._clock.monotonic() + self._config.initial_broker_registration_timeout_ms / 1000
        while self._is_fenced:
            remaining_s = ends_s - self._clock.monotonic()
            if remaining_s <= 0:
                raise ApiError(f"broker {self._node_id} is still fenced", ErrorCode.REQUEST_TIMED_OUT)
            await asyncio.wait((self._answered,), timeout=remaining_s)

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Send a heartbeat at once if the controller waits for one: another broker wants to shut down, or this broker
        was fenced or unregistered.
        """
        if old.brokers is new.brokers:
            return
        own = new.brokers.get(self._node_id)
        if own is None:
            self._beat_soon()
        elif own.epoch == self.broker_epoch and own.fenced:
            self._is_fenced = True
        for number, broker in new.brokers.items():
            before = old.brokers.get(number)
            if before is not broker and (broker.in_controlled_shutdown or number == self._node_id):
                self._beat_soon()

    def _beat_soon(self) -> None:
        if not self._wake.done():
            self._wake.set_result(None)

    async def _send_heartbeats(self) -> None:
        interval_s = self._config.broker_heartbeat_interval_ms / 1000
        while True:
            succeeded = await self._beat_once()
            is_waiting = not succeeded or self._is_fenced or (self._wants_shutdown and not self._may_stop)
            if self._may_stop:
                return
            await asyncio.wait((self._wake,), timeout=min(HEARTBEAT_RETRY_S, interval_s) if is_waiting else interval_s)
            if self._wake.done():
                self._wake = self._tasks.future()

    async def _beat_once(self) -> bool:
        """Send one heartbeat, and process its answer. Returns whether the controller accepted it."""
        if not await self._is_registered():
            return False
        request = Heartbeat(
            self._node_id, self.broker_epoch, self._cache.image.position, wants_shutdown=self._wants_shutdown
        )
        answer = await self._link.heartbeat(BrokerHeartbeat(request, HEARTBEAT_TIMEOUT_MS))
        if answer.error is ErrorCode.NONE:
            await self._publisher.wait_for(answer.position)
            self._accept(answer.result())
            return True
        if not self._is_logged:
            self._is_logged = True
            logger.warning("heartbeat not answered error=%s reason=%s", answer.error.name, answer.message)
        return False

    def _accept(self, reply: HeartbeatReply) -> None:
        if self._is_logged:
            logger.info("heartbeats are answered again node=%d", self._node_id)
        self._is_logged = False
        if self._is_fenced and not reply.is_fenced:
            logger.info("broker unfenced node=%d epoch=%d", self._node_id, self.broker_epoch)
        self._is_fenced = reply.is_fenced
        self._may_stop = self._wants_shutdown and reply.should_shut_down
        if not self._answered.done():
            self._answered.set_result(None)
        self._answered = self._tasks.future()

    async def _is_registered(self) -> bool:
        """Return whether this run is registered. If an administrator has removed its registration, register it again.

        If another run was registered, this broker stops.
        """
        image = self._cache.image
        own = image.brokers.get(self._node_id)
        if image.position <= self.broker_epoch or (own is not None and own.incarnation == self._incarnation):
            return True
        if own is not None:
            self._fail(f"another process was registered as broker {self._node_id}")
        elif self._registration is not None and not self._wants_shutdown:
            logger.warning("broker was unregistered, it registers again node=%d", self._node_id)
            answer = await self._link.register(RegisterBroker(self._registration))
            if answer.error is ErrorCode.NONE:
                self.broker_epoch = answer.result()
                self._is_fenced = True
                return True
        return False

    def _fail(self, reason: str) -> None:
        logger.error("broker cannot continue node=%d reason=%s", self._node_id, reason)
        if self.on_failed is not None:
            self.on_failed(reason)

    # Stopping

    async def shut_down(self) -> None:
        """Give the leaderships of this broker to other brokers before it stops (controlled shutdown).

        Returns when every active broker knows the new leaders; or after the term of the lease, when the controller
        would fence this broker anyway: a controller or store that is away does not prevent the stop.
        """
        if self._beating is None or self._beating.done() or not self._config.controlled_shutdown_enable:
            return
        brokers = self._cache.image.brokers.values()
        if not any(broker.active for broker in brokers if broker.broker_id != self._node_id):
            return  # no other broker can lead anything
        self._wants_shutdown = True
        self._beat_soon()
        done, _ = await asyncio.wait((self._beating,), timeout=self.session_ms / 1000)
        if not done:
            logger.warning("controlled shutdown not completed node=%d timeout_ms=%d", self._node_id, self.session_ms)

    async def stop(self) -> None:
        """End the heartbeats. The lease is still renewed, until `release_lease`."""
        await cancel_and_wait(self._beating)

    async def release_lease(self) -> None:
        """Release the lease, so that the controller fences this broker at once and its next run need not wait."""
        await cancel_and_wait(self._keeping)
        if self._lease is not None:
            await self._lease.release()
            self._lease = None
