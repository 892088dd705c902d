"""Leaders of partitions, in-sync replicas (ISR) and eligible leader replicas (ELR, KIP-966). Pure functions.

`next_state` chooses every leader except the first one of a new partition (`records.new_partition`). The controller
calls it for every decision that may change the ISR, the replicas or the leader: when a broker stops, returns or cannot
use a log any more, when `unclean.leader.election.enable` changes, for AlterPartition, reassignments and ElectLeaders,
and for the automatic rebalance.

If a decision prefers the first replica, and rule 1 or 2 allows this replica to lead, it becomes the leader. Otherwise
the current leader remains if rule 1 or 2 allows it to lead. In all other cases an election chooses, in the same order
as Kafka:

1. the first active replica, in the order of the assignment, that is in the ISR;
2. if the ISR is empty, the first active replica that is in the ELR;
3. if the ISR and the ELR are empty, the last known leader, if it is active and has its data directories;
4. only if the topic has `unclean.leader.election.enable`, or if an administrator has requested an unclean election, the
   first active replica.

Rules 2 and 3 need the feature `eligible.leader.replicas.version`.

Elections by rules 3 and 4 are unclean: the leader may lack committed records. So the state is marked as RECOVERING, and
the ISR contains only the leader.

In Kafka, rule 3 also elects a last known leader whose directory was replaced by an empty one. The other replicas then
make their logs empty, too. Tidelog forgets such a leader, and an administrator decides which replica leads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.topic_config import topic_value
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import ELR_FEATURE, NO_LEADER, MetadataImage
from tidelog.metadata.records import RECOVERING, DirectoryId, PartitionState
from tidelog.metadata.state_changes import StateChanges
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

PREFERRED, UNCLEAN = 0, 1
"""Types of elections in ElectLeaders requests."""
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
UNKNOWN_DIRECTORY: Final = DirectoryId(bytes(16))
REBALANCED_PARTITIONS_MAX: Final = 1000
"""Upper bound on the elections of one automatic rebalance of leaders, as in Kafka."""

PARTITIONS_PER_STEP = 100
"""Partitions of one topic that are examined in one step."""

IsActive = Callable[[int], bool]
"""Called with a broker id. Returns whether the broker may lead partitions."""


class ElectionRules(NamedTuple):
    """The settings and features on which the elections in one topic depend."""

    min_isr: int
    """`min.insync.replicas` of the topic. If a partition has fewer replicas than this, it needs only as many in-sync
    replicas as it has replicas."""
    uses_elr: bool
    """Whether `eligible.leader.replicas.version` is at least 1."""
    allows_unclean: bool
    """Whether rule 4 of this module applies: any active replica may lead."""


class TopicRules:
    """The election rules of all topics of an image."""

    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        """`config` contains the controller's settings. They apply if neither the topic nor the cluster has a value."""
        self._cluster_config = config.with_dynamic(image.broker_configs.get("", {}), {})
        self._uses_elr = image.feature_levels.get(ELR_FEATURE, 0) >= 1
        self._rules_by_texts: dict[tuple[str | None, str | None], ElectionRules] = {}

    def of(self, settings: Mapping[str, str]) -> ElectionRules:
        """Return the rules of a topic whose own settings are `settings`."""
        texts = (settings.get(MIN_INSYNC_REPLICAS), settings.get(UNCLEAN_ELECTION))
        rules = self._rules_by_texts.get(texts)
        if rules is None:
            min_isr = topic_value(MIN_INSYNC_REPLICAS, settings, self._cluster_config)
            assert isinstance(min_isr, int)
            unclean = topic_value(UNCLEAN_ELECTION, settings, self._cluster_config)
            rules = self._rules_by_texts[texts] = ElectionRules(min_isr, self._uses_elr, bool(unclean))
        return rules


class Target(NamedTuple):
    """The intended change of a partition's state; None means no change."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    recovery: int | None = None
    unclean_broker: int | None = None
    """A broker that may have lost records from its log. It is removed from the ELR. `isr` must not contain it."""
    has_lost_directory: bool = False
    """Whether `unclean_broker` has lost a data directory, perhaps with all records. If this broker is the last known
    leader, the new state has no last known leader, unless the partition has no other replica."""
    prefer_first: bool = False
    """Whether the first replica becomes the leader if it may lead. Otherwise the current leader remains if possible."""


def next_state(state: PartitionState, target: Target, rules: ElectionRules, is_active: IsActive) -> PartitionState:
    """Return the state after the intended change and the election that this change requires. Returns `state` itself if
    nothing changes.

    The partition epoch grows with every change. The leader epoch grows when the leader changes, and when a replica is
    removed, so that the removed replica is fenced.
    """
    replicas, adding, removing, isr = _after_reassignment(state, target, is_active)
    min_isr = min(rules.min_isr, len(replicas))
    elr: tuple[int, ...] = ()
    if rules.uses_elr and len(isr) < min_isr:
        elr = _eligible_replicas(state, isr, replicas, target.unclean_broker)
    recovery = state.recovery if target.recovery is None else target.recovery
    leader, is_unclean = _elect(state, replicas, isr, elr, rules, is_active, target.prefer_first)
    if is_unclean:
        isr, elr, recovery = (leader,), (), RECOVERING
    elif leader in elr:
        # The ISR now contains only the leader. If this is enough for min.insync.replicas, the ELR is empty.
        isr, elr = (leader,), tuple(replica for replica in elr if replica != leader and min_isr > 1)
    if not isr and not rules.uses_elr:
        # Without ELR, the last members remain in the ISR, since they have all committed records.
        isr = tuple(replica for replica in state.isr if replica in replicas)
    last_known_elr = state.last_known_elr
    if leader != NO_LEADER or not rules.uses_elr:
        last_known_elr = ()
    elif not isr and not last_known_elr:
        # The last known leader is the leader that stops now. If the leader had already stopped while ELR was off, the
        # last known leader is the first of the members that remained in the ISR.
        last_known_elr = state.isr[:1] if state.leader == NO_LEADER else (state.leader,)
    if target.has_lost_directory and target.unclean_broker in last_known_elr and len(replicas) > 1:
        last_known_elr = ()
    begins_epoch = leader != state.leader or not set(state.replicas) <= set(replicas)
    new_state = PartitionState(
        leader,
        state.leader_epoch,
        replicas,
        isr,
        state.partition_epoch,
        elr,
        last_known_elr,
        adding,
        removing,
        recovery,
        _directories(state, replicas),
    )
    if new_state == state:
        return state
    return new_state._replace(leader_epoch=state.leader_epoch + begins_epoch, partition_epoch=state.partition_epoch + 1)


def _after_reassignment(
    state: PartitionState, target: Target, is_active: IsActive
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return replicas, adding, removing and ISR.

    A reassignment is complete when all replicas that it adds are in the ISR, and the ISR without the replicas that it
    removes has an active member. If it removes more replicas than it adds, all remaining replicas must be in the ISR.
    When it is complete, the replicas that it removes are dropped.
    """
    replicas = state.replicas if target.replicas is None else target.replicas
    adding = state.adding if target.adding is None else target.adding
    removing = state.removing if target.removing is None else target.removing
    isr = state.isr if target.isr is None else target.isr
    if adding or removing:
        new_replicas = tuple(replica for replica in replicas if replica not in removing)
        new_isr = tuple(replica for replica in isr if replica not in removing)
        must_be_in_sync = new_replicas if len(adding) < len(removing) else adding
        if any(map(is_active, new_isr)) and all(replica in new_isr for replica in must_be_in_sync):
            return new_replicas, (), (), new_isr
    return replicas, adding, removing, isr


def _eligible_replicas(
    state: PartitionState, isr: Sequence[int], replicas: Sequence[int], unclean_broker: int | None
) -> tuple[int, ...]:
    """Return the ELR for the new ISR `isr`. It consists of the previous members of the ISR and the ELR that are not in
    `isr`, without `unclean_broker` and removed replicas. Called only if `isr` is smaller than `min.insync.replicas`.

    The high watermark does not move while the ISR is so small, so these replicas have every committed record.
    """
    candidates = sorted({*state.elr, *state.isr})
    return tuple(r for r in candidates if r not in isr and r != unclean_broker and r in replicas)


def _elect(
    state: PartitionState,
    replicas: Sequence[int],
    isr: Sequence[int],
    elr: Sequence[int],
    rules: ElectionRules,
    is_active: IsActive,
    prefer_first: bool,
) -> tuple[int, bool]:
    """Return the leader, or NO_LEADER, and whether its election is unclean. If the present leader may lead, it remains,
    unless `prefer_first` is set and the first replica may lead.
    """
    candidates = isr or elr
    preferred = (replicas[0], state.leader) if prefer_first else (state.leader,)
    for replica in (*preferred, *replicas):
        if replica in candidates and is_active(replica):
            return replica, False
    if rules.uses_elr and not candidates and len(state.last_known_elr) == 1:
        (last_leader,) = state.last_known_elr
        if last_leader in replicas and is_active(last_leader):
            return last_leader, True
    if rules.allows_unclean:
        for replica in replicas:
            if is_active(replica):
                return replica, True
    return NO_LEADER, False


def _directories(state: PartitionState, replicas: tuple[int, ...]) -> tuple[DirectoryId, ...]:
    if not state.directories or replicas == state.replicas:
        return state.directories
    by_replica = dict(zip(state.replicas, state.directories, strict=True))
    return tuple(by_replica.get(replica, UNKNOWN_DIRECTORY) for replica in replicas)


# When a broker stops or returns


def remove_broker(
    changes: StateChanges,
    image: MetadataImage,
    broker_id: int,
    rules: TopicRules,
    *,
    unclean_stop: bool = False,
    has_lost_directory: bool = False,
) -> Steps[None]:
    """Collect the changes after a broker has stopped: it leads no partition any more, and is removed from every ISR.

    Without ELR, the broker remains in an ISR that has no other member. The partition then has no leader, unless the
    topic has `unclean.leader.election.enable` and another replica is active. `unclean_stop` says that the broker may
    have lost records from its logs; then it is also removed from every ELR. `has_lost_directory` says that it has also
    lost a data directory, so that it may have no records at all: see `Target`.
    """

    def is_concerned(state: PartitionState) -> bool:
        return (
            broker_id in state.isr
            or (unclean_stop and broker_id in state.elr)
            or (has_lost_directory and broker_id in state.last_known_elr)
        )

    def without_broker(state: PartitionState, topic_rules: ElectionRules) -> PartitionState:
        isr = tuple(replica for replica in state.isr if replica != broker_id)
        unclean_broker = broker_id if unclean_stop else None
        target = Target(isr=isr, unclean_broker=unclean_broker, has_lost_directory=has_lost_directory)
        return next_state(state, target, topic_rules, is_active)

    def is_active(replica: int) -> bool:
        return replica != broker_id and image.is_active(replica)

    yield from _change_all(changes, image, rules, is_concerned, without_broker)


def elect_where_leaderless(
    changes: StateChanges, image: MetadataImage, rules: TopicRules, *, returned_broker: int | None = None
) -> Steps[None]:
    """Collect elections of the partitions without a leader, for example after a broker has returned or after a topic's
    `unclean.leader.election.enable` has changed.

    `returned_broker` is treated as active, although the image does not say so yet.
    """

    def is_concerned(state: PartitionState) -> bool:
        return state.leader == NO_LEADER

    def with_leader(state: PartitionState, topic_rules: ElectionRules) -> PartitionState:
        return next_state(state, Target(), topic_rules, is_active)

    def is_active(replica: int) -> bool:
        return replica == returned_broker or image.is_active(replica)

    yield from _change_all(changes, image, rules, is_concerned, with_leader)


def _change_all(
    changes: StateChanges,
    image: MetadataImage,
    rules: TopicRules,
    is_concerned: Callable[[PartitionState], bool],
    change: Callable[[PartitionState, ElectionRules], PartitionState],
) -> Steps[None]:
    """Collect the same change for all partitions that it concerns. For partitions with equal states, the new state is
    computed only once.
    """
    decided: dict[tuple[PartitionState, ElectionRules], PartitionState] = {}
    for topic in image.topics.values():
        yield
        topic_rules: ElectionRules | None = None
        for partition, state in enumerate(topic.partitions):
            if partition % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield
            if not is_concerned(state):
                continue
            topic_rules = topic_rules or rules.of(topic.config)
            new_state = decided.get((state, topic_rules))
            if new_state is None:
                new_state = decided[state, topic_rules] = change(state, topic_rules)
            changes.put(topic, partition, new_state)


# Elections on request, and the automatic rebalance


class ElectionResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def elect_leaders(
    image: MetadataImage, election_type: int, partitions: Sequence[tuple[str, int]] | None, config: BrokerConfig
) -> Steps[JournalDecision[list[ElectionResult]]]:
    """Elect leaders on an administrator's request (ElectLeaders).

    A preferred election makes the first replica the leader if it is in sync. An unclean election lets any active
    replica lead a partition that has no leader. If `partitions` is None, all partitions are examined. As in Kafka, the
    results then contain only the partitions that need an election. Raises ApiError (INVALID_REQUEST) if the type is
    unknown.
    """
    changes = StateChanges(image)
    rules = TopicRules(image, config)
    results: list[ElectionResult] = []
    if election_type not in (PREFERRED, UNCLEAN):
        raise ApiError(f"Unknown election type {election_type}", ErrorCode.INVALID_REQUEST)
    for name, partition in _all_partitions(image) if partitions is None else partitions:
        yield
        try:
            _elect_on_request(changes, image, election_type, name, partition, rules)
        except ApiError as error:
            if partitions is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionResult(name, partition, error.code, error.message))
        else:
            results.append(ElectionResult(name, partition))
    return JournalDecision(changes.records(), results)


def _all_partitions(image: MetadataImage) -> Iterator[tuple[str, int]]:
    for topic in image.topics.values():
        yield from ((topic.name, partition) for partition in range(len(topic.partitions)))


def _elect_on_request(
    changes: StateChanges, image: MetadataImage, election_type: int, name: str, partition: int, rules: TopicRules
) -> None:
    """Collect one election. Raises ApiError."""
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(f"No such topic as {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not 0 <= partition < len(topic.partitions):
        raise ApiError(f"No such partition as {name}-{partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    state = changes.state(topic, partition)
    topic_rules = rules.of(topic.config)._replace(allows_unclean=election_type == UNCLEAN)
    if election_type == UNCLEAN:
        is_needed = state.leader == NO_LEADER
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        message = "Eligible topic partition leaders are not available."
    else:
        is_needed = state.leader != state.replicas[0]
        code, message = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    if not is_needed:
        raise ApiError("Leader election not needed for topic partition.", ErrorCode.ELECTION_NOT_NEEDED)
    target = Target(prefer_first=election_type == PREFERRED)
    new_state = next_state(state, target, topic_rules, image.is_active)
    if new_state is state:
        raise ApiError(message, code)
    changes.put(topic, partition, new_state)


def rebalance_leaders(image: MetadataImage, config: BrokerConfig) -> Steps[JournalDecision[bool]]:
    """Make preferred replicas the leaders of their partitions again (`auto.leader.rebalance.enable`). One call changes
    at most REBALANCED_PARTITIONS_MAX partitions.

    The reply says whether more partitions may need a change. If so, the caller calls again soon. Like Kafka 4.3, this
    function changes every partition whose preferred leader is in sync. Kafka without ZooKeeper ignores
    `leader.imbalance.per.broker.percentage`.
    """
    changes = StateChanges(image)
    rules = TopicRules(image, config)
    change_count = 0
    for topic in image.topics.values():
        yield
        for partition, state in enumerate(topic.partitions):
            if state.leader == state.replicas[0] or not image.is_active(state.replicas[0]):
                continue
            topic_rules = rules.of(topic.config)._replace(allows_unclean=False)
            new_state = next_state(state, Target(prefer_first=True), topic_rules, image.is_active)
            if new_state.leader == state.leader:
                continue
            if change_count == REBALANCED_PARTITIONS_MAX:
                return JournalDecision(changes.records(), True)
            changes.put(topic, partition, new_state)
            change_count += 1
    return JournalDecision(changes.records(), False)


def elect_leaderless(image: MetadataImage, config: BrokerConfig) -> Steps[JournalDecision[None]]:
    """Elect leaders of partitions without a leader, where the current settings allow this. Called after a change of
    `unclean.leader.election.enable`, and once by each new controller.
    """
    changes = StateChanges(image)
    yield from elect_where_leaderless(changes, image, TopicRules(image, config))
    return JournalDecision(changes.records(), None)
