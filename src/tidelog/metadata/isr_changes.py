"""Decisions about AlterPartition (KIP-497): the leader of a partition proposes a new ISR. Pure functions.

Only the controller changes an ISR. A proposal names the leader epoch and the partition epoch on which it is based, so
the controller can refuse the proposal if the partition has changed since then. A proposal also names the broker epoch
of each member. A broker that now has another broker epoch was restarted and may have lost its disk, so the controller
does not accept this broker as a member (KIP-903).
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import Target, TopicRules, next_state
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.records import RECOVERED, RECOVERING, PartitionState
from tidelog.metadata.registration import registered_broker
from tidelog.metadata.state_changes import StateChanges
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

ANY_BROKER_EPOCH = -1
"""Stands for the broker epoch of a member if the leader does not know this epoch. The controller then does not compare
epochs."""


class IsrProposal(NamedTuple):
    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    """Broker id and broker epoch of each member."""
    recovery: int = RECOVERED


class IsrResult(NamedTuple):
    topic_id: TopicId
    partition: int
    error: ErrorCode = ErrorCode.NONE
    state: PartitionState | None = None
    """The state after the change; None after an error."""


def alter_partitions(
    image: MetadataImage, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal], config: BrokerConfig
) -> Steps[JournalDecision[list[IsrResult]]]:
    """Change ISRs according to the proposals of the broker that leads the partitions. Each proposal succeeds or fails
    on its own.

    Raises ApiError (STALE_BROKER_EPOCH). If the new ISR completes a reassignment that removes the leader, the change is
    made although its result is the error NEW_LEADER_ELECTED.
    """
    registered_broker(image, broker_id, broker_epoch)
    changes = StateChanges(image)
    rules = TopicRules(image, config)
    results: list[IsrResult] = []
    for proposal in proposals:
        yield
        try:
            state = _alter_partition(changes, image, broker_id, proposal, rules)
        except ApiError as error:
            results.append(IsrResult(proposal.topic_id, proposal.partition, error.code))
        else:
            results.append(IsrResult(proposal.topic_id, proposal.partition, state=state))
    return JournalDecision(changes.records(), results)


def _alter_partition(
    changes: StateChanges, image: MetadataImage, broker_id: int, proposal: IsrProposal, rules: TopicRules
) -> PartitionState:
    """Collect one change and return the new state. Raises ApiError."""
    topic = image.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise ApiError("no topic has this id", ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= proposal.partition < len(topic.partitions):
        raise ApiError("there is no such partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    state = changes.state(topic, proposal.partition)
    _check_proposal(state, broker_id, proposal)
    _check_members(image, proposal)
    target = Target(isr=tuple(member for member, _ in proposal.isr), recovery=proposal.recovery)
    new_state = next_state(state, target, rules.of(topic.config), image.is_active)
    new_state = changes.put(topic, proposal.partition, new_state)
    if new_state.leader != broker_id:
        raise ApiError("the change completes a reassignment that moves the leader", ErrorCode.NEW_LEADER_ELECTED)
    return new_state


def _check_proposal(state: PartitionState, broker_id: int, proposal: IsrProposal) -> None:
    """Raise ApiError unless the current leader has sent the proposal, has based it on the current state, and proposes a
    valid ISR and recovery state. The order of the checks is the same as in Kafka.
    """
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > state.partition_epoch:
        raise ApiError(
            "the leader has seen a later change of the partition than this controller", ErrorCode.NOT_CONTROLLER
        )
    if broker_id != state.leader:
        raise ApiError("only the leader may change the ISR", ErrorCode.INVALID_REQUEST)
    if proposal.leader_epoch < state.leader_epoch:
        raise ApiError("a later leader epoch has begun", ErrorCode.FENCED_LEADER_EPOCH)
    if proposal.partition_epoch < state.partition_epoch:
        raise ApiError("the proposal is based on an earlier state of the partition", ErrorCode.INVALID_UPDATE_VERSION)
    members = [member for member, _ in proposal.isr]
    if not set(members) <= set(state.replicas) or len(set(members)) != len(members) or state.leader not in members:
        raise ApiError(
            "the ISR must contain the leader, and may contain other replicas of the partition, each only once",
            ErrorCode.INVALID_REQUEST,
        )
    if proposal.recovery not in (RECOVERED, RECOVERING):
        raise ApiError(f"recovery state {proposal.recovery} is unknown", ErrorCode.INVALID_REQUEST)
    if proposal.recovery == RECOVERING and (len(members) > 1 or state.recovery == RECOVERED):
        raise ApiError(
            "a leader is recovering only if it is alone in the ISR and has not recovered yet", ErrorCode.INVALID_REQUEST
        )


def _check_members(image: MetadataImage, proposal: IsrProposal) -> None:
    """Raise ApiError (INELIGIBLE_REPLICA) unless each member is active and is still registered with the broker epoch
    with which it fetched.
    """
    for member, epoch in proposal.isr:
        if not image.is_active(member):
            raise ApiError(f"broker {member} is fenced or shutting down", ErrorCode.INELIGIBLE_REPLICA)
        if epoch not in (ANY_BROKER_EPOCH, image.brokers[member].epoch):
            raise ApiError(f"broker {member} was restarted after it fetched", ErrorCode.INELIGIBLE_REPLICA)
