"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn in each version, against answers of Kafka 4.3.1."""

from typing import Any

import pytest

from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from transaction_harness import Producer, Stage, run

UNKNOWN = Producer(99_999, 0)


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_the_id_of_its_transactional_id(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        first = await stage.producer()
        again = await stage.init(version=version)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, first.producer_id, 1)
        other = await stage.init("another", version=version)
        assert (other.error_code, other.producer_epoch) == (0, 0)
        assert other.producer_id != first.producer_id

    run(scenario)


@pytest.mark.parametrize("version", range(6))
def test_producers_that_are_refused(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.producer()
        for transactional_id, timeout_ms, code in (
            ("", 60_000, ErrorCode.INVALID_REQUEST),
            ("tx", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("tx", -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("tx", 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ):
            response = await stage.init(transactional_id, timeout_ms=timeout_ms, version=version)
            assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)

    run(scenario)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_says_who_it_was(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for _ in range(2):  # the second request is a repeated one
            response = await stage.init(expected=producer, version=version)
            assert (response.error_code, response.producer_epoch) == (0, 1)
        fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        for expected in ((producer.producer_id, 5), UNKNOWN):
            assert (await stage.init(expected=expected, version=version)).error_code == fenced
        for halves in ((-1, 3), (producer.producer_id, -1)):
            assert (await stage.init(expected=halves, version=version)).error_code == ErrorCode.INVALID_REQUEST

    run(scenario)


@pytest.mark.parametrize("version", range(6))
def test_partitions_are_added(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.add(producer, 0, 2, version=version) == 0
        assert await stage.add(producer, 0, 1, version=version) == 0
        state = await stage.describe()
        assert state.transaction_state == "Ongoing"
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [("t", [0, 1, 2])]

    run(scenario)


@pytest.mark.parametrize("version", range(6))
def test_partitions_that_are_refused(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        for asked, code in (
            (stage.add(producer.next, 0, version=version), fenced),
            (stage.add(UNKNOWN, 0, version=version), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (stage.add(producer, 0, tx="nobody's", version=version), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (stage.add(producer, 0, tx="", version=version), ErrorCode.INVALID_REQUEST),
            (stage.add(producer, 7, version=version), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (stage.add(producer, -1, version=version), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (stage.add(producer, 0, topic="none", version=version), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (stage.add(producer, 0, 7, version=version), ErrorCode.OPERATION_NOT_ATTEMPTED),
        ):
            assert await asked == code
        assert (await stage.describe()).transaction_state == "Empty"

    run(scenario)


@pytest.mark.parametrize("version", range(6))
def test_partitions_that_are_named_twice(version: int) -> None:
    """As in Kafka, only a response with refused partitions, and that of a verification, names each one once."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()

        async def ask(topics: list[tuple[str, list[int]]], *, verify: bool = False) -> list[tuple[str, list[Any]]]:
            entries = [AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics]
            if version >= 4:
                of_tx = AddPartitionsToTxnTransaction("tx", *producer, verify, entries)
                (result,) = (
                    await stage.call("AddPartitionsToTxn", version, transactions=[of_tx])
                ).results_by_transaction
                results = result.topic_results
            else:
                response = await stage.call(
                    "AddPartitionsToTxn",
                    version,
                    v3_and_below_transactional_id="tx",
                    v3_and_below_producer_id=producer.producer_id,
                    v3_and_below_producer_epoch=producer.epoch,
                    v3_and_below_topics=entries,
                )
                results = response.results_by_topic_v3_and_below
            return [
                (t.name, [(p.partition_index, p.partition_error_code) for p in t.results_by_partition]) for t in results
            ]

        assert await ask([("t", [0, 0]), ("t", [1, 0])]) == [("t", [(0, 0), (0, 0)]), ("t", [(1, 0), (0, 0)])]
        assert (await stage.describe()).topics[0].partitions == [0, 1]
        assert await ask([("t", [7, 0, 7]), ("none", [0]), ("none", [0]), ("t", [0])]) == [
            ("t", [(7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, ErrorCode.OPERATION_NOT_ATTEMPTED)]),
            ("none", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        ]
        if version >= 4:
            assert await ask([("t", [0, 0]), ("t", [0])], verify=True) == [("t", [(0, 0)])]

    run(scenario)


@pytest.mark.parametrize("version", range(5))
def test_groups_are_added(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()

        async def add(producer: Producer, tx: str = "tx") -> int:
            response = await stage.call(
                "AddOffsetsToTxn",
                version,
                transactional_id=tx,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id="g",
            )
            code: int = response.error_code
            return code

        assert await add(producer) == 0
        state = await stage.describe()
        assert [(topic.topic, len(topic.partitions)) for topic in state.topics] == [("__consumer_offsets", 1)]
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert await add(producer.next) == fenced
        assert await add(UNKNOWN) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await add(producer, "") == ErrorCode.INVALID_REQUEST

    run(scenario)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_ends_of_version_1(version: int, *, commit: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await stage.end(producer, commit=commit, version=version)).error_code == ErrorCode.INVALID_TXN_STATE
        await stage.add(producer, 0, 1)
        assert (await stage.end(producer.next, commit=commit, version=version)).error_code == fenced
        assert (await stage.end(UNKNOWN, commit=commit, version=version)).error_code == (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
        await stage.finish(producer, commit=commit, version=version)
        assert (await stage.end(producer, commit=commit, version=version)).error_code == 0, "a repeated request"
        response = await stage.end(producer, commit=not commit, version=version)
        assert response.error_code == ErrorCode.INVALID_TXN_STATE
        for index in (0, 1):
            assert stage.partition(index=index).log.log_end_offset == 1, "one marker"
        await stage.add(producer, 2)
        await stage.finish(producer, commit=not commit, version=version)

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_ends_of_version_2_increment_the_epoch(*, commit: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for _ in range(3):
            assert await stage.produce(producer, b"v") == 0
            following = await stage.finish(producer, commit=commit)
            assert following == producer.next
            repeated = await stage.end(producer, commit=commit)
            assert (repeated.error_code, repeated.producer_epoch) == (0, following.epoch)
            assert (await stage.end(producer, commit=not commit)).error_code == ErrorCode.INVALID_TXN_STATE
            producer = following
        assert (await stage.end(producer, commit=True)).error_code == ErrorCode.INVALID_TXN_STATE
        assert await stage.finish(producer, commit=False) == producer.next, "an abort without a transaction"

    run(scenario)


def test_a_second_producer_fences_the_first() -> None:
    async def scenario(stage: Stage) -> None:
        first = await stage.producer()
        assert await stage.produce(first, b"first") == 0
        second = await stage.producer()
        assert second == first._replace(epoch=2), "one epoch for the abort, one for the producer"
        assert await stage.produce(first, b"late", sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await stage.end(first, commit=True)).error_code == ErrorCode.PRODUCER_FENCED
        assert await stage.produce(second, b"second") == 0
        await stage.finish(second, commit=True)
        assert await stage.values() == [b"second"]

    run(scenario)


def test_verification_of_brokers() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        other = await stage.producer("other")
        await stage.add(producer, 0)
        entries = [
            AddPartitionsToTxnTransaction(tx, *of, True, [AddPartitionsToTxnTopic("t", indexes)])
            for tx, of, indexes in (("tx", producer, [0, 1]), ("other", other, [0]), ("tx", producer.next, [0]))
        ]
        response = await stage.call("AddPartitionsToTxn", 5, transactions=entries)
        codes = [
            [p.partition_error_code for topic in result.topic_results for p in topic.results_by_partition]
            for result in response.results_by_transaction
        ]
        assert codes == [
            [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE],
            [ErrorCode.TRANSACTION_ABORTABLE],
            [ErrorCode.PRODUCER_FENCED],
        ]
        assert (await stage.describe("other")).transaction_state == "Empty", "a verification begins nothing"

    run(scenario)
