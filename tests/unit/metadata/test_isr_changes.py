"""AlterPartition over several partitions. Its errors are in `tests/scenarios/controller/isr_changes.txt`."""

from metadata_harness.builders import topic_id
from metadata_harness.journal_life import JournalLife
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.isr_changes import ANY_BROKER_EPOCH, IsrProposal, alter_partitions
from tidelog.metadata.records import PartitionState
from tidelog.wire.errors import ErrorCode


def test_each_proposal_stands_alone_and_names_the_state_that_it_gave() -> None:
    life = JournalLife()
    life.start(1, 2)
    topics = [NewTopic("a", assignments=[(0, (1, 2)), (1, (1, 2)), (2, (2, 1))])]
    (created,) = life.decide(create_topics(life.image, topics, life.config, life.new_id))
    broker = life.image.brokers[1]
    proposals = [
        IsrProposal(created.topic_id, 0, 0, 0, [(1, broker.epoch)]),
        IsrProposal(topic_id(9), 0, 0, 0, [(1, broker.epoch)]),
        IsrProposal(created.topic_id, 3, 0, 0, [(1, broker.epoch)]),
        IsrProposal(created.topic_id, 1, 0, 0, [(1, broker.epoch), (2, ANY_BROKER_EPOCH)]),
        IsrProposal(created.topic_id, 2, 0, 0, [(1, broker.epoch)]),
        IsrProposal(created.topic_id, 1, 0, 0, [(1, broker.epoch)], recovery=5),
    ]
    results = life.decide(alter_partitions(life.image, 1, broker.epoch, proposals, life.config))
    assert [(r.error, r.state) for r in results] == [
        (ErrorCode.NONE, PartitionState(1, 0, (1, 2), (1,), 1)),
        (ErrorCode.UNKNOWN_TOPIC_ID, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (ErrorCode.NONE, PartitionState(1, 0, (1, 2), (1, 2), 0)),
        (ErrorCode.INVALID_REQUEST, None),
        (ErrorCode.INVALID_REQUEST, None),
    ]
    assert life.image.topics["a"].partitions[0] == results[0].state
