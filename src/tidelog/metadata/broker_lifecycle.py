"""The lifecycle of one broker of a cluster: its lease in the store, its registration, its heartbeats and its shutdown.

The lease says that the process is running. The broker acquires it before it opens any log, so that a second process
with the same node id is refused. The broker renews the lease until it stops. When the lease has ended, the controller
fences the broker.

A heartbeat tells the controller how far the broker has followed the journal. The controller unfences a broker that has
followed the journal up to its registration. A heartbeat also says whether the broker wants to shut down. The broker
sends heartbeats until it stops, so a fenced broker is unfenced without the help of an administrator.
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
"""If the lease belongs to an earlier process, a start waits at most for a full term of the lease and this additional
time, in seconds. A store may notice late that a lease has ended."""
HEARTBEAT_RETRY_S: Final = 0.2
"""Pause before the next heartbeat, in seconds, after a failed heartbeat and while the broker waits for a change of its
state."""
HEARTBEAT_TIMEOUT_MS: Final = 5000
"""Longest time that one heartbeat waits for its answer."""
LEASE_CHECK_S: Final = 0.5
"""Interval of the calls of `on_lease_over` while this broker has no lease, in seconds."""


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
        """The epoch with which this run of the broker is registered; -1 before the registration."""
        self.on_lease_over: Callable[[], None] | None = None
        """Called when the lease has ended, and again at intervals while this broker has no lease."""
        self.on_lease_regained: Callable[[], None] | None = None
        """Called when this broker has a lease again, and its roles correspond to all metadata that the controller had
        written up to that time."""
        self.on_failed: Callable[[str], None] | None = None
        """Called when another process runs as this broker. The argument is the error message."""
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
        self._lease_over_s = float("-inf")
        """Monotonic time of the last call of `on_lease_over`, in seconds."""
        self._lease_renewal: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._is_fenced = True
        self._answered_position = 0
        """The position of the metadata on which the controller's last answer to a heartbeat was based."""
        self._wants_shutdown = False
        self._may_stop = False
        self._heartbeat_is_due: asyncio.Future[None] = runtime.tasks.future()
        """Done when the next heartbeat must be sent without waiting for the interval."""
        self._next_answer: asyncio.Future[None] = runtime.tasks.future()
        """Done when the controller accepts the next heartbeat."""
        self._failure_is_logged = False
        """Whether the log has a line about the current series of failed heartbeats."""

    # The lease

    async def acquire_lease(self, previous_incarnation: str | None = None) -> None:
        """Wait until the lease of this broker's earlier run has ended. Then acquire the lease, and keep renewing it.

        This process has locked the broker's directories, so the earlier run `previous_incarnation` has certainly
        ended. If that run still has the lease, the lease is released at once.

        Raises LeaseLost if another process still has the lease after a full term and ACQUIRE_EXTRA_S. Also raises the
        exceptions of `Store.acquire`.
        """
        name = broker_lease(self._node_id)
        deadline_s = self._clock.monotonic() + self.session_ms / 1000 + ACQUIRE_EXTRA_S
        is_logged = False
        while True:
            lease = await self._acquire()
            if lease is not None:
                break
            current_lease = await find_lease(self._store, name)
            if current_lease is not None and current_lease.holder == previous_incarnation:
                await self._store.release(current_lease)
                continue
            if self._clock.monotonic() >= deadline_s:
                raise LeaseLost(f"another process runs as broker {self._node_id}: stop it, or choose another node.id")
            if not is_logged:
                logger.warning("broker lease is held by another process, waiting until the lease ends lease=%s", name)
                is_logged = True
            await self._tasks.sleep(RETRY_S)
        self._lease = lease
        self._lease_renewal = self._tasks.spawn(self._maintain_lease(lease), name="broker-lease")

    async def _acquire(self) -> HeldLease | None:
        return await HeldLease.acquire(
            self._store, self._runtime, broker_lease(self._node_id), self._incarnation, self.session_ms
        )

    async def _maintain_lease(self, lease: HeldLease) -> None:
        """Renew the lease, and acquire it again whenever it was lost."""
        while True:
            await lease.renew_until_lost()
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
                self._end_leading()
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
        """Lead partitions again, as soon as the roles of this broker correspond to the decisions that the controller
        made while the broker had no lease.
        """
        while lease.is_valid:
            # `_send_heartbeat` returns True only after the roles of this broker correspond to the metadata on which the
            # controller's answer is based. Before the broker is registered, it leads no partition, and the controller
            # has made no decision about it.
            is_current = self.broker_epoch < 0 or await self._send_heartbeat()
            if not lease.is_valid:
                return  # lost during the heartbeat; another call of this method belongs to the next lease
            if is_current:
                logger.warning("broker lease acquired again node=%d", self._node_id)
                self._notify(self.on_lease_regained)
                return
            self._end_leading()
            await self._tasks.sleep(HEARTBEAT_RETRY_S)

    def check_lease(self) -> None:
        """Call `on_lease_over` at once if the lease has ended and its renewal has not noticed this yet.

        After a pause of the whole process, the renewal notices the end late: requests that arrived during the pause
        are handled before the timers of the renewal. After the end of the lease, another broker may coordinate the
        same groups or transactions, or lead the same partitions with more records. So this method must be called before
        a coordinator on this broker is used, and before a client learns that an offset is above the end of a log.
        """
        lease = self._lease
        if lease is None or lease.is_valid:
            return
        if self._runtime.clock.monotonic() - self._lease_over_s >= LEASE_CHECK_S:
            self._end_leading()

    def _end_leading(self) -> None:
        self._lease_over_s = self._runtime.clock.monotonic()
        self._notify(self.on_lease_over)

    def _notify(self, listener: Callable[[], None] | None) -> None:
        if listener is not None:
            try:
                listener()
            except Exception:
                logger.exception("listener of the broker's lease failed")

    def note_registration(self, registration: Registration, broker_epoch: int) -> None:
        """Store the registration of this run, and the broker epoch from the controller's answer."""
        self._registration = registration
        self.broker_epoch = broker_epoch

    # Heartbeats

    async def begin_to_serve(self) -> None:
        """Send heartbeats from now on, and wait until this broker may lead partitions.

        All parts of the broker that listen for images must have processed the current image before this call, so that
        the broker can serve its partitions. Returns when they have also processed the image in which this broker is
        unfenced. Raises ApiError if this does not happen within `initial.broker.registration.timeout.ms`.
        """
        self._heartbeat_task = self._tasks.spawn(self._run_heartbeats(), name="broker-heartbeats")
        deadline_s = self._clock.monotonic() + self._config.initial_broker_registration_timeout_ms / 1000
        while self._is_fenced:
            remaining_s = deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                raise ApiError(f"broker {self._node_id} is still fenced", ErrorCode.REQUEST_TIMED_OUT)
            await asyncio.wait((self._next_answer,), timeout=remaining_s)
        following = self._tasks.spawn(self._publisher.wait_for(self._answered_position), name="follow-unfencing")
        done, _ = await asyncio.wait((following,), timeout=max(deadline_s - self._clock.monotonic(), 0))
        if not done:
            following.cancel()
            raise ApiError(f"broker {self._node_id} has not processed the metadata", ErrorCode.REQUEST_TIMED_OUT)

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Send a heartbeat at once if the controller may be waiting for one. It may be waiting if another broker wants
        to shut down, or if this broker's registration has changed (the broker was fenced) or was removed.

        This is a role listener (`publisher.RoleListener`), so that a broker with a slow disk is unfenced without delay.
        """
        if old.brokers is new.brokers:
            return
        own_registration = new.brokers.get(self._node_id)
        if own_registration is None:
            self._send_heartbeat_soon()
        elif own_registration.epoch == self.broker_epoch and own_registration.fenced:
            self._is_fenced = True
        for number, broker in new.brokers.items():
            before = old.brokers.get(number)
            if before is not broker and (broker.in_controlled_shutdown or number == self._node_id):
                self._send_heartbeat_soon()

    def _send_heartbeat_soon(self) -> None:
        if not self._heartbeat_is_due.done():
            self._heartbeat_is_due.set_result(None)

    async def _run_heartbeats(self) -> None:
        interval_s = self._config.broker_heartbeat_interval_ms / 1000
        while True:
            succeeded = await self._send_heartbeat()
            is_waiting = not succeeded or self._is_fenced or (self._wants_shutdown and not self._may_stop)
            if self._may_stop:
                return
            await asyncio.wait(
                (self._heartbeat_is_due,), timeout=min(HEARTBEAT_RETRY_S, interval_s) if is_waiting else interval_s
            )
            if self._heartbeat_is_due.done():
                self._heartbeat_is_due = self._tasks.future()

    async def _send_heartbeat(self) -> bool:
        """Send one heartbeat, and process its answer. Returns whether the controller accepted it."""
        if not await self._ensure_registered():
            return False
        request = Heartbeat(
            self._node_id,
            self.broker_epoch,
            self._cache.newest.position,
            # If the lease is lost and regained during the start, a heartbeat is sent before `begin_to_serve`. This
            # heartbeat must not unfence the broker: perhaps the broker has not opened its logs yet, or has not written
            # its epoch to its directories yet.
            wants_fence=self._heartbeat_task is None,
            wants_shutdown=self._wants_shutdown,
        )
        answer = await self._link.heartbeat(BrokerHeartbeat(request, HEARTBEAT_TIMEOUT_MS))
        if answer.error is ErrorCode.NONE:
            await self._publisher.wait_for_roles(answer.position)
            self._answered_position = answer.position
            self._accept(answer.result())
            return True
        if not self._failure_is_logged:
            self._failure_is_logged = True
            logger.warning("heartbeat not accepted error=%s reason=%s", answer.error.name, answer.message)
        return False

    def _accept(self, reply: HeartbeatReply) -> None:
        if self._failure_is_logged:
            logger.info("heartbeats are accepted again node=%d", self._node_id)
        self._failure_is_logged = False
        if self._is_fenced and not reply.is_fenced:
            logger.info("broker unfenced node=%d epoch=%d", self._node_id, self.broker_epoch)
        self._is_fenced = reply.is_fenced
        self._may_stop = self._wants_shutdown and reply.should_shut_down
        if not self._next_answer.done():
            self._next_answer.set_result(None)
        self._next_answer = self._tasks.future()

    async def _ensure_registered(self) -> bool:
        """Register this run again if an administrator has removed its registration. Return whether it is registered.

        If another run is registered with this node id, this broker stops.
        """
        image = self._cache.newest
        current = image.brokers.get(self._node_id)
        # The broker epoch is the position of the journal entry with the registration. Until the image contains this
        # entry, the image cannot show that the registration was removed.
        if image.position <= self.broker_epoch or (current is not None and current.incarnation == self._incarnation):
            return True
        if current is not None:
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
        """Let other brokers lead this broker's partitions before it stops (controlled shutdown).

        Returns when every active broker knows the new leaders. Waits at most for the term of the lease, so that an
        unavailable controller or store does not prevent the stop. If this broker crashed instead, the controller would
        fence it after the same time.
        """
        if self._heartbeat_task is None or self._heartbeat_task.done() or not self._config.controlled_shutdown_enable:
            return
        brokers = self._cache.newest.brokers.values()
        if not any(broker.active for broker in brokers if broker.broker_id != self._node_id):
            return  # no other broker can lead the partitions
        self._wants_shutdown = True
        self._send_heartbeat_soon()
        done, _ = await asyncio.wait((self._heartbeat_task,), timeout=self.session_ms / 1000)
        if not done:
            logger.warning("controlled shutdown not completed node=%d timeout_ms=%d", self._node_id, self.session_ms)

    async def stop(self) -> None:
        """End the heartbeats. The lease is renewed until `release_lease`."""
        await cancel_and_wait(self._heartbeat_task)

    async def release_lease(self) -> None:
        """Release the lease, so that the controller fences this broker at once and its next run does not have to
        wait.
        """
        await cancel_and_wait(self._lease_renewal)
        if self._lease is not None:
            await self._lease.release()
            self._lease = None
