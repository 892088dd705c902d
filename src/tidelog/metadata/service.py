"""The metadata of this broker: follow the journal, publish its images, and become the controller if no other broker is
the controller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Final

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.endpoints import Endpoint
from tidelog.metadata import controller
from tidelog.metadata.broker_lifecycle import ACQUIRE_EXTRA_S, BrokerLifecycle
from tidelog.metadata.cluster_upkeep import ClusterUpkeep
from tidelog.metadata.features import SUPPORTED_LEVELS, with_newest_levels
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.journal import EntryPending, Journal, PartlyAppended
from tidelog.metadata.leadership import CONTROLLER_LEASE, RENEWALS_PER_LEASE, RETRY_S, HeldLease, controller_holder
from tidelog.metadata.link import ControllerChannel, ControllerLink, ControllerRouter, RegisterBroker
from tidelog.metadata.local_controller import NOT_THE_CONTROLLER, LocalController
from tidelog.metadata.publisher import ImageListener, MetadataCache, Publisher, RoleListener
from tidelog.metadata.records import (
    ClusterNamed,
    ControllerElected,
    JournalError,
    JournalRecord,
)
from tidelog.metadata.registration import Registration
from tidelog.metadata.store import (
    EntryTooLarge,
    LeaseLost,
    PositionTaken,
    Store,
    StoreFailed,
    StoreUnavailable,
    find_lease,
)
from tidelog.model.ids import uuid_text
from tidelog.runtime.cancelling import cancel_and_wait
from tidelog.runtime.interfaces import Runtime
from tidelog.wire.errors import ErrorCode

logger = logging.getLogger("tidelog.metadata")

FINAL_ANSWERS: Final = (
    ErrorCode.NONE,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    ErrorCode.INVALID_REGISTRATION,
    ErrorCode.UNSUPPORTED_VERSION,
)
"""Answers to a registration that are final: another attempt would get the same answer."""
CANDIDACY_S: Final = 0.5
"""Mean pause, in seconds, before a broker of a cluster checks again whether the controller lease has ended. A write to
the store may end the pause earlier."""
STALLED_CANDIDACY_S: Final = 2.0
"""A broker whose own file work is stalled (`MetadataService._stall`) acquires the controller lease only after the lease
has been free for this time, in seconds, so that another broker can become the controller first."""

STALL_CHECK_S: Final = 0.5
"""Interval at which the controller checks whether the file work of its own broker is stalled, in seconds."""

FirstRecords = Callable[[], Awaitable[Sequence[JournalRecord]]]
"""A function that returns the records that follow the record with the cluster's id in a new journal."""


class MetadataService:
    """Journal, publisher and controller of one broker, and the task that runs them.

    If only this broker uses the store, it is the controller from its start to its stop. If several brokers share the
    store, each of them follows the journal, and the holder of the controller lease is the controller. When the lease is
    free, one of the brokers acquires it. The first entry of the new controller is its claim, whose epoch is higher than
    the epochs of all earlier entries. The new controller decides no change before it has replayed the journal and
    appended the claim.
    """

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        runtime: Runtime,
        cache: MetadataCache,
        *,
        lease_ms: int | None = None,
        channel: ControllerChannel | None = None,
    ) -> None:
        """`lease_ms` is the time after which the controller lease expires if it is not renewed. None means that it does
        not expire, since no other process can reach the store.

        `channel` is the connection to the controllers on other brokers. None means that there are no other brokers, so
        this broker has to be the controller.
        """
        self.journal = Journal(store, runtime)
        self.publisher = Publisher(runtime, config, cache)
        self.controller = LocalController(
            self.journal, self.publisher, config, runtime, None if channel is None else store
        )
        self.link: ControllerLink = ControllerRouter(
            config.node_id, self.controller, channel, self.publisher, cache, runtime
        )
        self.on_failed: Callable[[str], None] | None = None
        """Called with the reason when this broker must stop, for example when it can no longer follow the journal."""
        self._store = store
        self._config = config
        self._runtime = runtime
        self._tasks = runtime.tasks
        self._lease_ms = lease_ms
        self._channel = channel
        self.controller.has_to_be_active = lease_ms is not None and channel is None
        self._holder = ""
        self._epochs: dict[int, None] = {}
        """The epochs of all controller leases that this process has acquired."""
        self._lease: HeldLease | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._claimed_at_start = False
        """Whether this broker became the controller in `start`. If so, and if the metadata level is 0, the claim has
        begun new leader epochs for the partitions that this broker leads. The registration need not do this again."""
        self.lifecycle: BrokerLifecycle | None = None
        """None if this broker has no channel to other brokers."""
        self._upkeep: ClusterUpkeep | None = None
        if channel is not None:
            self.lifecycle = BrokerLifecycle(store, self.link, self.publisher, cache, config, runtime, self.incarnation)
            self._upkeep = ClusterUpkeep(store, self.journal, self.controller, config, runtime)
        self._store_is_unreachable = False
        """Whether the last attempt to read the journal failed. Only the first failure of each outage is logged."""

    @cached_property
    def incarnation(self) -> str:
        """Identifies this run of the broker's process. Only the brokers of the cluster may know it."""
        return uuid_text(self._runtime.new_uuid())

    # Starting and stopping

    async def inspect(self, cluster_id: str | None = None) -> bool:
        """Replay the part of the stored journal that the store can read without changing the disk. `start` replays
        the rest. Return whether a part was replayed.

        Raises StoreFailed, StoreUnavailable and JournalError.
        """
        image = await self.journal.inspect()
        if image is not None:
            _check_cluster(image, cluster_id)
        return image is not None

    async def start(
        self,
        cluster_id: str | None = None,
        first_records: FirstRecords | None = None,
        holder: str | None = None,
        previous_incarnation: str | None = None,
    ) -> None:
        """Replay the journal, and become the controller if no other broker is the controller.

        A broker of a cluster first acquires its own lease; see `BrokerLifecycle.acquire_lease`.

        `holder` identifies this broker among all processes that can reach the store. If it is the same as before a
        restart, the broker acquires its controller lease again at once. The default holder contains the node id. If
        leases can expire (`lease_ms`), the default also identifies the process, since two processes with the same node
        id must not acquire the lease from each other.

        If the journal is empty, its first entry will contain `cluster_id` (a new id if it is None) and the result of
        `first_records`: the topics of an adopted directory. A broker that does not become the controller waits until
        the journal has this entry.

        Raises StoreFailed, StoreUnavailable and JournalError. Raises LeaseLost if another process runs as this broker,
        or if another broker is the controller although this broker has to be the controller.
        """
        if self.lifecycle is not None:
            self.lifecycle.on_failed = self.on_failed
            await self.lifecycle.acquire_lease(previous_incarnation)
        node_id = self._config.node_id
        self._holder = holder or (
            f"broker-{node_id}" if self._lease_ms is None else controller_holder(node_id, self.incarnation)
        )
        lease = await self._acquire()
        if lease is None and self._channel is None:
            lease = await self._wait_for_lease()
        await self.journal.replay()
        _check_cluster(self.journal.image, cluster_id)
        if lease is not None and await self._claim(lease, cluster_id, first_records, restarted=True):
            self._claimed_at_start = True
        while self._lease_ms is not None and self.journal.image.position == 0:
            if not await self._wait_for_first_entry(self._lease_ms):
                lease = await self._acquire()  # the holder of the lease may have stopped before its first entry
                if lease is not None and await self._claim(lease, cluster_id, first_records, restarted=True):
                    self._claimed_at_start = True
        _check_cluster(self.journal.image, cluster_id)
        self.publisher.begin(self.journal.image)
        if self._lease_ms is not None:
            self._running = self._tasks.spawn(self._run(self._lease_ms, lease), name="metadata-journal")

    async def _wait_for_first_entry(self, lease_ms: int) -> bool:
        """Wait until the journal has its first entry, and replay it. Returns False if no entry arrives in time."""
        arrival = self._tasks.spawn(self.journal.wait(), name="metadata-arrival")
        done, _ = await asyncio.wait((arrival,), timeout=lease_ms / 1000 / RENEWALS_PER_LEASE)
        if not done:
            arrival.cancel()
            return False
        arrival.result()  # raises the error of `Journal.wait`, if there was one
        await self.journal.catch_up(is_behind=True)
        return True

    async def stop(self) -> None:
        """Finish the change that is in progress, release the leases, and close the store."""
        self.controller.has_to_be_active = False
        if self.lifecycle is not None:
            await self.lifecycle.stop()
        await cancel_and_wait(self._running)
        await cancel_and_wait(self._renewal)
        await self.journal.stop()
        await self.controller.deactivate("the broker stops")
        # If the store cannot be reached, each release waits until its timeout. So both leases are released at the same
        # time.
        releases = [] if self._lease is None else [self._lease.release()]
        if self.lifecycle is not None:
            releases.append(self.lifecycle.release_lease())
        await asyncio.gather(*releases)
        await self.publisher.wait_until_idle()
        await self._store.close()

    async def subscribe(self, listener: ImageListener, roles: RoleListener | None = None) -> None:
        """See `Publisher.subscribe`."""
        await self.publisher.subscribe(listener, roles)

    @property
    def fences_new_brokers(self) -> bool:
        """Whether brokers are fenced when they register. If so, they begin to lead partitions later."""
        return self.journal.image.metadata_level > 0

    def registration(self, endpoints: Sequence[Endpoint]) -> Registration:
        """Return a registration of this run of the broker with its `endpoints`."""
        request = Registration(
            self._config.node_id, self.incarnation, tuple(endpoints), self._config.broker_rack or None
        )
        return request if self.lifecycle is None else request._replace(features=dict(SUPPORTED_LEVELS))

    async def register(self, registration: Registration) -> None:
        """Register this broker, so that clients find it. Raises ApiError.

        If new brokers are not fenced (`fences_new_brokers`), all subscribed listeners must have processed the image
        before this call, so that the broker can serve its partitions.
        """
        request = RegisterBroker(registration, renew_leaderships=not self._claimed_at_start)
        deadline_s = self._runtime.clock.monotonic() + self._config.initial_broker_registration_timeout_ms / 1000
        answer = await self.link.register(request)
        while answer.error not in FINAL_ANSWERS and self._lease_ms is not None:
            if self._runtime.clock.monotonic() >= deadline_s:
                break
            logger.warning("broker not registered yet reason=%s", answer.message)
            await self._tasks.sleep(RETRY_S)
            answer = await self.link.register(request)
        epoch = answer.result()
        if self.lifecycle is not None:
            await self.publisher.wait_for(answer.position)
            self.publisher.subscribe_roles(self.lifecycle.on_image)
            self.lifecycle.note_registration(registration, epoch)

    async def begin_to_serve(self) -> None:
        """Wait until this broker may lead partitions. Before this call, all subscribed listeners must have processed
        the image.

        Raises ApiError.
        """
        if self.lifecycle is not None:
            await self.lifecycle.begin_to_serve()

    # Becoming the controller

    async def _wait_for_lease(self) -> HeldLease:
        """Acquire the lease after its current holder, another process, has ended. Raises LeaseLost if that process does
        not end in time.
        """
        deadline_s = self._runtime.clock.monotonic()
        if self._lease_ms is not None:
            deadline_s += self._lease_ms / 1000 + ACQUIRE_EXTRA_S
        while self._runtime.clock.monotonic() < deadline_s:
            await self._tasks.sleep(RETRY_S)
            lease = await self._acquire()
            if lease is not None:
                return lease
        raise LeaseLost("another broker is the controller of this cluster")

    async def _acquire(self) -> HeldLease | None:
        """Acquire the controller lease if it is free, and renew it from then on. Raises the exceptions of
        `Store.acquire`.
        """
        lease = await HeldLease.acquire(self._store, self._runtime, CONTROLLER_LEASE, self._holder, self._lease_ms)
        self._lease = lease
        if lease is not None:
            self._epochs[lease.lease.epoch] = None
        if lease is not None and lease.expires:
            self._renewal = self._tasks.spawn(lease.renew_until_lost(), name="controller-lease")
        return lease

    async def _claim(
        self,
        lease: HeldLease,
        cluster_id: str | None = None,
        first_records: FirstRecords | None = None,
        *,
        restarted: bool = False,
    ) -> bool:
        """Append the claim, which is this controller's first entry, and begin to decide changes. Returns False if the
        lease was lost before the claim was appended.

        If an earlier controller has just stored an entry at the position of the claim, the append of the claim fails.
        Then this broker replays that entry, and appends the claim after it. With `restarted`, and while the level of
        `tidelog.metadata.version` is 0, new leader epochs begin for the partitions that this broker leads.

        Raises JournalError. For a lease that does not expire, also raises the exceptions of `Journal.append`.
        """
        while True:
            image = self.journal.image
            _check_cluster(image, cluster_id)
            new_records: list[JournalRecord] = []
            if image.position == 0:
                new_records.append(ClusterNamed(cluster_id or uuid_text(self._runtime.new_uuid())))
                if first_records is not None:
                    new_records += await first_records()
                if self._channel is not None:
                    new_records = with_newest_levels(new_records, self._config)
            new_records.append(ControllerElected(self._config.node_id, lease.lease.epoch))
            if restarted and image.metadata_level == 0:
                new_records += controller.renew_leadership(image, self._config.node_id)
            try:
                # The first entry must not be divided: if only a part of it were stored, the other adopted topics would
                # never be appended, because `first_records` is called only for an empty journal.
                await self.journal.append(new_records, lease, undivided=image.position == 0)
            except EntryTooLarge as error:
                raise JournalError(f"{error}: adopt these data directories without metadata.store") from error
            except (PositionTaken, LeaseLost, EntryPending, PartlyAppended, StoreUnavailable) as error:
                if not lease.expires:
                    raise
                is_behind = isinstance(error, PositionTaken)
                if isinstance(error, StoreUnavailable):
                    await self._tasks.sleep(RETRY_S)
                elif not is_behind:
                    lease.lose(str(error))
            else:
                self.controller.activate(lease)
                if lease.expires:
                    logger.info("controller node=%d epoch=%d", self._config.node_id, lease.lease.epoch)
                return True
            if not await self._catch_up_for_claim(lease, is_behind=is_behind):
                return False

    async def _catch_up_for_claim(self, lease: HeldLease, *, is_behind: bool = False) -> bool:
        """Replay the entries that the store has (see `Journal.catch_up`). Returns False if the lease ends first."""
        while lease.is_valid:
            try:
                await self.journal.catch_up(is_behind=is_behind)
                return True
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("metadata journal not read reason=%s", error)
                await self._tasks.sleep(RETRY_S)
        return False

    # Running

    async def _run(self, lease_ms: int, lease: HeldLease | None) -> None:
        """Follow the journal, and act as the controller while this broker has the lease."""
        try:
            while True:
                if lease is not None:
                    await self._lead(lease)
                lease = await (self._regain_lease() if self._channel is None else self._follow_until_elected(lease_ms))
        except LeaseLost as error:
            self.controller.refuse_until_restart(str(error))
            if self.on_failed is not None:  # if this broker did not stop, two brokers would lead the same partitions
                self.on_failed(f"the metadata store is used by another broker: {error}")
        except JournalError as error:
            await self._fail(str(error))
        except Exception as error:
            logger.exception("metadata journal failed")
            await self._fail(f"the metadata journal cannot be followed: {error!r}")

    async def _fail(self, reason: str) -> None:
        logger.error("metadata journal cannot be followed reason=%s", reason)
        self.controller.has_to_be_active = False
        if self._renewal is not None:
            self._renewal.cancel()
        await self.controller.deactivate(reason)
        if self.on_failed is not None:
            self.on_failed(reason)

    async def _regain_lease(self) -> HeldLease:
        """Acquire the lease again, after the store could not be reached for longer than the lease lasts.

        Raises LeaseLost if another broker has acquired the lease in the meantime.
        """
        is_logged = False
        while True:
            try:
                lease = await self._acquire()
            except (StoreUnavailable, StoreFailed) as error:
                if not is_logged:
                    logger.warning("controller lease not acquired reason=%s", error)
                is_logged = True
                await self._tasks.sleep(RETRY_S)
                continue
            if lease is None:
                raise LeaseLost("another broker is the controller")
            return lease

    async def _lead(self, lease: HeldLease) -> None:
        """Act as the controller until the lease is lost.

        Raises LeaseLost if another broker was the controller, although this broker has to be the controller.
        """
        if not self.controller.is_active:  # it is active already if `start` has appended the claim
            old = self.journal.image
            has_caught_up = await self._catch_up_for_claim(lease)
            if self._channel is None and self.journal.image.controller_epoch not in self._epochs:
                lease.lose("another broker has been the controller")
                raise LeaseLost("another broker has been the controller")
            is_claimed = has_caught_up and await self._claim(lease)
            self._publish_since(old)
            if not is_claimed:
                lease.lose("the controller lease ended before the claim was stored")
        upkeep = stall_check = None
        if self._upkeep is not None:
            upkeep = self._tasks.spawn(self._upkeep.run(), name="cluster-upkeep")
            stall_check = self._tasks.spawn(self._give_up_if_stalled(lease), name="controller-stall")
        is_given_up = False
        try:
            reason = await lease.lost
        finally:
            if upkeep is not None and stall_check is not None:
                upkeep.cancel()
                is_given_up = not stall_check.cancel()
        await self.controller.deactivate(reason if self.controller.has_to_be_active else NOT_THE_CONTROLLER)
        logger.warning("controller lease lost node=%d reason=%s", self._config.node_id, reason)
        assert self._renewal is not None
        self._renewal.cancel()
        if is_given_up:
            await lease.release()  # another broker becomes the controller at once
        self._lease = None

    async def _give_up_if_stalled(self, lease: HeldLease) -> None:
        """Give up the controller lease when the file work of this broker is stalled, if another broker can become the
        controller.

        If the disk of this broker hangs, this broker still fences brokers and elects leaders, but clients that ask it
        to change topics get no answer.
        """
        began_s = self._runtime.clock.monotonic()
        while True:
            await self._tasks.sleep(STALL_CHECK_S)
            reason = self._stall(began_s)
            if reason is not None and self._other_broker_is_active:
                lease.lose(reason)
                return

    def _stall(self, since_s: float = float("-inf")) -> str | None:
        """If a change of the metadata has waited for this broker for at least the term of a lease, return a description
        of the delay. Otherwise return None. The time before `since_s` does not count.
        """
        change = self.publisher.oldest_unprocessed
        if change is None or self._lease_ms is None:
            return None
        now_s = self._runtime.clock.monotonic()
        if now_s - max(change.since_s, since_s) < self._lease_ms / 1000:
            return None
        waited_s = now_s - change.since_s
        entry = change.position - 1
        return f"this broker has not processed metadata entry {entry} for {waited_s:.1f} s, its disk may hang"

    @property
    def _other_broker_is_active(self) -> bool:
        brokers = self.journal.image.brokers.values()
        return any(broker.active for broker in brokers if broker.broker_id != self._config.node_id)

    async def _follow_until_elected(self, lease_ms: int) -> HeldLease:
        """Follow the journal until this broker acquires the lease. Raises JournalError."""
        candidacy = self._tasks.spawn(self._acquire_when_free(lease_ms), name="controller-candidate")
        try:
            while not candidacy.done():
                arrival = self._tasks.spawn(self.journal.wait(), name="metadata-arrival")
                try:
                    await asyncio.wait((candidacy, arrival), return_when=asyncio.FIRST_COMPLETED)
                    if arrival.done():
                        await self._follow(arrival)
                finally:
                    arrival.cancel()
            return candidacy.result()
        finally:
            candidacy.cancel()

    async def _follow(self, arrival: "asyncio.Task[None]") -> None:
        """Apply and publish the entries that have arrived."""
        old = self.journal.image
        try:
            arrival.result()  # raises the error of `Journal.wait`, if there was one
            await self.journal.catch_up(is_behind=True)
            self._store_is_unreachable = False
        except (StoreUnavailable, StoreFailed) as error:
            if not self._store_is_unreachable:
                logger.warning("metadata journal not read reason=%s", error)
            self._store_is_unreachable = True
            await self._tasks.sleep(RETRY_S)
        finally:
            self._publish_since(old)

    def _publish_since(self, old: MetadataImage) -> None:
        if self.journal.image is not old:
            self.publisher.publish(old, self.journal.image)

    async def _acquire_when_free(self, lease_ms: int) -> HeldLease:
        """Try to acquire the controller lease, at random intervals so that brokers do not try at the same moment."""
        free_since_s: float | None = None
        while True:
            await self._store.wait_for_write(CANDIDACY_S * self._runtime.random.uniform(0.5, 1.5))
            try:
                current_lease = await find_lease(self._store, CONTROLLER_LEASE)
                if current_lease is not None and current_lease.holder != self._holder:
                    free_since_s = None
                    continue  # an attempt to acquire the lease would be a useless write
                now_s = self._runtime.clock.monotonic()
                free_since_s = now_s if free_since_s is None else free_since_s
                if self._stall() is not None and now_s - free_since_s < STALLED_CANDIDACY_S:
                    continue
                lease = await self._acquire()
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("controller lease not acquired reason=%s", error)
                continue
            if lease is not None:
                return lease


def _check_cluster(image: MetadataImage, cluster_id: str | None) -> None:
    if image.position and cluster_id is not None and image.cluster_id != cluster_id:
        raise JournalError(
            f"the metadata belongs to cluster {image.cluster_id}, but the data directories to cluster {cluster_id}"
        )
