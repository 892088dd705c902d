"""The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from tidelog.config.coordinator_keys import CONSUMER_ASSIGNORS
from tidelog.coordinator.consumer.settings import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    ConsumerSettings,
    MigrationPolicy,
)
from tidelog.coordinator.group.hashing import partition_of
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group_log import GroupLog
from tidelog.coordinator.lag import GroupLags
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.model.ids import uuid_text
from tidelog.wire.decoding import STRING_BYTES_MAX
from tidelog.wire.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    NotCoordinator,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    import asyncio

    from tidelog.config.broker_config import BrokerConfig
    from tidelog.coordinator.decision import Reply
    from tidelog.coordinator.group.core import GroupCore, GroupListing
    from tidelog.coordinator.group.durable import DurableGroup
    from tidelog.coordinator.group.offsets import OffsetCommit
    from tidelog.coordinator.runtime import CoordinatorPartition
    from tidelog.metadata.image import BrokerRegistration, MetadataImage, TopicImage
    from tidelog.metadata.records import PartitionState
    from tidelog.metadata.service import MetadataCache, MetadataController
    from tidelog.model.steps import Steps
    from tidelog.replication.partitions import Partitions
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

PLACES_MAX = 20_000
"""Group ids of which the partition is remembered."""
UUID_FORM_LENGTH = 36
SWEEP_GROUPS = 20
"""Groups that a sweep looks at in one turn of the loop."""


class GroupCoordinators:
    """What the API handlers ask. Answers go to a `Reply`: at once, or when the group or the log is ready for it."""

    def __init__(
        self,
        *,
        runtime: "Runtime",
        config: "BrokerConfig",
        partitions: "Partitions",
        metadata: "MetadataCache",
        controller: "MetadataController",
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._partitions = partitions
        self._metadata = metadata
        self._controller = controller
        self._settings = group_settings(config)
        self._led: dict[int, CoordinatorPartition[GroupCore]] = {}
        self._count = 0
        self._places: dict[str, int] = {}
        self._going: dict[str, None] = {}
        """Groups of which a part has been deleted and the rest will be."""
        self._told = metadata.image
        self.lags = GroupLags(partitions, runtime.clock, runtime.tasks, self._committing)
        self._group_log = GroupLog(runtime.clock, runtime.tasks)
        self._tasks: list[asyncio.Task[None]] = []

    # With the broker's life

    def start(self) -> None:
        """Begin to forget old offsets, and to look how far groups are behind, now and then. Coordinators are loaded as
        `on_image` tells of partitions."""
        spawn = self._runtime.tasks.spawn
        self._tasks = [
            spawn(self._sweep_often(), name="offsets-sweep"),
            spawn(self.lags.keep(), name="group-lags"),
        ]

    def on_image(self, old: "MetadataImage", new: "MetadataImage") -> "Awaitable[None] | None":
        """Follow a change that the partitions have followed: serve what is led here, forget topics that are deleted,
        let consumer groups know what they may read now. Groups may have committed millions of offsets in a topic: they
        are forgotten while others are served, and no further change comes before that is over.
        """
        self._told = new
        self._settings.consumer.assignment_interval_ms = self._config.group_consumer_assignment_interval_ms
        topic = new.topics.get(CONSUMER_OFFSETS)
        if topic is not old.topics.get(CONSUMER_OFFSETS):
            self._follow({} if topic is None else dict(enumerate(topic.partitions)))
        if old.topics is not new.topics:
            gone = {
                name: None
                for name, before in old.topics.items()
                if (now := new.topics.get(name)) is None or now.topic_id != before.topic_id
            }
            if gone:
                return self._forget_topics(gone, old, new)
            self._topics_changed(old, new)
        return None

    async def _forget_topics(self, gone: dict[str, None], old: "MetadataImage", new: "MetadataImage") -> None:
        for led in self._loaded():
            core = led.core
            for decision in core.forget_topics(gone, led.now()):
                led.apply(decision)
                await self._runtime.tasks.sleep(0)
                if not led.is_loaded or led.core is not core:
                    break  # closed, or loaded anew: offsets with the id of a deleted topic are not told to anybody
        # Last: until the image is published, groups are assigned what the old one has.
        self._topics_changed(old, new)

    def _topics_changed(self, old: "MetadataImage", new: "MetadataImage") -> None:
        for led in self._loaded():
            led.core.topics_changed(old, new, led.now())
            led.arm()

    def opened_late(self) -> None:
        """Serve what of the topic's partitions was offline and is not any more."""
        topic = self._metadata.image.topics.get(CONSUMER_OFFSETS)
        if topic is not None:
            self._follow(dict(enumerate(topic.partitions)))

    def close(self) -> None:
        """Answer everyone who waits; take no more requests."""
        for task in self._tasks:
            task.cancel()
        for led in self._led.values():
            led.close()
        self._led.clear()

    async def loading(self) -> None:
        """Return when every coordinator that is being loaded has ended that."""
        for led in list(self._led.values()):
            await led.loading()

    # Where a group is

    @property
    def has_topic(self) -> bool:
        """Whether `__consumer_offsets` exists; without it there is no coordinator of any group."""
        return CONSUMER_OFFSETS in self._metadata.image.topics

    async def make_topic(self) -> None:
        """Make `__consumer_offsets` as it is first needed. Raises CoordinatorNotAvailable."""
        try:
            (made,) = await self._controller.ensure_topics([CONSUMER_OFFSETS])
            refused = None if made.error is ErrorCode.NONE else made.message or made.error.name
        except ApiError as error:
            refused = error.message
        if refused is not None:
            logger.error("cannot make topic=%s reason=%s", CONSUMER_OFFSETS, refused)
            raise CoordinatorNotAvailable(f"{CONSUMER_OFFSETS} cannot be made: {refused}")
        await self.loading()  # empty logs: a client that comes at once need not be sent away

    def coordinator_of(self, group_id: str) -> "BrokerRegistration":
        """The broker to ask about the group. Raises CoordinatorNotAvailable when there is none at the moment."""
        image = self._metadata.image
        topic = image.topics.get(CONSUMER_OFFSETS)
        if topic is None:
            raise CoordinatorNotAvailable(f"{CONSUMER_OFFSETS} does not exist yet")
        place = self._place(group_id, len(topic.partitions))
        state = topic.partitions[place]
        broker = image.brokers.get(state.leader)
        if broker is None or self._partitions.is_offline(CONSUMER_OFFSETS, place):
            raise CoordinatorNotAvailable(f"the partition of group {group_id!r} has no leader")
        return broker

    # Requests. Each raises ApiError when the group is not served here now.

    def join(self, request: "JoinGroupRequest", client_id: str, client_host: str, version: int, reply: "Reply") -> None:
        self._check_group_id(request.group_id)
        _check_begins_member_id(request, client_id)
        settings = self._settings
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"session timeout {request.session_timeout_ms} ms is outside {settings.min_session_timeout_ms} "
                f"(group.min.session.timeout.ms) to {settings.max_session_timeout_ms} (group.max.session.timeout.ms)"
            )
        from tidelog.coordinator.group.classic import Joining

        led = self._joinable(request.group_id)
        fresh_uuid = fresh_id = ""
        if not request.member_id:
            raw = self._new_uuid()
            fresh_uuid, fresh_id = uuid_form(raw), uuid_text(raw)
        joining = Joining(request, reply, client_id, client_host, version, fresh_uuid, fresh_id)
        led.apply(led.core.join(joining, led.now()))

    def sync(self, request: "SyncGroupRequest", reply: "Reply") -> None:
        self._check_group_id(request.group_id)
        led = self._of(request.group_id)
        led.apply(led.core.sync(request, reply, led.now()))

    def heartbeat(self, request: "HeartbeatRequest") -> ErrorCode:
        self._check_group_id(request.group_id)
        led = self._of(request.group_id)
        if led.is_loading:
            return ErrorCode.NONE  # nobody's session runs out meanwhile
        return led.core.heartbeat(request, led.now())

    def leave(self, request: "LeaveGroupRequest", reply: "Reply") -> None:
        self._check_group_id(request.group_id)
        led = self._of(request.group_id)
        led.apply(led.core.leave(request, reply, led.now()))

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether the consumer protocol (KIP-848) may be used."""
        return self._settings.consumer.is_served

    def consumer_heartbeat(
        self, request: "ConsumerGroupHeartbeatRequest", client_id: str, client_host: str, version: int, reply: "Reply"
    ) -> None:
        """Answered with a ConsumerGroupHeartbeatResponse."""
        settings = self._settings.consumer
        if not settings.is_served:
            raise UnsupportedVersion("group.coordinator.rebalance.protocols leaves the consumer protocol out")
        from tidelog.coordinator.consumer.heartbeats import Beat, check_request

        check_request(request, version, settings)
        led = self._joinable(request.group_id)
        fresh_id = "" if request.member_id else uuid_text(self._new_uuid())
        beat = Beat(request, reply, client_id, client_host, version, fresh_id)
        led.apply(led.core.consumer_heartbeat(beat, led.now()))

    def describe_consumer(self, group_id: str, reply: "Reply") -> None:
        """Answered with the DescribedGroup of a group of the consumer protocol."""
        if not group_id:
            raise InvalidGroupId
        led = self._of(group_id)
        described: DescribedConsumerGroup = led.core.describe_consumer(group_id)
        led.answer(reply, described, led.core.durable.next_offset(group_id))

    def commit(self, commit: "OffsetCommit", reply: "Reply") -> "Steps[None]":
        """Answered with one ErrorCode for each offset. What is to be written is made in steps, and written in one."""
        from tidelog.coordinator.group.offsets import prepare_commit

        led = self._of(commit.group_id)
        led.core.check_commit(commit, led.now())
        while True:
            topics = self._told.topics  # a topic that is being forgotten is in the metadata still
            prepared = yield from prepare_commit(commit, self._settings, led.now(), topics)
            # Offsets in a topic that was deleted meanwhile have been forgotten: they must not come again.
            if not _gone(topics, self._told.topics, commit):
                break
        led = self._of(commit.group_id)  # it may have moved, and the group have a new generation
        led.apply(led.core.commit(commit, reply, led.now(), prepared))

    def delete(self, group_id: str, reply: "Reply") -> "Steps[None]":
        """Answered with None when nothing is left of the group. Nobody joins it meanwhile, so that it is deleted whole
        or not at all.
        """
        is_last = False
        self._joinable(group_id)
        try:
            while not is_last:
                led = self._of(group_id)
                decision, is_last = led.core.delete_some(group_id, led.now())
                if is_last:
                    decision.reply(reply, None)
                else:
                    self._going[group_id] = None
                led.apply(decision)
                yield
        finally:
            self._going.pop(group_id, None)

    def delete_offsets(self, group_id: str, offsets: "Sequence[tuple[str, int]]", reply: "Reply") -> None:
        """Answered with one ErrorCode for each (topic, partition)."""
        self._check_group_id(group_id)
        led = self._of(group_id)
        led.apply(led.core.delete_offsets(group_id, offsets, reply, led.now()))

    def committed(
        self,
        group_id: str,
        read: "Callable[[DurableGroup | None], T]",
        reply: "Reply",
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Answered with what `read` makes of the group's offsets, once they are committed for good."""
        led = self._of(group_id)
        durable, reply_offset = led.core.committed(group_id, member_id, member_epoch)
        led.answer(reply, read(durable), reply_offset)

    def describe(self, group_id: str, reply: "Reply") -> None:
        """Answered with a DescribedGroup, or None for a group that does not exist."""
        led = self._of(group_id)
        described: DescribedGroup | None = led.core.describe(group_id)
        led.answer(reply, described, led.core.durable.next_offset(group_id))

    def listing(self) -> "Iterator[GroupListing]":
        """Raises CoordinatorLoadInProgress, or CoordinatorNotAvailable, while a part of the groups is not known yet.
        Without those whose partition is offline: that must not hide all others."""
        for led in self._led.values():
            led.check_groups_known()
        for led in self._loaded():
            yield from led.core.listing()

    # Inside

    def _committing(self) -> "Iterator[tuple[str, DurableGroup]]":
        for led in self._loaded():
            yield from list(led.core.durable.by_id.items())

    def _of(self, group_id: str) -> "CoordinatorPartition[GroupCore]":
        led = self._led.get(self._place(group_id, self._count)) if self._count else None
        if led is None:
            raise NotCoordinator(f"the coordinator of group {group_id!r} is not here")
        return led

    def _joinable(self, group_id: str) -> "CoordinatorPartition[GroupCore]":
        """As `_of`; raises CoordinatorLoadInProgress while the group is being deleted: clients try again."""
        if group_id in self._going:
            raise CoordinatorLoadInProgress(f"group {group_id!r} is being deleted")
        return self._of(group_id)

    def _place(self, group_id: str, count: int) -> int:
        place = self._places.get(group_id)
        if place is None:
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            place = self._places[group_id] = partition_of(group_id, count)
        return place

    def _new_uuid(self) -> bytes:
        """Random; its text form does not begin as an option of a command line does."""
        while True:
            raw = self._runtime.new_uuid()
            if not uuid_text(raw).startswith("-"):
                return raw

    def _check_group_id(self, group_id: str) -> None:
        if not group_id:
            raise InvalidGroupId("a group that members join needs a name")

    def _loaded(self) -> "Iterator[CoordinatorPartition[GroupCore]]":
        for led in list(self._led.values()):
            if led.is_loaded:
                yield led

    def _follow(self, states: "dict[int, PartitionState]") -> None:
        """Serve exactly the partitions that this broker leads and has."""
        node_id = self._config.node_id
        if len(states) != self._count:
            self._count = len(states)
            self._places.clear()
        for index in list(self._led):
            partition = self._partitions.find(CONSUMER_OFFSETS, index)
            if partition is not self._led[index].partition or states[index].leader != node_id:
                self._led.pop(index).close()
        for index, state in states.items():
            if index in self._led or state.leader != node_id:
                continue
            partition = self._partitions.find(CONSUMER_OFFSETS, index)
            if partition is not None:
                from tidelog.coordinator.runtime import CoordinatorPartition  # nothing of it until a group is needed

                runtime = self._runtime
                led = CoordinatorPartition(
                    partition, self._new_core, runtime.clock, runtime.tasks, runtime.turns, self._group_log
                )
                self._led[index] = led
                led.load()

    def _new_core(self) -> "GroupCore":
        from tidelog.coordinator.group.core import GroupCore

        return GroupCore(self._settings, lambda: self._metadata.image)

    async def _sweep_often(self) -> None:
        while True:
            await self._runtime.tasks.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            try:
                await self.sweep()
            except Exception:
                logger.exception("offsets sweep failed")  # and is tried again the next time

    async def sweep(self) -> None:
        """Forget expired offsets and groups of which nothing is left."""
        for led in self._loaded():
            group_ids = iter(led.core.group_ids())
            while led.is_loaded and (some := list(islice(group_ids, SWEEP_GROUPS))):
                led.apply_all(led.core.sweep(some, led.now()))
                await self._runtime.tasks.sleep(0)


def _gone(before: "Mapping[str, TopicImage]", now: "Mapping[str, TopicImage]", commit: "OffsetCommit") -> bool:
    """Whether a topic of the commit has been deleted since; it may have been made anew."""
    if now is before:
        return False
    names = dict.fromkeys(offset.topic for offset in commit.offsets)
    return any(
        (topic := before.get(name)) is not None and ((new := now.get(name)) is None or new.topic_id != topic.topic_id)
        for name in names
    )


def _check_begins_member_id(request: "JoinGroupRequest", client_id: str) -> None:
    """Raise InvalidRequest where the id that a member would get is longer than its record can hold: the group could
    not be written, and its members would wait in vain.
    """
    begin, what = client_id, "client id"
    if request.group_instance_id is not None:
        begin, what = request.group_instance_id, "group instance id"
    room = STRING_BYTES_MAX - UUID_FORM_LENGTH - 1
    if not request.member_id and len(begin) * 4 > room and len(begin.encode()) > room:
        raise InvalidRequest(f"the {what}, with which the member id begins, is longer than {room} bytes")


def uuid_form(raw: bytes) -> str:
    """The 36 characters that end a member id."""
    text = raw.hex()
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
        is_served="consumer" in config.group_coordinator_rebalance_protocols,
        limits={
            SESSION_TIMEOUT: (
                config.group_consumer_min_session_timeout_ms,
                config.group_consumer_max_session_timeout_ms,
            ),
            HEARTBEAT_INTERVAL: (
                config.group_consumer_min_heartbeat_interval_ms,
                config.group_consumer_max_heartbeat_interval_ms,
            ),
            ASSIGNMENT_INTERVAL: (
                config.group_consumer_min_assignment_interval_ms,
                config.group_consumer_max_assignment_interval_ms,
            ),
        },
    )


def _assignors(names: list[str]) -> tuple[str, ...]:
    """By the names that clients use, the default first; an empty list is that of all."""
    return tuple(dict.fromkeys(CONSUMER_ASSIGNORS[name] for name in names or CONSUMER_ASSIGNORS))
