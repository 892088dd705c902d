"""Offsets in transactions: before and after the end, deleted, after a restart. The expectations are Kafka 4.3.1's."""

import asyncio

import pytest

from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_topics import DeleteTopicState
from tidelog.wire.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tidelog.wire.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from transaction_harness import Producer, Stage, run

UNSTABLE = "UNSTABLE_OFFSET_COMMIT"


async def add_group(stage: Stage, producer: Producer, group: str = "g") -> None:
    response = await stage.call(
        "AddOffsetsToTxn",
        4,
        transactional_id="tx",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    assert response.error_code == 0


async def commit_outside(stage: Stage, offset: int) -> None:
    await stage.offset()  # the group has a coordinator then
    response = await stage.call(
        "OffsetCommit",
        8,
        group_id="g",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(0, offset)])],
    )
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_when_the_transaction_is_committed(version: int, *, commit: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        early = await stage.commit_offset(producer, 1, version=version)
        if version < 5:
            assert early == (ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE)
            await add_group(stage, producer)
        else:
            assert early == 0, "the coordinator of the group adds its partition"
        assert await stage.commit_offset(producer, 5, version=version) == 0
        assert await stage.offset() == UNSTABLE
        assert await stage.offset(stable=False) == -1
        assert await stage.offset(index=1) == -1
        await stage.finish(producer, commit=commit, version=5 if version == 5 else 4)
        assert await stage.offset() == (5 if commit else -1)

    run(scenario)


@pytest.mark.parametrize("version", range(6))
def test_commits_that_are_refused(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await stage.commit_offset(producer, 1)
        for asked, code in (
            (stage.commit_offset(producer.next, 9, version=version), ErrorCode.INVALID_PRODUCER_EPOCH),
            (stage.commit_offset(Producer(99_999, 0), 9, version=version), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (stage.commit_offset(producer, 9, tx="nobody's", version=version), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (stage.commit_offset(producer, 9, tx="", version=version), ErrorCode.INVALID_REQUEST),
            (stage.commit_offset(producer, 9, group="", version=version), ErrorCode.INVALID_GROUP_ID),
            (stage.commit_offset(producer, 9, index=7, version=version), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (stage.commit_offset(producer, 9, topic="none", version=version), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            assert await asked == code
        if version >= 3:
            code = await stage.commit_offset(producer, 9, version=version, generation=3, member="m")
            assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
        await stage.finish(producer, commit=True)
        assert await stage.offset() == 1

    run(scenario)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_epoch_of_a_member_of_a_consumer_group(version: int) -> None:
    """A stale epoch is ILLEGAL_GENERATION, as in a classic group: clients do not expect STALE_MEMBER_EPOCH here."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await stage.commit_offset(producer, 1)
        joined = await stage.call(
            "ConsumerGroupHeartbeat",
            1,
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert joined.error_code == 0
        for member, generation, code in (
            ("m", joined.member_epoch, ErrorCode.NONE),
            ("m", joined.member_epoch + 7, ErrorCode.ILLEGAL_GENERATION),
            ("m", 0, ErrorCode.ILLEGAL_GENERATION),
            ("m", -1, ErrorCode.ILLEGAL_GENERATION),
            ("nobody", joined.member_epoch, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            options = {"version": version, "generation": generation, "member": member}
            assert await stage.commit_offset(producer, 5, **options) == code, (member, generation)

    run(scenario)


@pytest.mark.parametrize("ends_well", [True, False])
def test_the_later_record_of_an_offset_counts(*, ends_well: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await stage.commit_offset(producer, 5)
        await commit_outside(stage, 11)
        assert await stage.offset() == UNSTABLE
        assert await stage.offset(stable=False) == 11
        await stage.finish(producer, commit=ends_well)
        assert await stage.offset() == 11
        await stage.kill()
        assert await stage.offset() == 11

    run(scenario)


def test_pending_offsets_after_a_restart() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await commit_outside(stage, 3)
        await stage.commit_offset(producer, 5)
        for again in (stage.restart, stage.kill):
            await again()
            assert await stage.offset() == UNSTABLE
            assert await stage.offset(stable=False) == 3
        following = await stage.finish(producer, commit=True)
        assert await stage.offset() == 5
        await stage.commit_offset(following, 8)
        await stage.finish(following, commit=False)
        await stage.kill()
        assert await stage.offset() == 5

    run(scenario)


def test_offsets_are_deleted_in_an_open_transaction() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for index in (0, 1):
            await stage.commit_offset(producer, 5, index=index)
        response = await stage.call(
            "OffsetDelete",
            0,
            group_id="g",
            topics=[OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])],
        )
        assert response.error_code == 0
        assert await stage.offset() == -1
        assert await stage.offset(index=1) == UNSTABLE
        await stage.finish(producer, commit=True)
        assert await stage.offset() == -1
        assert await stage.offset(index=1) == 5
        await stage.kill()
        assert await stage.offset() == -1
        assert await stage.offset(index=1) == 5

    run(scenario)


def test_a_group_is_deleted_in_an_open_transaction() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        await stage.commit_offset(producer, 5)
        response = await stage.call("DeleteGroups", 2, groups_names=["g"])
        assert response.results[0].error_code == 0
        assert await stage.offset() == -1
        await stage.finish(producer, commit=True)
        assert await stage.offset() == -1
        await stage.kill()
        assert await stage.offset() == -1

    run(scenario)


def test_a_topic_is_deleted_in_an_open_transaction() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v", topic="u") == 0
        await stage.commit_offset(producer, 5, topic="u")
        await stage.commit_offset(producer, 6)
        await stage.call("DeleteTopics", 6, topics=[DeleteTopicState("u")], timeout_ms=10_000)
        await stage.finish(producer, commit=True)
        assert await stage.offset() == 6
        durable = stage.broker.services.groups.host.coordinator("g").core.durable
        assert durable.by_id["g"].committed_offset("u", 0) is None
        assert not durable.pending

    run(scenario, topics=("t", "u"))


def test_a_group_with_pending_offsets_does_not_expire() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer(timeout_ms=900_000)
        await commit_outside(stage, 3)
        await stage.commit_offset(producer, 5)
        await asyncio.sleep(300)
        assert await stage.offset() == UNSTABLE
        await stage.finish(producer, commit=True)
        assert await stage.offset() == 5
        await asyncio.sleep(300)
        assert await stage.offset() == -1

    run(scenario, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
