"""Decisions about brokers: registration, fencing, controlled shutdown, removal. Pure functions.

A registered broker is in one of these states:

| state | may lead, may be in an ISR | what ends the state |
|---|---|---|
| fenced | no | a heartbeat says that the broker has followed the journal up to its registration |
| active | yes | its lease ends, or a heartbeat asks for fencing or for a shutdown |
| in controlled shutdown | no | its process stops, so that its lease ends |

Without ELR, the only member of an ISR remains in it, even if this broker is fenced or in controlled shutdown, unless
an unclean election makes another replica the leader (`remove_broker`).

The broker epoch is the journal position of the registration. Requests with another epoch come from an earlier run of
the broker and get STALE_BROKER_EPOCH.

While the level of `tidelog.metadata.version` is 0, a registered broker is active at once and is never fenced.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.endpoints import Endpoint
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import TopicRules, elect_where_leaderless, remove_broker
from tidelog.metadata.features import check_supported
from tidelog.metadata.image import METADATA_FEATURE, BrokerRegistration, MetadataImage
from tidelog.metadata.records import (
    BrokerRegistered,
    BrokerStateChanged,
    BrokerUnregistered,
    DirectoryId,
    JournalRecord,
)
from tidelog.metadata.state_changes import StateChanges
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

BROKER_LEASES: Final = "broker/"
"""Prefix of the names of the brokers' leases in the store. The field `holder` of a broker's lease contains the broker's
incarnation."""


def broker_lease(broker_id: int) -> str:
    """Return the name of the lease that a running broker has."""
    return f"{BROKER_LEASES}{broker_id}"


RESERVED_DIRECTORY_IDS = 100
"""Directory ids below this number have a special meaning in Kafka (unknown, lost, in migration) and name no
directory."""


class Registration(NamedTuple):
    """A broker's request to be registered."""

    broker_id: int
    incarnation: str
    """Identifies this run of the broker's process."""
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    boot_id: str = ""
    directories: Sequence[DirectoryId] = ()
    features: Mapping[str, tuple[int, int]] = {}
    previous_epoch: int = -1
    """The broker epoch that is stored in the broker's directories: the lowest one if they differ, -1 if a directory
    contains no epoch."""
    is_synced: bool = False
    """Whether it is certain that the broker's disks have every record that it has acknowledged: it has run with
    `durability=fsync` since a full sync, or it was stopped cleanly."""


def register_broker(
    image: MetadataImage, request: Registration, config: BrokerConfig, *, other_run_has_lease: bool
) -> Steps[JournalDecision[int]]:
    """Register a broker. The reply is its broker epoch.

    `other_run_has_lease` says that another process has this broker's lease. While the level of
    `tidelog.metadata.version` is 1 or higher, the journal entry with the registration also ends the earlier run: the
    broker leads no partition any more and is removed from all ISRs. It is also removed from all ELRs if the earlier run
    may have lost records. If one of its data directories is missing, the broker is no longer recorded as the last known
    leader of partitions that have other replicas.

    Raises ApiError:

    - DUPLICATE_BROKER_REGISTRATION while another run of the broker has the lease,
    - INVALID_REGISTRATION for directory ids that are invalid or used by another broker,
    - UNSUPPORTED_VERSION if the broker does not support a finalized feature level.
    """
    broker_id = request.broker_id
    check_supported(image, broker_id, request.features)
    _check_directories(image, request)
    current = image.brokers.get(broker_id)
    is_same_run = current is not None and current.incarnation == request.incarnation
    if other_run_has_lease and not is_same_run:
        raise ApiError(
            f"another process runs as broker {broker_id}; if it has just stopped, its lease ends soon",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    registered = BrokerRegistered(
        broker_id,
        image.position,
        request.incarnation,
        tuple(request.endpoints),
        request.rack,
        fenced=image.metadata_level > 0,
        boot_id=request.boot_id,
        directories=tuple(request.directories),
        features=request.features,
    )
    if current is not None and is_same_run:
        # The broker sends its registration again if it did not get the answer, or if its addresses have changed.
        repeated = registered._replace(
            epoch=current.epoch,
            fenced=current.fenced,
            in_controlled_shutdown=current.in_controlled_shutdown,
            records_epoch=current.records_epoch,
            records_synced=current.records_synced,
        )
        return JournalDecision([] if current == BrokerRegistration(*repeated) else [repeated], current.epoch)
    if image.metadata_level == 0:
        return JournalDecision([registered], registered.epoch)
    has_records = current is not None and _has_acknowledged_records(current, request)
    if current is not None and has_records:
        registered = registered._replace(
            records_epoch=request.previous_epoch, records_synced=request.is_synced or current.records_synced
        )
    # After an unclean stop, `records_epoch` has its default. If this run ends before its epoch is in all directories,
    # its stop is also treated as unclean. This costs nothing: the present registration removes the broker from every
    # ELR, and the broker can return to an ELR only after it was unfenced.
    has_lost_directory = current is not None and any(d not in request.directories for d in current.directories)
    changes = yield from _end_of_broker(
        image, broker_id, config, unclean_stop=not has_records, has_lost_directory=has_lost_directory
    )
    return JournalDecision([registered, *changes], registered.epoch)


def _check_directories(image: MetadataImage, request: Registration) -> None:
    directories = list(request.directories)
    if len(dict.fromkeys(directories)) != len(directories):
        raise ApiError("two data directories have the same id", ErrorCode.INVALID_REGISTRATION)
    for directory in directories:
        if int.from_bytes(directory, "big") < RESERVED_DIRECTORY_IDS:
            raise ApiError("a data directory has a reserved id", ErrorCode.INVALID_REGISTRATION)
    for broker in image.brokers.values():
        if broker.broker_id != request.broker_id and any(d in broker.directories for d in directories):
            message = f"broker {broker.broker_id} is registered with a data directory of broker {request.broker_id}"
            raise ApiError(message, ErrorCode.INVALID_REGISTRATION)


def _has_acknowledged_records(current: BrokerRegistration, request: Registration) -> bool:
    """Return whether the broker still has every record that its earlier runs have acknowledged (KIP-966).

    Two conditions must be true. First, the broker has the same directories as before, and they contain the registered
    epoch. Second, all records were synced, or the operating system was not restarted, so that the page cache was not
    lost.

    A run may end after its registration and before its epoch is in all directories, for example because a disk is full.
    Such a run was never unfenced, so it has led no partition and acknowledged nothing. If the directories had all
    records when this run was registered, the epoch that they contained at that time (`records_epoch`) also fulfils the
    first condition. Several such runs may follow each other, and the lowest epoch in the directories may belong to any
    of these runs. So every epoch from `records_epoch` to the registered epoch fulfils the first condition.
    """
    if not request.directories or sorted(request.directories) != sorted(current.directories):
        return False
    oldest_epoch = current.epoch if current.records_epoch < 0 else current.records_epoch
    if not oldest_epoch <= request.previous_epoch <= current.epoch:
        return False
    # It is enough to compare with the boot id of the registered run, even if only an earlier run has acknowledged
    # records. If this function accepted the registered run because the boot ids were equal, the earlier run had the
    # same boot id as the registered run. If it accepted the registered run because all records were synced, the records
    # do not depend on the page cache at all.
    is_same_boot = request.boot_id != "" and request.boot_id == current.boot_id
    return request.is_synced or current.records_synced or is_same_boot


def _end_of_broker(
    image: MetadataImage,
    broker_id: int,
    config: BrokerConfig,
    *,
    unclean_stop: bool = False,
    has_lost_directory: bool = False,
) -> Steps[list[JournalRecord]]:
    changes = StateChanges(image)
    yield from remove_broker(
        changes,
        image,
        broker_id,
        TopicRules(image, config),
        unclean_stop=unclean_stop,
        has_lost_directory=has_lost_directory,
    )
    return changes.records()


def registered_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """Return the registration of the broker that sends a request. Raises ApiError (STALE_BROKER_EPOCH) if the broker is
    not registered, or is registered with another epoch.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(f"broker {broker_id} is not registered", ErrorCode.STALE_BROKER_EPOCH)
    if broker.epoch != broker_epoch:
        message = f"broker {broker_id} is registered with epoch {broker.epoch}, not {broker_epoch}"
        raise ApiError(message, ErrorCode.STALE_BROKER_EPOCH)
    return broker


class Heartbeat(NamedTuple):
    """A broker's message to the controller, which it sends several times during its lease."""

    broker_id: int
    broker_epoch: int
    followed: int
    """The broker has applied all entries of the journal before this position: the roles of its partitions correspond to
    these entries."""
    wants_fence: bool = False
    wants_shutdown: bool = False


class HeartbeatReply(NamedTuple):
    is_caught_up: bool
    """Whether the broker has followed the journal to its registration."""
    is_fenced: bool
    should_shut_down: bool


def heartbeat(
    image: MetadataImage,
    request: Heartbeat,
    config: BrokerConfig,
    *,
    shutdown_position: int = 0,
    followed_positions: Mapping[int, int] = {},
) -> Steps[JournalDecision[HeartbeatReply]]:
    """Fence, unfence or shut down a broker according to its heartbeat.

    A broker in controlled shutdown may stop its process when two conditions are true: it leads no partition, and every
    active broker has followed the journal up to `shutdown_position`. `shutdown_position` is a position after the entry
    that made other brokers the leaders of the stopping broker's partitions. `followed_positions` contains the positions
    from the last heartbeats of the brokers. Fenced brokers are ignored, so a broker that does not run cannot delay the
    shutdown.

    Raises ApiError (STALE_BROKER_EPOCH).
    """
    broker = registered_broker(image, request.broker_id, request.broker_epoch)
    is_caught_up = request.followed > broker.epoch
    if image.metadata_level == 0:
        return JournalDecision(
            [], HeartbeatReply(is_caught_up, is_fenced=False, should_shut_down=request.wants_shutdown)
        )
    if broker.fenced:
        if request.wants_shutdown:
            return JournalDecision([], HeartbeatReply(is_caught_up, is_fenced=True, should_shut_down=True))
        if request.wants_fence or broker.in_controlled_shutdown or not is_caught_up:
            return JournalDecision([], HeartbeatReply(is_caught_up, is_fenced=True, should_shut_down=False))
        records = yield from _unfence(image, broker, config)
        return JournalDecision(records, HeartbeatReply(is_caught_up, is_fenced=False, should_shut_down=False))
    if request.wants_fence:
        fencing = yield from fence_broker(image, broker.broker_id, broker.incarnation, config)
        return JournalDecision(
            fencing.records, HeartbeatReply(is_caught_up, is_fenced=True, should_shut_down=request.wants_shutdown)
        )
    records = []
    may_stop = False
    if broker.in_controlled_shutdown:
        may_stop = not leads_any(image, broker.broker_id) and all(
            followed_positions.get(other.broker_id, 0) >= shutdown_position
            for other in image.brokers.values()
            if other.active
        )
    elif request.wants_shutdown:
        records.append(BrokerStateChanged(broker.broker_id, broker.epoch, in_controlled_shutdown=True))
        records += yield from _end_of_broker(image, broker.broker_id, config)
    return JournalDecision(records, HeartbeatReply(is_caught_up, is_fenced=False, should_shut_down=may_stop))


def _unfence(image: MetadataImage, broker: BrokerRegistration, config: BrokerConfig) -> Steps[list[JournalRecord]]:
    """Return the records that make the broker active and elect leaders of the partitions that have no leader."""
    changes = StateChanges(image)
    yield from elect_where_leaderless(changes, image, TopicRules(image, config), returned_broker=broker.broker_id)
    return [BrokerStateChanged(broker.broker_id, broker.epoch, fenced=False), *changes.records()]


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    return any(state.leader == broker_id for topic in image.topics.values() for state in topic.partitions)


def fence_broker(
    image: MetadataImage, broker_id: int, incarnation: str, config: BrokerConfig
) -> Steps[JournalDecision[None]]:
    """Fence a broker whose lease has ended or that asks to be fenced. The same journal entry elects other leaders for
    the broker's partitions and removes the broker from their ISRs.

    Nothing changes if `incarnation` identifies an earlier run, if the broker is fenced already, or if the level
    of `tidelog.metadata.version` is 0.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.incarnation != incarnation or broker.fenced:
        return JournalDecision([], None)
    if image.metadata_level == 0:
        return JournalDecision([], None)
    records: list[JournalRecord] = [BrokerStateChanged(broker_id, broker.epoch, fenced=True)]
    records += yield from _end_of_broker(image, broker_id, config)
    return JournalDecision(records, None)


def unregister_broker(image: MetadataImage, broker_id: int, config: BrokerConfig) -> Steps[JournalDecision[None]]:
    """Remove a broker's registration (UnregisterBroker). The broker remains a replica of its partitions until a
    reassignment.

    The broker is removed from all ISRs. It is also removed from all ELRs: without the registration, the controller
    cannot find out later whether the broker has lost records. Raises ApiError (BROKER_ID_NOT_REGISTERED, or
    UNSUPPORTED_VERSION while the level of `tidelog.metadata.version` is 0).
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        message = f"Broker ID {broker_id} is not currently registered"
        raise ApiError(message, ErrorCode.BROKER_ID_NOT_REGISTERED)
    if image.metadata_level == 0:
        message = f"broker {broker_id} cannot be unregistered while {METADATA_FEATURE} has level 0"
        raise ApiError(message, ErrorCode.UNSUPPORTED_VERSION)
    records = yield from _end_of_broker(image, broker_id, config, unclean_stop=True)
    return JournalDecision([*records, BrokerUnregistered(broker_id, broker.epoch)], None)
