"""Decisions about the reassignment of replicas (KIP-455). Pure functions.

While a reassignment is in progress, `replicas` contains the requested replicas in the requested order, followed by the
replicas that will be removed. `elections.next_state` completes the reassignment when all added replicas are in the ISR.
If the number of replicas becomes smaller, all requested replicas must be in the ISR. Before the reassignment is
complete, no replica is removed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import PARTITIONS_PER_STEP, Target, TopicRules, next_state
from tidelog.metadata.image import NO_LEADER, MetadataImage, TopicImage
from tidelog.metadata.placement import check_assignment
from tidelog.metadata.records import PartitionState
from tidelog.metadata.state_changes import StateChanges
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

REPLICAS_MAX = 1_000
"""Maximum number of replicas of a partition."""


class Reassignment(NamedTuple):
    topic: str
    partition: int
    replicas: Sequence[int] | None
    """All replicas that the partition will have, with the preferred leader first. None cancels the reassignment in
    progress."""


class ReassignmentResult(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OngoingReassignment(NamedTuple):
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def alter_reassignments(
    image: MetadataImage,
    reassignments: Sequence[Reassignment],
    config: BrokerConfig,
    *,
    allow_factor_change: bool = True,
) -> Steps[JournalDecision[list[ReassignmentResult]]]:
    """Begin, change or cancel reassignments. Each partition succeeds or fails on its own.

    `allow_factor_change` says whether the number of replicas may change (KIP-860).
    """
    changes = StateChanges(image)
    rules = TopicRules(image, config)
    results: list[ReassignmentResult] = []
    for reassignment in reassignments:
        yield
        name, partition, replicas = reassignment
        try:
            topic = _find_topic(image, name, partition)
            if replicas is None:
                _cancel(changes, image, topic, partition, rules)
            else:
                _begin(changes, image, topic, partition, replicas, rules, allow_factor_change)
        except ApiError as error:
            results.append(ReassignmentResult(name, partition, error.code, error.message or None))
        else:
            results.append(ReassignmentResult(name, partition))
    return JournalDecision(changes.records(), results)


def _find_topic(image: MetadataImage, name: str, partition: int) -> TopicImage:
    """Return the topic that has the partition. Raises ApiError (UNKNOWN_TOPIC_OR_PARTITION)."""
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(f"Unable to find a topic named {name}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not 0 <= partition < len(topic.partitions):
        raise ApiError(f"Unable to find partition {name}:{partition}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _begin(
    changes: StateChanges,
    image: MetadataImage,
    topic: TopicImage,
    partition: int,
    new_replicas: Sequence[int],
    rules: TopicRules,
    allow_factor_change: bool,
) -> None:
    """Collect the change that begins a reassignment, or replaces the reassignment in progress. Raises ApiError."""
    state = changes.state(topic, partition)
    if len(new_replicas) > REPLICAS_MAX:
        message = f"the partition cannot get {len(new_replicas)} replicas: the limit is {REPLICAS_MAX}"
        raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    check_assignment(image, new_replicas)
    factor = len(replicas_after_reassignment(state))
    if not allow_factor_change and len(new_replicas) != factor:
        message = f"The replication factor is changed from {factor} to {len(new_replicas)}"
        raise ApiError(message, ErrorCode.INVALID_REPLICATION_FACTOR)
    # If an earlier reassignment is still adding one of the new replicas, this replica is not complete yet, so it also
    # belongs to `adding`.
    complete_replicas = [replica for replica in state.replicas if replica not in state.adding]
    adding = tuple(sorted(replica for replica in new_replicas if replica not in complete_replicas))
    removing = tuple(sorted(replica for replica in state.replicas if replica not in new_replicas))
    target = Target(replicas=(*new_replicas, *removing), adding=adding, removing=removing)
    changes.put(topic, partition, next_state(state, target, rules.of(topic.config), image.is_active))


def replicas_after_reassignment(state: PartitionState) -> tuple[int, ...]:
    """Return the replicas that the partition will have when the reassignment in progress is complete."""
    return tuple(replica for replica in state.replicas if replica not in state.removing)


def _cancel(changes: StateChanges, image: MetadataImage, topic: TopicImage, partition: int, rules: TopicRules) -> None:
    """Collect the change that cancels the reassignment in progress: the partition gets its former replicas. Raises
    ApiError.

    As in Kafka, these replicas keep the order that they have during the reassignment. It may differ from their former
    order.
    """
    state = changes.state(topic, partition)
    if not state.adding and not state.removing:
        raise ApiError("", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    topic_rules = rules.of(topic.config)
    replicas = tuple(replica for replica in state.replicas if replica not in state.adding)
    isr = tuple(replica for replica in state.isr if replica not in state.adding)
    target = Target(isr=isr, replicas=replicas, adding=(), removing=())
    new_state = next_state(state, target, topic_rules, image.is_active)
    if not isr and new_state.leader == NO_LEADER:
        raise ApiError(
            f"Unable to revert partition assignment for {topic.name}:{partition} because it would require an unclean "
            "leader election.",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    changes.put(topic, partition, new_state)


def list_reassignments(
    image: MetadataImage, partitions: Mapping[str, Iterable[int]] | None = None
) -> Steps[dict[str, list[OngoingReassignment]]]:
    """Return the reassignments in progress, of all topics or only of `partitions`. Unknown partitions are ignored."""
    ongoing: dict[str, list[OngoingReassignment]] = {}
    for name in image.topics if partitions is None else partitions:
        yield
        topic = image.topics.get(name)
        if topic is None:
            continue
        numbers = range(len(topic.partitions)) if partitions is None else partitions[name]
        for count, number in enumerate(numbers, 1):
            if 0 <= number < len(topic.partitions):
                state = topic.partitions[number]
                if state.adding or state.removing:
                    reassignment = OngoingReassignment(number, state.replicas, state.adding, state.removing)
                    ongoing.setdefault(name, []).append(reassignment)
            if count % PARTITIONS_PER_STEP == 0:
                yield
    return ongoing
