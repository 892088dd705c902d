"""Transactions in the files of a broker: recovery, compaction, DeleteRecords, and a directory without a journal."""

import asyncio

import pytest

from tidelog.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsTopic
from tidelog.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from transaction_harness import Producer, Stage, run


async def write(stage: Stage, producer: Producer, value: bytes, *, commit: bool) -> Producer:
    assert await stage.produce(producer, value) == 0
    return await stage.finish(producer, commit=commit)


async def set_config(stage: Stage, **settings: str) -> None:
    configs = [AlterableConfig(name.replace("_", "."), 0, value) for name, value in settings.items()]
    response = await stage.call(
        "IncrementalAlterConfigs", 1, resources=[AlterConfigsResource(2, "t", configs)], validate_only=False
    )
    assert response.responses[0].error_code == 0, response


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_aborted_transactions_are_known_after_a_restart(how: str) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for number in range(8):
            producer = await write(stage, producer, b"%d" % number, commit=number % 2 == 0)
        assert await stage.produce(producer, b"open") == 0
        before = await stage.fetch(committed=True)
        assert len(before.aborted_transactions) == 4
        await getattr(stage, how)()
        after = await stage.fetch(committed=True)
        assert after.aborted_transactions == before.aborted_transactions
        assert after.last_stable_offset == before.last_stable_offset == 16
        assert await stage.values() == [b"0", b"2", b"4", b"6"]

    run(scenario)


def test_a_fetch_names_the_aborted_transactions_of_its_batches_only() -> None:
    async def scenario(stage: Stage) -> None:
        await set_config(stage, segment_bytes=str(1 << 20), index_interval_bytes="100")
        producer = await stage.producer()
        starts = []
        for _ in range(30):
            starts.append(stage.partition().log.log_end_offset)
            producer = await write(stage, producer, b"v" * 100, commit=False)
        log = stage.partition().log
        some = log.read(20, 600, log.log_end_offset)
        named = [aborted.first_offset for aborted in log.aborted_transactions(20, log.log_end_offset, some)]
        assert named[0] == 20
        assert len(named) < 10, "not those behind the batches"
        everything = log.read(0, 1 << 20, log.log_end_offset)
        named = [aborted.first_offset for aborted in log.aborted_transactions(0, log.log_end_offset, everything)]
        assert named == starts
        assert [a.first_offset for a in log.aborted_transactions(31, 33)] == [30, 32]

    run(scenario)


def test_records_of_an_open_transaction_are_deleted() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"a", b"b", b"c") == 0
        requested = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 3)])
        response = await stage.call("DeleteRecords", 2, topics=[requested], timeout_ms=5_000)
        partition = response.topics[0].partitions[0]
        assert (partition.error_code, partition.low_watermark) == (0, 3)
        assert await stage.produce(producer, b"d", sequence=3) == 0
        assert await stage.end_offset(committed=True) == 3, "never below the start of the log"
        await stage.kill()
        assert await stage.end_offset(committed=True) == 3
        await stage.init("other")
        await stage.finish(producer, commit=True)
        data = await stage.fetch(committed=True, start=3)
        assert data.last_stable_offset == 5

    run(scenario, transaction_state_log_num_partitions=1)


def test_compaction_keeps_open_transactions_and_removes_aborted_records() -> None:
    async def scenario(stage: Stage) -> None:
        await set_config(
            stage,
            segment_ms="1000",
            min_cleanable_dirty_ratio="0.01",
            delete_retention_ms="1000",
        )
        producer = await stage.producer()
        for number in range(6):
            producer = await write(stage, producer, b"%d" % number, commit=number % 2 == 0)
        other = await stage.producer("other")
        assert await stage.produce(other, b"open", tx="other") == 0
        await asyncio.sleep(5)
        assert await stage.values() == [b"0", b"2", b"4"]
        await stage.kill()
        assert await stage.values() == [b"0", b"2", b"4"]
        await stage.init("third")
        await stage.finish(other, commit=True, tx="other")
        assert await stage.values() == [b"0", b"2", b"4", b"open"]

    run(scenario, transaction_state_log_num_partitions=1)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_transaction_of_a_directory_that_is_adopted(*, prepared: bool) -> None:
    """The files of a broker are those of Kafka. Without its journal, a directory is adopted as one that Kafka wrote."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        await stage.commit_offset(producer, 5)
        if prepared:

            async def never(request: object) -> None:
                raise OSError("no disk")

            stage.broker._transactions._markers._write_locally = never  # type: ignore[union-attr, assignment]
            assert (await stage.end(producer, commit=True)).error_code == 0
        await stage.stop()
        disk = stage.host.disk
        for name in sorted(disk.list("/data")):
            if name.startswith("metadata.sqlite"):
                disk.remove(f"/data/{name}")
        await stage.start()
        if not prepared:
            await stage.init("other")
            assert await stage.values() == []
            assert await stage.offset() == "UNSTABLE_OFFSET_COMMIT"
            assert (await stage.end(producer, commit=True)).error_code == 0
        await stage.init("other")
        await stage.until_state("CompleteCommit")
        assert await stage.values() == [b"v"]
        assert await stage.offset() == 5

    run(scenario, transaction_state_log_num_partitions=1)
