"""Execute requests to the controller: decide a change, append it to the journal, notify the parts of this broker, and
answer the request.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata import controller, link
from tidelog.metadata.alterations import alter_configs
from tidelog.metadata.controller import JournalDecision, NewTopic, TopicResult
from tidelog.metadata.elections import UNCLEAN_ELECTION, elect_leaderless, elect_leaders
from tidelog.metadata.features import change_feature_levels
from tidelog.metadata.heartbeats import Heartbeats
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.internal_topics import internal_topic
from tidelog.metadata.isr_changes import alter_partitions
from tidelog.metadata.journal import EntryPending, Journal, PartlyAppended
from tidelog.metadata.leadership import NOT_RENEWED, RETRY_S, HeldLease
from tidelog.metadata.link import Answer, ControllerRequest, Requester
from tidelog.metadata.offline_replicas import end_replicas
from tidelog.metadata.publisher import Publisher
from tidelog.metadata.quota_alterations import alter_quotas
from tidelog.metadata.reassignment import alter_reassignments
from tidelog.metadata.records import JournalRecord
from tidelog.metadata.registration import broker_lease, register_broker, unregister_broker
from tidelog.metadata.store import (
    EntryTooLarge,
    LeaseLost,
    PositionTaken,
    Store,
    StoreFailed,
    StoreUnavailable,
    find_lease,
)
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps
from tidelog.quotas.client_quotas import MutationQuota
from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.log_limit import LogLimit
from tidelog.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

logger = logging.getLogger("tidelog.metadata")

OUTCOME_TIMEOUT_S: Final = 5.0
"""If the controller lease ends before the outcome of an entry is known, the request that caused the entry waits for the
outcome for at most this time, in seconds."""
LEASE_WAIT_S: Final = 1.0
"""Longest time, in seconds, that a request waits until this broker has acquired its lost lease again."""
NOT_THE_CONTROLLER: Final = "this broker is not the controller"

Decide = Callable[[MetadataImage], JournalDecision[R] | Steps[JournalDecision[R]]]
"""A function that decides one change from the current image."""


class LocalController:
    """The cluster's controller, while this broker has the controller lease.

    A client's change is answered when its entry is durable in the store and every part of this broker has applied the
    new image. So the partitions of a new topic have a leader when CreateTopics is answered. In a cluster, changes that
    this controller or a broker has initiated (`link.BROKER_REQUESTS`) do not wait for the file work of this broker: if
    its disk hangs, brokers must still be fenced, and leaders must still change their ISRs. Changes are decided one at a
    time, each from the image that contains all earlier changes.
    """

    def __init__(
        self,
        journal: Journal,
        publisher: Publisher,
        config: BrokerConfig,
        runtime: Runtime,
        shared_store: Store | None = None,
    ) -> None:
        """`shared_store` contains the leases of the brokers. It is None if only this broker uses the store."""
        self.decision_lock = asyncio.Lock()
        """Held while a change is decided and appended."""
        self.mutation_quota: MutationQuota | None = None
        """Limits how many partitions each client may create and delete."""
        self._journal = journal
        self._publisher = publisher
        self._config = config
        self._runtime = runtime
        self._shared_store = shared_store
        self._heartbeats = Heartbeats(config)
        self._failure_log_limit = LogLimit(runtime.clock.monotonic)
        """Limits the log lines about changes that the store did not accept."""
        self.has_to_be_active = False
        """Whether this broker must always be the controller, since it has no channel to other brokers. If so, it tries
        to acquire a lost lease again at once."""
        self._lease: HeldLease | None = None
        self._refusal = NOT_THE_CONTROLLER
        self._refuses_until_restart = False

    # Begin and end of being the controller

    def activate(self, lease: HeldLease) -> None:
        """Begin to decide changes. The journal and the image must already contain the record `ControllerElected` of
        this lease.
        """
        self._heartbeats = Heartbeats(self._config)
        self._lease = lease

    async def deactivate(self, reason: str = NOT_THE_CONTROLLER) -> None:
        """Finish the change that is being decided, and then refuse all changes with `reason`."""
        async with self.decision_lock:
            self._lease = None
            self._refusal = reason

    def refuse_until_restart(self, reason: str) -> None:
        """Refuse all changes until the broker is restarted."""
        self._lease = None
        self._refusal = reason
        self._refuses_until_restart = True
        logger.error("metadata read-only until restart reason=%s", reason)

    @property
    def is_active(self) -> bool:
        """Whether it is certain that this broker is the controller."""
        return self._lease is not None and self._lease.is_valid

    # Requests

    async def execute(self, request: ControllerRequest) -> Answer[Any]:
        """Execute one request. A change that has begun is completed even if the caller is cancelled."""
        if self._will_regain_lease:
            await self._wait_for_lease()
        other_run_has_lease = False
        if isinstance(request, link.RegisterBroker) and self._shared_store is not None:
            try:
                other_run_has_lease = await _other_run_has_lease(self._shared_store, request)
            except (StoreUnavailable, StoreFailed) as error:
                return Answer(None, ErrorCode.NOT_CONTROLLER, f"the leases of the brokers cannot be read: {error}")
        budget = _PartitionBudget(getattr(request, "requester", None), self.mutation_quota, self._now_ms)
        answer = await self._commit(
            self._decision(request, budget.reserve, other_run_has_lease),
            getattr(request, "timeout_ms", None),
            waits_for_files=self._shared_store is None or not isinstance(request, link.BROKER_REQUESTS),
        )
        if self._shared_store is not None and _may_allow_elections(request) and not answer.error:
            await self._commit(lambda image: elect_leaderless(image, self._config), None)
        return answer._replace(throttle_ms=budget.throttle_ms)

    @property
    def _will_regain_lease(self) -> bool:
        """Whether this broker has lost its lease, and acquires it again as soon as it can reach the store."""
        return self.has_to_be_active and not self._refuses_until_restart and not self.is_active

    async def _wait_for_lease(self) -> None:
        if self._lease is not None:
            # The lease has ended. This broker acquires a new lease as soon as the old one is marked as lost.
            self._lease.lose(NOT_RENEWED)
        deadline_s = self._runtime.clock.monotonic() + LEASE_WAIT_S
        while self._will_regain_lease and self._runtime.clock.monotonic() < deadline_s:
            await self._runtime.tasks.sleep(RETRY_S / 2)

    def _decision(
        self, request: ControllerRequest, reserve: controller.ReservePartitions, other_run_has_lease: bool
    ) -> Decide[Any]:
        """Return the function that decides the request."""
        config, new_id = self._config, self._new_topic_id
        match request:
            case link.CreateTopics(topics, validate_only):
                return lambda image: controller.create_topics(
                    image, topics, config, new_id, validate_only=validate_only, reserve=reserve
                )
            case link.EnsureTopics():
                return lambda image: self._ensure_topics(image, request, reserve)
            case link.DeleteTopics(choices):
                return lambda image: controller.delete_topics(image, choices, reserve=reserve)
            case link.CreatePartitions(requests, validate_only):
                return lambda image: controller.create_partitions(
                    image, requests, validate_only=validate_only, cordoned=config.is_cordoned, reserve=reserve
                )
            case link.AlterConfigs(alterations, node_id, validate_only):
                return lambda image: alter_configs(
                    image, alterations, config, asked_node_id=node_id, validate_only=validate_only
                )
            case link.AlterQuotas(quota_alterations, validate_only):
                return lambda image: alter_quotas(image, quota_alterations, validate_only=validate_only)
            case link.AllocateProducerIds(node_id):
                return lambda image: _allocate_producer_ids(image, node_id)
            case link.RegisterBroker():
                return lambda image: _register(image, request, config, other_run_has_lease=other_run_has_lease)
            case link.BrokerHeartbeat(heartbeat):
                return lambda image: self._heartbeats.decide(image, heartbeat)
            case link.AlterPartition(broker_id, broker_epoch, proposals):
                return lambda image: alter_partitions(image, broker_id, broker_epoch, proposals, config)
            case link.ElectLeaders(election_type, partitions):
                return lambda image: elect_leaders(image, election_type, partitions, config)
            case link.AlterReassignments(reassignments, allow_factor_change):
                return lambda image: alter_reassignments(
                    image, reassignments, config, allow_factor_change=allow_factor_change
                )
            case link.UnregisterBroker(broker_id):
                return lambda image: unregister_broker(image, broker_id, config)
            case link.UpdateFeatures(changes, validate_only):
                return lambda image: change_feature_levels(image, changes, config, validate_only=validate_only)
            case link.ReplicasOffline(broker_id, broker_epoch, replicas):
                return lambda image: end_replicas(image, broker_id, broker_epoch, replicas, config)
            case link.DescribeQuorum():
                return lambda image: JournalDecision([], self._heartbeats.quorum_state(image))
            case link.CatchUp():
                return lambda image: JournalDecision([], None)

    async def decide(self, decide: Decide[R]) -> Answer[R]:
        """Make a change that the controller itself has initiated. Return when the store has the change's entry. Changes
        are made one after another, and `decide` gets the image after all earlier changes.
        """
        return await self._commit(decide, None, waits_for_files=False)

    def _ensure_topics(
        self, image: MetadataImage, request: link.EnsureTopics, reserve: controller.ReservePartitions
    ) -> Steps[JournalDecision[list[TopicResult]]]:
        missing: dict[str, NewTopic] = {}
        existing: list[TopicResult] = []
        for name in request.names:
            yield
            if name in image.topics:
                existing.append(TopicResult(name, image.topics[name].topic_id))
            elif name not in missing:
                missing[name] = internal_topic(name, self._config, len(image.brokers)) or NewTopic(name)
        topics = list(missing.values())
        decision = yield from controller.create_topics(image, topics, self._config, self._new_topic_id, reserve=reserve)
        return JournalDecision(decision.records, existing + decision.reply)

    # Deciding and appending

    async def _commit(self, decide: Decide[R], timeout_ms: int | None, *, waits_for_files: bool = True) -> Answer[R]:
        """Run one change, and wait for its end for at most `timeout_ms`. The change ends when its entry is stored and
        the roles of this broker's partitions have changed. With `waits_for_files`, the change ends only when the file
        work of this broker is also finished.
        """
        if timeout_ms is not None and timeout_ms <= 0:
            return Answer(None, ErrorCode.REQUEST_TIMED_OUT)
        change = self._runtime.tasks.spawn(self._change(decide, waits_for_files), name="metadata-change")
        try:
            return await asyncio.wait_for(asyncio.shield(change), None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            return Answer(None, ErrorCode.REQUEST_TIMED_OUT)

    async def _change(self, decide: Decide[R], waits_for_files: bool) -> Answer[R]:
        """Run one change. Errors are returned as answers and not raised, since the caller may have stopped waiting."""
        try:
            return await self._try_change(decide, waits_for_files)
        except ApiError as error:
            return Answer(None, error.code, error.message)

    async def _try_change(self, decide: Decide[R], waits_for_files: bool) -> Answer[R]:
        """Run one change, and wait for its end; see `_commit` for what the end is. Raises ApiError."""
        try:
            async with self.decision_lock:
                lease = self._valid_lease()
                decided = decide(self._journal.image)
                decision = decided if isinstance(decided, JournalDecision) else await self._runtime.turns.run(decided)
                if not decision.records:
                    # The answer is based only on the image. This image is the newest one only if the lease is still
                    # valid.
                    self._valid_lease()
                    return Answer(decision.reply, position=self._journal.image.position)
                published = await self._append_and_publish(lease, decision.records)
                position = self._journal.image.position
        except EntryPending as pending:
            position = await self._wait_for_outcome(pending)
            if waits_for_files:
                await self._publisher.wait_for(position)
            else:
                await self._publisher.wait_for_roles(position)
            return Answer(decision.reply, position=position)
        if published is not None and waits_for_files:
            await published
        # The store has confirmed the entry, so the answer is correct even if the lease has ended in the meantime.
        return Answer(decision.reply, position=position)

    async def _append_and_publish(
        self, lease: HeldLease, new_records: list[JournalRecord]
    ) -> "asyncio.Task[None] | None":
        """Append the records of a change and publish the new image. The image is also published if only a part of the
        change was appended.

        Returns the task of the publication. Raises the exceptions of `_append`.
        """
        old = self._journal.image
        published: asyncio.Task[None] | None = None
        try:
            await self._append(lease, new_records)
        finally:
            if self._journal.image is not old:
                self._journal.save_snapshot_if_due()
                published = self._publisher.publish(old, self._journal.image)
        return published

    def _valid_lease(self) -> HeldLease:
        """Return the lease. Raises ApiError unless it is certain that this broker is the controller."""
        lease, refusal = self._lease, self._refusal
        try:
            if lease is not None:
                lease.check()
                return lease
        except LeaseLost as error:
            refusal = str(error)
        code = ErrorCode.KAFKA_STORAGE_ERROR if self._will_regain_lease else ErrorCode.NOT_CONTROLLER
        raise ApiError(f"metadata cannot be changed: {refusal}", code)

    async def _append(self, lease: HeldLease, new_records: list[JournalRecord]) -> None:
        """Append the records of a change. Raises EntryPending if the outcome is unknown but may become known later, and
        ApiError after any other failure.

        After EntryTooLarge and StoreUnavailable (also as the cause of PartlyAppended), the next change is still tried.
        After any other failure, all changes are refused, at least until this broker acquires the controller lease
        again.
        """
        try:
            await self._journal.append(new_records, lease)
        except EntryTooLarge as error:
            # Kafka uses this error code for a request that creates too many partitions.
            raise ApiError(f"{error}: make the change smaller", ErrorCode.POLICY_VIOLATION) from None
        except StoreUnavailable as error:
            if self._failure_log_limit.admits_line():
                logger.error("metadata not changed reason=%s", error)
            raise ApiError(f"metadata cannot be changed: {error}", ErrorCode.KAFKA_STORAGE_ERROR) from None
        except (PositionTaken, LeaseLost) as error:
            self._lose(lease, f"another broker is the controller ({error})")
            raise ApiError(str(error), ErrorCode.NOT_CONTROLLER) from None
        except PartlyAppended as error:
            if not isinstance(error.__cause__, StoreUnavailable):
                self._lose(lease, str(error))
            raise ApiError(str(error), ErrorCode.REQUEST_TIMED_OUT) from None
        except EntryPending as pending:
            if not lease.expires:
                self.refuse_until_restart(str(pending))
            raise
        except StoreFailed as error:
            # It is unknown whether the entry was stored, so the next change could be decided from a wrong image.
            self.refuse_until_restart(str(error))
            raise ApiError(str(error), ErrorCode.KAFKA_STORAGE_ERROR) from None

    def _lose(self, lease: HeldLease, reason: str) -> None:
        if lease.expires:
            lease.lose(reason)
        else:
            self.refuse_until_restart(reason)

    async def _wait_for_outcome(self, pending: EntryPending) -> int:
        """Wait until it is known that the store has the entry, and return the position after the entry. Raises
        ApiError.
        """
        await asyncio.wait((pending.outcome,), timeout=OUTCOME_TIMEOUT_S)
        is_stored = pending.outcome.result() if pending.outcome.done() else None
        if is_stored is None:
            raise ApiError("it is unknown whether the metadata was changed", ErrorCode.REQUEST_TIMED_OUT)
        if not is_stored:
            raise ApiError("another broker is the controller", ErrorCode.NOT_CONTROLLER)
        return pending.position + 1

    def _new_topic_id(self) -> TopicId:
        return TopicId(self._runtime.new_uuid())

    def _now_ms(self) -> int:
        return int(self._runtime.clock.monotonic() * 1000)


class _PartitionBudget:
    """Uses the quota of a client (KIP-599) for the partitions that one request of the client creates or deletes."""

    def __init__(self, requester: Requester | None, quota: MutationQuota | None, now_ms: Callable[[], int]) -> None:
        self._requester = requester
        self._quota = quota
        self._now_ms = now_ms
        self.throttle_ms = 0

    def reserve(self, count: int) -> bool:
        """Return whether `count` more partitions may be created or deleted now. If so, count them towards the quota."""
        if self._requester is None or self._quota is None:
            return True
        user, client_id, is_strict = self._requester
        is_allowed, throttle_ms = self._quota.take(user, client_id, count, self._now_ms(), strict=is_strict)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        return is_allowed


def _allocate_producer_ids(image: MetadataImage, node_id: int) -> JournalDecision[tuple[int, int]]:
    new_records, block = controller.allocate_producer_ids(image, node_id)
    return JournalDecision(new_records, (block.start, block.stop))


def _may_allow_elections(request: ControllerRequest) -> bool:
    """Return whether the request changes settings in such a way that partitions without a leader may get one."""
    return (
        isinstance(request, link.AlterConfigs)
        and not request.validate_only
        and any(
            each.replace or any(change.setting == UNCLEAN_ELECTION for change in each.changes)
            for each in request.alterations
        )
    )


async def _other_run_has_lease(store: Store, request: link.RegisterBroker) -> bool:
    """Return whether another process has the lease of the broker that the request registers."""
    lease = await find_lease(store, broker_lease(request.registration.broker_id))
    return lease is not None and lease.holder != request.registration.incarnation


def _register(
    image: MetadataImage, request: link.RegisterBroker, config: BrokerConfig, *, other_run_has_lease: bool
) -> Steps[JournalDecision[int]]:
    decision = yield from register_broker(image, request.registration, config, other_run_has_lease=other_run_has_lease)
    if request.renew_leaderships and image.metadata_level == 0:
        decision.records.extend(controller.renew_leadership(image, request.registration.broker_id))
    return decision
