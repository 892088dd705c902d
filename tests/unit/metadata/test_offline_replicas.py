"""Replicas that a living broker reports as offline: others lead, and it leaves ISR and ELR."""

import pytest

from metadata_harness.builders import topic_id
from metadata_harness.journal_life import JournalLife
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.image import NO_LEADER
from tidelog.metadata.isr_changes import IsrProposal, alter_partitions
from tidelog.metadata.offline_replicas import end_replicas, leads_or_may_lead
from tidelog.metadata.records import PartitionState
from tidelog.model.steps import run_all
from tidelog.wire.errors import ApiError, ErrorCode


def test_another_replica_leads_where_there_is_one() -> None:
    life = JournalLife()
    life.start(1, 2)
    topics = [
        NewTopic("a", assignments=[(0, (1, 2)), (1, (2, 1)), (2, (1, 2))]),
        NewTopic("b", assignments=[(0, (1,))]),
    ]
    created, alone = life.decide(create_topics(life.image, topics, life.config, life.new_id))
    epoch = life.image.brokers[1].epoch
    replicas = [(created.topic_id, 0), (created.topic_id, 1), (alone.topic_id, 0), (created.topic_id, 9)]
    life.decide(end_replicas(life.image, 1, epoch, [*replicas, (topic_id(9), 0)], life.config))
    assert life.image.topics["a"].partitions == (
        PartitionState(2, 1, (1, 2), (2,), 1),
        PartitionState(2, 0, (2, 1), (2,), 1),
        PartitionState(1, 0, (1, 2), (1, 2), 0),
    )
    assert life.image.topics["b"].partitions == (PartitionState(1, 0, (1,), (1,), 0),), "no other one"
    life.decide(end_replicas(life.image, 1, epoch, replicas, life.config))
    assert life.image.topics["a"].partitions == (
        PartitionState(2, 1, (1, 2), (2,), 2),
        PartitionState(2, 0, (2, 1), (2,), 2),
        PartitionState(1, 0, (1, 2), (1, 2), 0),
    ), "the same report again only begins new partition epochs"
    position = life.image.position
    life.decide(end_replicas(life.image, 1, epoch, replicas[2:], life.config))
    assert life.image.position == position


def test_a_proposal_from_before_the_report_is_refused() -> None:
    """The leader wants to add a replica to the ISR, whose broker then reports that its log is lost."""
    life = JournalLife()
    life.start(1, 2)
    [created] = life.decide(
        create_topics(life.image, [NewTopic("a", assignments=[(0, (1, 2))])], life.config, life.new_id)
    )
    epochs = {broker: life.image.brokers[broker].epoch for broker in (1, 2)}
    replicas = [(created.topic_id, 0)]
    life.decide(end_replicas(life.image, 2, epochs[2], replicas, life.config))
    before = life.image.topics["a"].partitions[0]
    assert before.isr == (1,)
    proposal = IsrProposal(created.topic_id, 0, before.leader_epoch, before.partition_epoch, list(epochs.items()))
    life.decide(end_replicas(life.image, 2, epochs[2], replicas, life.config))
    assert life.image.topics["a"].partitions[0] == before._replace(partition_epoch=before.partition_epoch + 1)
    [refused] = life.decide(alter_partitions(life.image, 1, epochs[1], [proposal], life.config))
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    again = proposal._replace(partition_epoch=before.partition_epoch + 1)
    [accepted] = life.decide(alter_partitions(life.image, 1, epochs[1], [again], life.config))
    assert accepted.error is ErrorCode.NONE
    assert life.image.topics["a"].partitions[0].isr == (1, 2)


def test_a_broker_without_a_replica_changes_nothing() -> None:
    life = JournalLife()
    life.start(1, 2, 3)
    [created] = life.decide(
        create_topics(life.image, [NewTopic("a", assignments=[(0, (1, 2))])], life.config, life.new_id)
    )
    position = life.image.position
    life.decide(end_replicas(life.image, 3, life.image.brokers[3].epoch, [(created.topic_id, 0)], life.config))
    assert life.image.position == position


def test_an_earlier_run_of_the_broker_is_refused() -> None:
    life = JournalLife()
    life.start(1)
    with pytest.raises(ApiError) as refused:
        run_all(end_replicas(life.image, 1, life.image.brokers[1].epoch - 1, [], life.config))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (PartitionState(1, 0, (1, 2), (1,), 0), True),
        (PartitionState(2, 0, (1, 2), (1, 2), 0), True),
        (PartitionState(2, 0, (1, 2), (2,), 0, elr=(1,)), True),
        (PartitionState(NO_LEADER, 0, (1, 2), (2,), 0), False),
        (PartitionState(2, 0, (1, 2), (2,), 0), False),
    ],
)
def test_a_report_is_needed_while_the_partition_counts_on_the_replica(state: PartitionState, counts: bool) -> None:
    assert leads_or_may_lead(state, 1) is counts
