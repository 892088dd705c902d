"""Records of transactions: verification, fencing, and what read_committed consumers see."""

import asyncio

import pytest

from tidelog.api.produce import PARTITIONS_PER_STEP
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_producers import TopicRequest
from tidelog.wire.messages.produce import PartitionProduceData, TopicProduceData
from tidelog.wire.records import Record, encode_batch
from transaction_harness import PRODUCE_V1, PRODUCE_V2, Producer, Stage, run

V1_VERSIONS = range(3, 12)


@pytest.mark.parametrize("version", V1_VERSIONS)
def test_version_1_must_name_the_partition_first(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        refused = await stage.produce(producer, b"early", version=version)
        assert refused == (ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE)
        assert stage.partition().log.log_end_offset == 0
        await stage.add(producer, 0)
        assert await stage.produce(producer, b"in time", version=version) == 0
        assert await stage.produce(producer, b"next", sequence=1, version=version) == 0
        assert await stage.produce(producer, b"next", sequence=1, version=version) == 0, "a repeated batch"
        assert stage.partition().log.log_end_offset == 2
        refused = await stage.produce(producer.next, b"v", version=version)
        assert refused == ErrorCode.INVALID_PRODUCER_EPOCH

    run(scenario)


def test_version_1_without_verification() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v", version=PRODUCE_V1) == 0
        assert (await stage.describe()).transaction_state == "Empty"

    run(scenario, transaction_partition_verification_enable="false")


def test_version_2_adds_the_partition() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"a") == 0
        assert await stage.produce(producer, b"b", index=2) == 0
        state = await stage.describe()
        assert (state.transaction_state, state.topics[0].partitions) == ("Ongoing", [0, 2])
        unknown = Producer(99_999, 0)
        for asked, code in (
            (stage.produce(producer.next, b"v", index=1), ErrorCode.INVALID_PRODUCER_EPOCH),
            (stage.produce(unknown, b"v", index=1), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (stage.produce(producer, b"v", index=1, tx="nobody's"), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (stage.produce(producer, b"v", index=1, tx=None), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            (stage.produce(producer, b"v", index=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (stage.produce(producer, b"v", sequence=1, transactional=False), ErrorCode.INVALID_TXN_STATE),
        ):
            assert await asked == code
        assert stage.partition(index=1).log.log_end_offset == 0

    run(scenario)


@pytest.mark.parametrize("version", [PRODUCE_V1, PRODUCE_V2])
def test_the_first_batch_in_a_partition(version: int) -> None:
    """With version 2, its sequence must be 0: otherwise another batch of the transaction is still on its way."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        if version == PRODUCE_V1:
            await stage.add(producer, 0)
        code = await stage.produce(producer, b"a", sequence=3, version=version)
        assert code == (0 if version == PRODUCE_V1 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    run(scenario)


@pytest.mark.parametrize("acks", [1, -1])
def test_batches_behind_the_first_one_keep_their_order(acks: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        values = [b"%d" % number for number in range(5)]
        sent = [
            await stage.post_produce(producer, value, sequence=number, acks=acks) for number, value in enumerate(values)
        ]
        codes = [(await each).responses[0].partition_responses[0].error_code for each in sent]
        assert codes == [0] * 5
        await stage.finish(producer, commit=True)
        assert await stage.values() == values
        assert stage.broker.services.partitions.get("t", 0).unverified._waiting == {}

    run(scenario)


def test_the_next_transaction_begins_while_markers_are_written() -> None:
    """The client sends the first batch as soon as EndTxn is answered."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for number in range(10):
            assert await stage.produce(producer, b"%d" % number) == 0
            response = await stage.end(producer, commit=True)
            producer = Producer(response.producer_id, response.producer_epoch)
        await stage.until_state("CompleteCommit")
        assert await stage.values() == [b"%d" % number for number in range(10)]

    run(scenario)


def test_only_committed_records_are_read_with_read_committed() -> None:
    async def scenario(stage: Stage) -> None:
        one, two = await stage.producer(), await stage.producer("two")
        assert await stage.produce(one, b"1") == 0
        assert await stage.produce(two, b"2", tx="two") == 0
        assert await stage.values() == []
        assert await stage.values(committed=False) == [b"1", b"2"]
        assert await stage.end_offset(committed=True) == 0
        assert await stage.end_offset(committed=False) == 2
        await stage.finish(two, commit=True, tx="two")
        assert await stage.values() == [], "the older transaction is still open"
        following = await stage.finish(one, commit=False)
        assert await stage.values() == [b"2"]
        assert await stage.end_offset(committed=True) == 4
        data = await stage.fetch(committed=True)
        assert [(t.producer_id, t.first_offset) for t in data.aborted_transactions] == [(one.producer_id, 0)]
        assert data.last_stable_offset == data.high_watermark == 4
        assert (await stage.fetch(committed=False)).aborted_transactions is None
        assert (await stage.fetch(committed=True, start=1)).aborted_transactions != []
        assert await stage.produce(following, b"3") == 0
        assert await stage.end_offset(committed=True) == 4

    run(scenario)


def test_producers_with_open_transactions_are_described() -> None:
    async def scenario(stage: Stage) -> None:
        async def described() -> list[tuple[int, int, int, int]]:
            response = await stage.call("DescribeProducers", 0, topics=[TopicRequest("t", [0])])
            return [
                (p.producer_id, p.producer_epoch, p.last_sequence, p.current_txn_start_offset)
                for p in response.topics[0].partitions[0].active_producers
            ]

        producer = await stage.producer()
        assert await stage.produce(producer, b"a", b"b") == 0
        assert await described() == [(producer.producer_id, 0, 1, 0)]
        following = await stage.finish(producer, commit=True)
        assert await described() == [(producer.producer_id, 1, -1, -1)]
        assert await stage.produce(following, b"c") == 0
        assert await described() == [(producer.producer_id, 1, 0, 3)]

    run(scenario)


def test_a_waiting_batch_is_answered_when_the_broker_stops() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        guard = stage.broker.services.transaction_guard
        asked = asyncio.Event()

        async def never(question: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        guard.ensure = never  # type: ignore[method-assign, assignment]
        sent = await stage.post_produce(producer, b"v")
        await asked.wait()
        assert not sent.done()
        await stage.stop()
        with pytest.raises(OSError):
            await sent
        await stage.start()

    run(scenario)


def test_a_request_for_many_partitions_changes_the_transaction_once() -> None:
    """Each change writes all partitions of the transaction. If each partition was added alone, a request of 800 KB for
    10,000 partitions would write 200 MB.
    """

    async def scenario(stage: Stage) -> None:
        count = 200
        assert (await (await stage.client()).create_topic("wide", count)).error_code == 0
        producer = await stage.producer()
        batch = encode_batch(
            [Record(value=b"v")],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        data = [PartitionProduceData(index=index, records=batch) for index in range(count)]
        before = state_log_end(stage)
        response = await stage.call(
            "Produce",
            12,
            transactional_id="tx",
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name="wide", partition_data=data)],
        )
        assert {partition.error_code for topic in response.responses for partition in topic.partition_responses} == {0}
        assert len((await stage.describe()).topics[0].partitions) == count
        assert state_log_end(stage) - before <= count // PARTITIONS_PER_STEP + 1, "a record for each step of a request"
        await stage.finish(producer, commit=True)

    run(scenario)


def state_log_end(stage: Stage) -> int:
    return sum(stage.partition("__transaction_state", index).log.log_end_offset for index in range(2))
