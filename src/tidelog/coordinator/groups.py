"""The group coordinators of this broker: one for each partition of `__consumer_offsets` that the broker leads."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from tidelog.config.coordinator_keys import CONSUMER_ASSIGNORS
from tidelog.coordinator.consumer.settings import (
    ASSIGNMENT_INTERVAL_KEY,
    HEARTBEAT_INTERVAL_KEY,
    SESSION_TIMEOUT_KEY,
    ConsumerSettings,
    MigrationPolicy,
)
from tidelog.coordinator.consumer.topics import changed_names
from tidelog.coordinator.decision import Producer
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.host import CoordinatorHost
from tidelog.coordinator.lag import GroupLags
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.metadata.internal_topics import missing_replicas
from tidelog.model.ids import uuid_text
from tidelog.wire.decoding import STRING_BYTES_MAX
from tidelog.wire.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    import asyncio

    from tidelog.config.broker_config import BrokerConfig
    from tidelog.coordinator.decision import Reply
    from tidelog.coordinator.group.core import GroupCore, GroupListing
    from tidelog.coordinator.group.durable import DurableGroup
    from tidelog.coordinator.group.offsets import OffsetCommit
    from tidelog.coordinator.group.pending_offsets import OffsetKey
    from tidelog.coordinator.runtime import CoordinatorPartition
    from tidelog.metadata.image import MetadataImage, TopicImage
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.model.steps import Steps
    from tidelog.replication.partitions import Partitions
    from tidelog.replication.verification import Verification
    from tidelog.runtime.interfaces import Runtime
    from tidelog.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
    from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from tidelog.wire.messages.describe_groups import DescribedGroup
    from tidelog.wire.messages.heartbeat import HeartbeatRequest
    from tidelog.wire.messages.join_group import JoinGroupRequest
    from tidelog.wire.messages.leave_group import LeaveGroupRequest
    from tidelog.wire.messages.sync_group import SyncGroupRequest

logger = logging.getLogger("tidelog.coordinator")
T = TypeVar("T")

UUID_TEXT_LENGTH = 36
SWEEP_GROUPS_PER_TURN = 20
"""Groups that a sweep examines in one turn of the event loop."""


class GroupCoordinators:
    """The requests to groups, as methods for the API handlers.

    Most results are passed to a `Reply`: either during the call or later, after the group has completed a rebalance or
    the log has committed the records. If a method has no result, the `Reply` gets None on success.
    """

    def __init__(
        self,
        *,
        runtime: "Runtime",
        config: "BrokerConfig",
        partitions: "Partitions",
        metadata: "MetadataCache",
        controller: "ControllerLink",
        incarnation: str | None = None,
    ) -> None:
        """See `CoordinatorHost` for `incarnation`."""
        self._runtime = runtime
        self._config = config
        self._metadata = metadata
        self._settings = group_settings(config)
        self.host: CoordinatorHost[GroupCore] = CoordinatorHost(
            CONSUMER_OFFSETS,
            runtime=runtime,
            node_id=config.node_id,
            partitions=partitions,
            metadata=metadata,
            controller=controller,
            new_core=self._new_core,
            commit_timeout_ms=config.offsets_commit_timeout_ms,
            incarnation=incarnation,
        )
        self._groups_being_deleted: dict[str, None] = {}
        """Ids of groups whose records are being deleted in several steps."""
        self._followed_image = metadata.image
        """The last image that was passed to `on_image`. It is published to clients only after `on_image` has completed.
        """
        self.lags = GroupLags(partitions, runtime.clock, runtime.tasks, self._durable_groups)
        self._missing_replicas = 0
        """The last result of `missing_replicas` for `__consumer_offsets`: the number of replicas that the partition
        with the fewest replicas lacked."""
        self._lag_task: asyncio.Task[None] | None = None

    # Life cycle

    def start(self) -> None:
        """Start the periodic removal of expired offsets and the periodic lag check."""
        self.host.sweep_periodically(self._config.offsets_retention_check_interval_ms, self.sweep)
        self._lag_task = self._runtime.tasks.spawn(self.lags.run(), name="group-lags")

    def on_image(self, old: "MetadataImage", new: "MetadataImage") -> "Awaitable[None] | None":
        """Apply a metadata change after the partitions have applied it.

        Remove the offsets of deleted topics, and notify the consumer groups that subscribe to changed topics. Groups
        may have committed millions of offsets in a deleted topic. Therefore the offsets are removed in steps, and
        requests are served between the steps. If an awaitable is returned, the caller must await it before the next
        change.
        """
        self._followed_image = new
        self._settings.consumer.assignment_interval_ms = self._config.group_consumer_assignment_interval_ms
        self._warn_of_missing_replicas(old, new)
        if old.topics is not new.topics:
            deleted_topics = {
                name: None
                for name, before in old.topics.items()
                if (now := new.topics.get(name)) is None or now.topic_id != before.topic_id
            }
            if deleted_topics:
                return self._forget_topics(deleted_topics, old, new)
            self._notify_topics_changed(old, new)
        return None

    def _warn_of_missing_replicas(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """On the controller, log a warning if `__consumer_offsets` was created when the cluster had fewer brokers,
        and its partitions could now have more replicas.
        """
        topic = new.topics.get(CONSUMER_OFFSETS)
        is_changed = (
            old.brokers.keys() != new.brokers.keys()
            or old.topics.get(CONSUMER_OFFSETS) is not topic
            or old.controller_id != new.controller_id
        )
        if topic is None or len(new.brokers) == 1 or new.controller_id != self._config.node_id or not is_changed:
            return
        missing = missing_replicas(CONSUMER_OFFSETS, self._config, new)
        if missing != self._missing_replicas and missing:
            logger.warning(
                "internal topic has too few replicas topic=%s replicas=%d possible=%d",
                CONSUMER_OFFSETS,
                topic.replication_factor,
                topic.replication_factor + missing,
            )
        self._missing_replicas = missing

    async def _forget_topics(self, deleted_topics: dict[str, None], old: "MetadataImage", new: "MetadataImage") -> None:
        for coordinator in self.host.loaded():
            core = coordinator.core
            for decision in core.forget_topics(deleted_topics, coordinator.now()):
                coordinator.apply(decision)
                await self._runtime.tasks.sleep(0)
                if not coordinator.is_loaded or coordinator.core is not core:
                    # The coordinator was closed or loaded again. Its remaining offsets do no harm, because offsets with
                    # the id of a deleted topic are never returned to clients.
                    break
        # Groups are notified last, so that the new image is published soon after that. A heartbeat before the
        # publication would compute an assignment from the old image, which contains the deleted topics.
        self._notify_topics_changed(old, new)

    def _notify_topics_changed(self, old: "MetadataImage", new: "MetadataImage") -> None:
        if changed_names(old, new):  # most changes only move leaders or change in-sync replicas
            for coordinator in self.host.loaded():
                coordinator.core.topics_changed(old, new, coordinator.now())
                coordinator.set_timer()

    def close(self) -> None:
        """Answer all waiting requests, and refuse new requests from now on."""
        if self._lag_task is not None:
            self._lag_task.cancel()
        self.host.close()

    # Requests. Each method raises ApiError if this broker does not serve the group now.

    def join(self, request: "JoinGroupRequest", client_id: str, client_host: str, version: int, reply: "Reply") -> None:
        self._check_group_id(request.group_id)
        _check_member_id_prefix(request, client_id)
        settings = self._settings
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"session timeout {request.session_timeout_ms} ms is outside {settings.min_session_timeout_ms} "
                f"(group.min.session.timeout.ms) to {settings.max_session_timeout_ms} (group.max.session.timeout.ms)"
            )
        from tidelog.coordinator.group.classic import JoinCall

        coordinator = self._coordinator_unless_deleting(request.group_id)
        fresh_uuid = fresh_id = ""
        if not request.member_id:
            random_bytes = self._new_uuid()
            fresh_uuid, fresh_id = hyphenated_uuid(random_bytes), uuid_text(random_bytes)
        joining = JoinCall(request, reply, client_id, client_host, version, fresh_uuid, fresh_id)
        coordinator.apply(coordinator.core.join(joining, coordinator.now()))

    def sync(self, request: "SyncGroupRequest", reply: "Reply") -> None:
        self._check_group_id(request.group_id)
        coordinator = self.host.coordinator(request.group_id)
        coordinator.apply(coordinator.core.sync(request, reply, coordinator.now()))

    def heartbeat(self, request: "HeartbeatRequest") -> ErrorCode:
        self._check_group_id(request.group_id)
        coordinator = self.host.coordinator(request.group_id)
        if coordinator.is_loading:
            return ErrorCode.NONE  # no session expires during a load
        return coordinator.core.heartbeat(request, coordinator.now())

    def leave(self, request: "LeaveGroupRequest", reply: "Reply") -> None:
        self._check_group_id(request.group_id)
        coordinator = self.host.coordinator(request.group_id)
        coordinator.apply(coordinator.core.leave(request, reply, coordinator.now()))

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether clients may use the consumer protocol (KIP-848)."""
        return self._settings.consumer.protocol_enabled

    def consumer_heartbeat(
        self, request: "ConsumerGroupHeartbeatRequest", client_id: str, client_host: str, version: int, reply: "Reply"
    ) -> None:
        """Handle ConsumerGroupHeartbeat. `reply` is called with a ConsumerGroupHeartbeatResponse."""
        settings = self._settings.consumer
        if not settings.protocol_enabled:
            raise UnsupportedVersion("group.coordinator.rebalance.protocols does not include the consumer protocol")
        from tidelog.coordinator.consumer.heartbeats import HeartbeatCall, check_request

        check_request(request, version, settings)
        coordinator = self._coordinator_unless_deleting(request.group_id)
        fresh_id = "" if request.member_id else uuid_text(self._new_uuid())
        beat = HeartbeatCall(request, reply, client_id, client_host, version, fresh_id)
        coordinator.apply(coordinator.core.consumer_heartbeat(beat, coordinator.now()))

    def describe_consumer(self, group_id: str, reply: "Reply") -> None:
        """Describe a group of the consumer protocol. `reply` is called with its DescribedGroup."""
        if not group_id:
            raise InvalidGroupId
        coordinator = self.host.coordinator(group_id)
        described: DescribedConsumerGroup = coordinator.core.describe_consumer(group_id)
        coordinator.answer(reply, described, coordinator.core.durable.next_offset(group_id))

    def commit(
        self, commit: "OffsetCommit", reply: "Reply", verification: "Verification | None" = None
    ) -> "Steps[None]":
        """Commit offsets. `reply` is called with a list that has one ErrorCode for each offset.

        The records are encoded in steps, and appended as one batch in the last step. `verification` is set if a
        transaction commits the offsets. In this case, the transaction coordinator has confirmed that the group's
        partition belongs to the transaction, and the last step checks that this confirmation is still valid.
        """
        from tidelog.coordinator.group.offsets import prepare_commit

        coordinator = self.host.coordinator(commit.group_id)
        coordinator.core.check_commit(commit, coordinator.now())
        while True:
            # The published metadata cannot be used here, because it still contains a deleted topic while the topic's
            # offsets are being removed.
            topics = self._followed_image.topics
            prepared = yield from prepare_commit(commit, self._settings, coordinator.now(), topics)
            # A topic may have been deleted during the steps. Its offsets were removed and must not be written again.
            # In this case, the commit is prepared again.
            if not _was_topic_deleted(topics, self._followed_image.topics, commit):
                break
        # During the steps, the group may have moved to another broker, or its generation may have changed. Therefore
        # the coordinator is looked up again, and it checks the commit again.
        coordinator = self.host.coordinator(commit.group_id)
        if verification is not None:
            verification.check()
            marker = verification.marker_of_lost_end(coordinator.now().wall_ms)
            if marker is not None:
                producer = Producer(commit.producer_id, commit.producer_epoch)
                coordinator.end_transaction(marker, producer, _no_reply, is_commit=False)
        coordinator.apply(coordinator.core.commit(commit, reply, coordinator.now(), prepared))

    def end_transaction(
        self, index: int, marker: bytearray, producer: Producer, *, is_commit: bool, reply: "Reply"
    ) -> None:
        """Append a marker to a partition of `__consumer_offsets`, and commit or drop the transaction's offsets.

        Raises ApiError if nothing was appended; `reply` is not called in this case. Otherwise `reply` is called with
        None on success, or with an ApiError.
        """
        self.host.coordinator_of(index).end_transaction(marker, producer, reply, is_commit=is_commit)

    def delete(self, group_id: str, reply: "Reply") -> "Steps[None]":
        """Delete a group in steps. When all records of the group are deleted, `reply` is called with None.

        Joins are refused during the deletion, so that no member can join a group whose records are partly deleted.
        """
        is_last = False
        self._coordinator_unless_deleting(group_id)  # raises ApiError if the group is being deleted already
        try:
            while not is_last:
                coordinator = self.host.coordinator(group_id)
                core = coordinator.core
                try:
                    decision, is_last = core.delete_some(group_id, coordinator.now())
                except GroupIdNotFound as error:  # the group's earlier deletion may not be committed yet
                    coordinator.answer(reply, error, core.durable.next_offset(group_id))
                    return
                if is_last:
                    decision.reply(reply, None)
                else:
                    self._groups_being_deleted[group_id] = None
                coordinator.apply(decision)
                yield
        finally:
            self._groups_being_deleted.pop(group_id, None)

    def delete_offsets(self, group_id: str, offsets: "Sequence[tuple[str, int]]", reply: "Reply") -> None:
        """Delete committed offsets. `offsets` are pairs (topic, partition). `reply` is called with a list that has one
        ErrorCode for each pair.
        """
        self._check_group_id(group_id)
        coordinator = self.host.coordinator(group_id)
        core = coordinator.core
        try:
            decision = core.delete_offsets(group_id, offsets, reply, coordinator.now())
        except GroupIdNotFound as error:  # the deletion of the group may not be committed yet
            coordinator.answer(reply, error, core.durable.next_offset(group_id))
        else:
            coordinator.apply(decision)

    def read_offsets(
        self,
        group_id: str,
        read: "Callable[[DurableGroup | None, list[OffsetKey]], T]",
        reply: "Reply",
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Read the group's offsets. `reply` is called with the result of `read` when the records with these offsets are
        committed.

        `read` is called with two arguments: the group (None if it does not exist), and the keys of the group's offsets
        in open transactions.
        """
        coordinator = self.host.coordinator(group_id)
        core = coordinator.core
        durable, awaited_offset = core.group_for_fetch(group_id, member_id, member_epoch)
        coordinator.answer(reply, read(durable, core.durable.pending.of_group(group_id)), awaited_offset)

    def describe(self, group_id: str, reply: "Reply") -> None:
        """Describe a classic group. `reply` is called with a DescribedGroup, or with None if there is no such group."""
        coordinator = self.host.coordinator(group_id)
        described: DescribedGroup | None = coordinator.core.describe(group_id)
        coordinator.answer(reply, described, coordinator.core.durable.next_offset(group_id))

    def listing(self) -> "Iterator[GroupListing]":
        """Yield all groups of this broker. If a partition's log is offline, or its load has failed repeatedly, its
        groups are omitted, so that one failed log does not hide all other groups.

        Raises CoordinatorLoadInProgress or CoordinatorNotAvailable while the groups of any other partition are not
        loaded.
        """
        for coordinator in self.host.coordinators():
            coordinator.check_groups_known()
        for coordinator in self.host.loaded():
            yield from coordinator.core.listing()

    # Implementation

    def _durable_groups(self) -> "Iterator[tuple[str, DurableGroup]]":
        for coordinator in self.host.loaded():
            yield from list(coordinator.core.durable.by_id.items())

    def _coordinator_unless_deleting(self, group_id: str) -> "CoordinatorPartition[GroupCore]":
        """Return the group's coordinator. Raises CoordinatorLoadInProgress, which clients retry, while the group is
        being deleted.
        """
        if group_id in self._groups_being_deleted:
            raise CoordinatorLoadInProgress(f"group {group_id!r} is being deleted")
        return self.host.coordinator(group_id)

    def _new_uuid(self) -> bytes:
        """Return a random UUID whose base64 text does not begin with "-". A command would parse a text that begins
        with "-" as an option.
        """
        while True:
            random_bytes = self._runtime.new_uuid()
            if not uuid_text(random_bytes).startswith("-"):
                return random_bytes

    def _check_group_id(self, group_id: str) -> None:
        if not group_id:
            raise InvalidGroupId("a group that has members needs a group id that is not empty")

    def _new_core(self) -> "GroupCore":
        from tidelog.coordinator.group.core import GroupCore

        return GroupCore(self._settings, lambda: self._metadata.image)

    async def sweep(self) -> None:
        """Delete expired offsets, and groups that have neither members nor offsets."""
        for coordinator in self.host.loaded():
            group_ids = iter(coordinator.core.group_ids())
            while coordinator.is_loaded and (batch_of_ids := list(islice(group_ids, SWEEP_GROUPS_PER_TURN))):
                coordinator.apply_all(coordinator.core.sweep(batch_of_ids, coordinator.now()))
                await self._runtime.tasks.sleep(0)


def _was_topic_deleted(
    before: "Mapping[str, TopicImage]", now: "Mapping[str, TopicImage]", commit: "OffsetCommit"
) -> bool:
    """Return whether a topic of the commit was deleted between the two images. A topic also counts as deleted if a new
    topic has its name.
    """
    if now is before:
        return False
    names = dict.fromkeys(offset.topic for offset in commit.offsets)
    return any(
        (topic := before.get(name)) is not None and ((new := now.get(name)) is None or new.topic_id != topic.topic_id)
        for name in names
    )


def _check_member_id_prefix(request: "JoinGroupRequest", client_id: str) -> None:
    """Raise InvalidRequest if the new member's id would be too long for a record.

    With such an id, the group could not be written to the log, and its members would wait without an answer.
    """
    prefix, prefix_name = client_id, "client id"
    if request.group_instance_id is not None:
        prefix, prefix_name = request.group_instance_id, "group instance id"
    prefix_bytes_max = STRING_BYTES_MAX - UUID_TEXT_LENGTH - 1
    if not request.member_id and len(prefix) * 4 > prefix_bytes_max and len(prefix.encode()) > prefix_bytes_max:
        raise InvalidRequest(
            f"the {prefix_name} is longer than {prefix_bytes_max} bytes: the member id, which begins with it, would be "
            "too long"
        )


def hyphenated_uuid(random_bytes: bytes) -> str:
    """Return the text of the UUID that is the end of a member id: 36 characters, including 4 hyphens."""
    text = random_bytes.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def group_settings(config: "BrokerConfig") -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        consumer=consumer_settings(config),
    )


def consumer_settings(config: "BrokerConfig") -> ConsumerSettings:
    return ConsumerSettings(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        max_size=config.group_consumer_max_size,
        assignors=_assignors(config.group_consumer_assignors),
        migration=MigrationPolicy(config.group_consumer_migration_policy.lower()),
        protocol_enabled="consumer" in config.group_coordinator_rebalance_protocols,
        limits={
            SESSION_TIMEOUT_KEY: (
                config.group_consumer_min_session_timeout_ms,
                config.group_consumer_max_session_timeout_ms,
            ),
            HEARTBEAT_INTERVAL_KEY: (
                config.group_consumer_min_heartbeat_interval_ms,
                config.group_consumer_max_heartbeat_interval_ms,
            ),
            ASSIGNMENT_INTERVAL_KEY: (
                config.group_consumer_min_assignment_interval_ms,
                config.group_consumer_max_assignment_interval_ms,
            ),
        },
    )


def _assignors(names: list[str]) -> tuple[str, ...]:
    """Return the assignors' names in the protocol. The first one is the default. If `names` is empty, return all."""
    return tuple(dict.fromkeys(CONSUMER_ASSIGNORS[name] for name in names or CONSUMER_ASSIGNORS))


def _no_reply(_: object) -> None:
    """Ignore the answer: no request waits for it."""
