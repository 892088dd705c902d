"""WriteTxnMarkers v1-2, from administrators and coordinators. The expectations are Kafka 4.3.1's, with one
exception.
"""

import pytest

from tidelog.replication.verification import Verification
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
)
from tidelog.wire.messages.describe_producers import TopicRequest
from tidelog.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic
from transaction_harness import PRODUCE_V1, Producer, Stage, run

VERSIONS = [1, 2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_ends_the_transaction_in_its_partition(version: int, *, commit: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for index in (0, 1):
            assert await stage.produce(producer, b"v", index=index) == 0
        assert await stage.mark(producer, 0, commit=commit, version=version) == [0]
        assert await stage.end_offset(committed=True) == 2
        assert await stage.values() == ([b"v"] if commit else [])
        assert await stage.end_offset(committed=True, index=1) == 0
        assert (await stage.describe()).transaction_state == "Ongoing", "the coordinator does not know of it"
        await stage.finish(producer, commit=True)
        assert await stage.values() == ([b"v"] if commit else [])
        assert await stage.values(index=1) == [b"v"]

    run(scenario)


@pytest.mark.parametrize("version", VERSIONS)
def test_markers_that_are_refused(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        write_as_coordinator(stage, producer._replace(epoch=5), coordinator_epoch=3)
        for asked, codes in (
            (stage.mark(producer, 0, version=version), [ErrorCode.INVALID_PRODUCER_EPOCH]),
            (stage.mark(producer._replace(epoch=-1), 0, version=version), [ErrorCode.UNKNOWN_SERVER_ERROR]),
            (stage.mark(Producer(-1, 0), 0, version=version), [ErrorCode.UNKNOWN_SERVER_ERROR]),
            (
                stage.mark(producer._replace(epoch=6), 0, coordinator_epoch=2, version=version),
                [ErrorCode.TRANSACTION_COORDINATOR_FENCED],
            ),
            (stage.mark(producer, 7, -1, 1, version=version), [3, 3, 0]),
            (stage.mark(producer, 0, topic="none", version=version), [3]),
            (stage.mark(Producer(99_999, 0), 2, version=version), [0]),
        ):
            assert await asked == codes
        assert await stage.end_offset(committed=True) == 2

    run(scenario)


def write_as_coordinator(stage: Stage, producer: Producer, coordinator_epoch: int) -> None:
    """Abort the producer's transaction in partition 0, as a coordinator that other brokers do not know yet."""
    stage.partition().append_batch(marker_batch(*producer, coordinator_epoch, is_commit=False, timestamp=0))


def test_an_invented_coordinator_epoch_is_refused() -> None:
    """Kafka accepts it. Then the real coordinator's markers are refused, and the partition's next transaction of this
    producer stays open for ever.
    """

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        for epoch in (1, 77, (1 << 31) - 1):
            assert await stage.mark(producer, 0, 1, coordinator_epoch=epoch) == [ErrorCode.INVALID_REQUEST] * 2
        producer = await stage.finish(producer, commit=True)
        assert await stage.values() == [b"v"]
        # An administrator may name the epoch of an earlier marker, even if the coordinators have lower epochs.
        assert await stage.produce(producer, b"w") == 0
        stage.partition().log.producers.entries[producer.producer_id].coordinator_epoch = 77
        assert await stage.mark(producer.next, 0, coordinator_epoch=78) == [ErrorCode.INVALID_REQUEST]
        assert await stage.mark(producer.next, 0, coordinator_epoch=77, commit=True) == [0]
        assert await stage.values() == [b"v", b"w"]

    run(scenario)


def test_a_marker_without_any_coordinator() -> None:
    """`kafka-transactions abort` names epoch 0 if the partition has no earlier marker of the producer."""

    async def scenario(stage: Stage) -> None:
        assert not stage.broker.services.metadata.image.topics.keys() & {"__transaction_state"}
        assert await stage.mark(Producer(7, 0), 0, coordinator_epoch=0) == [0]
        assert await stage.mark(Producer(7, 0), 0, coordinator_epoch=1) == [ErrorCode.INVALID_REQUEST]

    run(scenario)


def test_a_marker_of_version_2_has_a_higher_epoch_than_the_records() -> None:
    """KIP-1228: a delayed marker of the last transaction has the epoch of the present records."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        assert await stage.mark(producer, 0, transaction_version=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await stage.end_offset(committed=True) == 0
        for _ in range(2):  # the second one is a repeated request
            assert await stage.mark(producer.next, 0, transaction_version=2) == [0]
        assert await stage.end_offset(committed=True) == 3
        assert await stage.mark(producer, 0, transaction_version=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_in_a_partition_of_groups_ends_the_pending_offsets(*, commit: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await stage.commit_offset(producer, 5)
        (index,) = (await stage.describe()).topics[0].partitions
        assert await stage.offset() == "UNSTABLE_OFFSET_COMMIT"
        assert await stage.mark(producer, index, topic="__consumer_offsets", commit=commit) == [0]
        assert await stage.offset() == (5 if commit else -1)
        await stage.kill()
        assert await stage.offset() == (5 if commit else -1)
        assert await stage.mark(producer, 9, topic="__consumer_offsets") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    run(scenario)


@pytest.mark.parametrize("error", [NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress])
def test_a_marker_for_groups_that_are_not_loaded_can_be_sent_again(error: type[ApiError]) -> None:
    """Kafka's tools repeat it after NOT_LEADER_OR_FOLLOWER, and give up after an error of coordinators."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await stage.commit_offset(producer, 5)
        (index,) = (await stage.describe()).topics[0].partitions
        services = stage.broker.services

        def refuse(*args: object, **options: object) -> None:
            raise error

        services.groups.end_transaction, end = refuse, services.groups.end_transaction  # type: ignore[method-assign]
        assert await stage.mark(producer, index, topic="__consumer_offsets") == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        services.groups.end_transaction = end  # type: ignore[method-assign]
        assert await stage.mark(producer, index, topic="__consumer_offsets") == [0]

    run(scenario)


def test_only_a_marker_that_is_written_ends_the_verifications_of_version_1() -> None:
    """A late marker of the coordinator before must not disturb the producer's next transaction."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        write_as_coordinator(stage, producer, coordinator_epoch=3)
        verification = Verification(stage.partition(), producer.producer_id, producer.epoch)
        fenced = await stage.mark(producer, 0, commit=True, coordinator_epoch=2)
        assert fenced == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        verification.check()
        assert await stage.mark(producer, 0, commit=True, coordinator_epoch=3) == [0]
        with pytest.raises(ApiError, match="ended"):
            verification.check()
        verification.end()

    run(scenario)


def test_several_markers() -> None:
    async def scenario(stage: Stage) -> None:
        markers = []
        for tx in ("a", "b"):
            producer = await stage.producer(tx)
            assert await stage.produce(producer, tx.encode(), tx=tx) == 0
            topics = [WritableTxnMarkerTopic("t", [0]), WritableTxnMarkerTopic("none", [0])]
            markers.append(WritableTxnMarker(producer.producer_id, 0, tx == "a", topics, 0))
        response = await stage.call("WriteTxnMarkers", 2, markers=markers)
        assert [marker.producer_id for marker in response.markers] == [marker.producer_id for marker in markers]
        for marker in response.markers:
            assert [(t.name, [p.error_code for p in t.partitions]) for t in marker.topics] == [
                ("t", [0]),
                ("none", [3]),
            ]
        assert await stage.values() == [b"a"]
        assert (await stage.call("WriteTxnMarkers", 1, markers=[])).markers == []

    run(scenario)


def test_a_partition_that_is_named_twice_gets_one_marker() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        assert await stage.mark(producer, 0, 7, 0, 7) == [0, 3]
        assert stage.partition().log.log_end_offset == 2

    run(scenario)


def test_the_markers_of_a_producer_have_one_result() -> None:
    """For a partition that several markers name, it is the last one's. A marker without partitions has no result."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        own, foreign = producer.producer_id, 99_999
        markers = [
            WritableTxnMarker(own, 3, True, [WritableTxnMarkerTopic("t", [0]), WritableTxnMarkerTopic("none", [0])], 0),
            WritableTxnMarker(foreign, 0, True, [WritableTxnMarkerTopic("t", [0])], 0),
            WritableTxnMarker(424_242, 0, True, [WritableTxnMarkerTopic("t", [])], 0),
            WritableTxnMarker(
                own, 2, False, [WritableTxnMarkerTopic("t", [0, 1]), WritableTxnMarkerTopic("t", [1])], 0
            ),
        ]
        response = await stage.call("WriteTxnMarkers", 2, markers=markers)
        assert [
            (result.producer_id, topic.name, [(p.partition_index, p.error_code) for p in topic.partitions])
            for result in response.markers
            for topic in result.topics
        ] == [
            (own, "t", [(0, ErrorCode.INVALID_PRODUCER_EPOCH), (1, ErrorCode.NONE)]),
            (own, "none", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
            (foreign, "t", [(0, ErrorCode.NONE)]),
        ]
        assert stage.partition().log.log_end_offset == 2

    run(scenario)


def test_an_administrator_ends_a_hanging_transaction() -> None:
    """As `kafka-transactions abort` does: with the epochs that DescribeProducers returns."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        # Without verification a client can write records of a transaction that its coordinator does not know.
        assert await stage.produce(producer, b"hanging", version=PRODUCE_V1) == 0
        response = await stage.call("DescribeProducers", 0, topics=[TopicRequest("t", [0])])
        (state,) = response.topics[0].partitions[0].active_producers
        assert (state.current_txn_start_offset, state.coordinator_epoch) == (0, -1)
        assert (await stage.describe()).transaction_state == "Empty"
        named = Producer(state.producer_id, state.producer_epoch)
        assert await stage.mark(named, 0, coordinator_epoch=state.coordinator_epoch, version=1) == [0]
        assert await stage.end_offset(committed=True) == 2
        assert await stage.values() == []

    run(scenario, transaction_partition_verification_enable="false")
