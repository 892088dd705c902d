"""Decisions about replicas whose logs a running broker cannot use any more: elect other leaders. Pure functions."""

from collections.abc import Sequence

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import Target, TopicRules, next_state
from tidelog.metadata.image import NO_LEADER, MetadataImage
from tidelog.metadata.records import PartitionState
from tidelog.metadata.registration import registered_broker
from tidelog.metadata.state_changes import StateChanges
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps


def end_replicas(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    replicas: Sequence[tuple[TopicId, int]],
    config: BrokerConfig,
) -> Steps[JournalDecision[None]]:
    """Remove the broker from the ISR and the ELR of the partitions in `replicas` (topic id and index of each), and
    elect other leaders.

    The broker is removed only if another broker can lead the partition now, or could lead it after that other broker
    has returned. Otherwise the partition keeps its state: if the broker `broker_id` is the leader, it remains the
    leader and answers requests with a storage error.

    If the broker is in neither the ISR nor the ELR, only the partition epoch is incremented. This is necessary because
    the leader may already have sent a proposal to add the broker to the ISR, based on records that were in the broker's
    log before it went offline. This proposal has the earlier partition epoch, so the controller refuses it. Clients do
    not see partition epochs. Raises ApiError (STALE_BROKER_EPOCH).
    """
    registered_broker(image, broker_id, broker_epoch)
    changes = StateChanges(image)
    rules = TopicRules(image, config)

    def is_active(replica: int) -> bool:
        return replica != broker_id and image.is_active(replica)

    for topic_id, index in replicas:
        yield
        topic = image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            continue
        state = changes.state(topic, index)
        if leads_or_may_lead(state, broker_id):
            isr = tuple(member for member in state.isr if member != broker_id)
            target = Target(isr=isr, unclean_broker=broker_id)
            new_state = next_state(state, target, rules.of(topic.config), is_active)
            if new_state.leader != NO_LEADER or new_state.elr or isr:
                changes.put(topic, index, new_state)
        elif broker_id in state.replicas and image.metadata_level > 0:  # with level 0, no proposal is accepted
            changes.put(topic, index, state._replace(partition_epoch=state.partition_epoch + 1))
    return JournalDecision(changes.records(), None)


def leads_or_may_lead(state: PartitionState, broker_id: int) -> bool:
    """Return whether the broker leads the partition, or may be elected as its leader without loss of records."""
    return state.leader == broker_id or broker_id in state.isr or broker_id in state.elr
