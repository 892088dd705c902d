"""Replicas that a living broker reports as offline: others lead, and it leaves ISR and ELR."""

import pytest

from metadata_harness.builders import topic_id
from metadata_harness.journal_life import JournalLife
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.image import NO_LEADER
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
    position = life.image.position
    life.decide(end_replicas(life.image, 1, epoch, replicas, life.config))
    assert life.image.position == position, "the same report again changes nothing"


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
