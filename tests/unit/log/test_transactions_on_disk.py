"""Transactions in the files of a broker: recovery, compaction, DeleteRecords, and a directory without a journal."""

import asyncio
import errno

import pytest

from log_harness import NOW_MS, LogOnDisk, make_batch
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.wire.batches import BatchHeader
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import StorageError
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


NOT_WRITTEN = [
    ("create", "*.txnindex", errno.ENOSPC),
    ("create", "*.txnindex", errno.EMFILE),
    ("write", "*.txnindex", errno.ENOSPC),
    ("write", "*.log", errno.ENOSPC),
]


def records_of(producer_id: int, offset: int) -> bytearray:
    return make_batch(
        b"v", base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )


def marker_of(producer_id: int, offset: int, *, is_commit: bool = False) -> bytearray:
    batch = marker_batch(producer_id, 0, 0, is_commit=is_commit, timestamp=NOW_MS)
    BatchHeader(batch).assign(base_offset=offset, leader_epoch=0)
    return batch


@pytest.mark.parametrize("as_follower", [False, True])
@pytest.mark.parametrize(("operation", "files", "error"), NOT_WRITTEN)
def test_an_abort_marker_that_a_full_disk_refuses_is_written_later(
    *, operation: str, files: str, error: int, as_follower: bool
) -> None:
    """Neither the log nor the index of aborted transactions has a part of it, and the log stays online."""
    on = LogOnDisk()

    def append(batch: bytearray) -> None:
        if as_follower:
            on.log.append_as_follower(memoryview(batch))
        else:
            on.log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS, limits=False)

    append(records_of(7, 0))
    append(records_of(8, 1))
    on.disk.fail(operation, files, error)
    with pytest.raises(StorageError, match="nothing appended"):
        append(marker_of(7, 2))
    assert on.log.failure is None
    assert (on.log.log_end_offset, on.log.last_stable_offset) == (2, 0)
    assert on.log.aborted_transactions(0, 10) == []
    append(marker_of(8, 2))
    append(marker_of(7, 3, is_commit=True))
    for _ in range(2):
        assert on.log.last_stable_offset == 4
        assert [aborted.producer_id for aborted in on.log.aborted_transactions(0, 10)] == [8]
        on.flush()
        on.restart()


def test_a_crash_between_the_index_entry_and_the_abort_marker_leaves_neither() -> None:
    on = LogOnDisk()
    batch = records_of(7, 0)
    on.log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS)
    on.log._segments.active.transactions.append(AbortedTransaction(7, 0, 1, 2))  # the first half of an append
    on.disk = on.disk.kill()
    on.open(clean=False)
    assert (on.log.log_end_offset, on.log.last_stable_offset) == (1, 0)
    assert on.log.aborted_transactions(0, 10) == []


def test_an_abort_on_a_full_disk_is_completed_when_there_is_space() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"a") == 0
        stage.host.disk.fail("create", "*.txnindex", errno.ENOSPC, times=5)
        await stage.finish(producer, commit=False)
        assert stage.partition().log.failure is None
        assert await stage.values() == []
        assert await stage.end_offset(committed=True) == 2

    run(scenario)


def test_markers_are_repeated_less_and_less_while_the_coordinators_disk_is_full() -> None:
    """The completion of a transaction cannot be appended, and each load of the coordinator writes its markers again."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"a") == 0
        stage.host.disk.fail("write", "*/__transaction_state-*.log", errno.ENOSPC, skip=1, times=100_000)
        assert (await stage.end(producer, commit=True)).error_code == 0
        await asyncio.sleep(60)
        assert 5 <= stage.partition().log.log_end_offset <= 20
        stage.host.disk.repair()
        await stage.until_state("CompleteCommit", seconds=12)
        assert await stage.values() == [b"a"]
        producer = await stage.producer()
        await write(stage, producer, b"b", commit=True)
        assert await stage.values() == [b"a", b"b"]

    run(scenario)


def test_the_index_entry_of_a_marker_that_a_failing_disk_refuses_is_removed_at_the_next_start() -> None:
    """Otherwise the transaction, which is then committed, would count as aborted."""
    on = LogOnDisk()
    on.append_unchecked(records_of(7, 0))
    on.append_unchecked(records_of(8, 1))
    on.append_unchecked(marker_of(8, 2))
    on.restart()
    on.log._segments.active.transactions.append(AbortedTransaction(7, 0, 3, 4))  # nothing of the marker was written
    on.restart()
    assert on.log.last_stable_offset == 0
    on.append_unchecked(marker_of(7, 3, is_commit=True))
    for _ in range(2):
        assert [aborted.producer_id for aborted in on.log.aborted_transactions(0, 10)] == [8]
        on.restart()
