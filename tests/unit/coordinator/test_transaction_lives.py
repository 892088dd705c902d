"""Transactions over time: timeouts, expired ids, used-up epochs, limits, markers that are refused, and restarts in each
state.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.coordinator.decision import Decision
from tidelog.coordinator.transaction import core as core_module
from tidelog.coordinator.transaction import transitions
from tidelog.coordinator.transaction.records import EPOCH_MAX, Transaction, TransactionRecord
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower
from tidelog.wire.messages.delete_topics import DeleteTopicState
from transaction_harness import END_V1, END_V2, Producer, Stage, run


def coordinator(stage: Stage, tx: str = "tx") -> Any:
    return stage.broker.services.transactions.host.coordinator(tx)


def state_of(stage: Stage, tx: str = "tx") -> Transaction:
    state: Transaction = coordinator(stage, tx).core.find(tx)[0]
    return state


def store(stage: Stage, tx: str, **changes: object) -> None:
    """Append a record with a changed state, as if many earlier requests had led there."""
    of = coordinator(stage, tx)
    decision = Decision()
    decision.records.append(TransactionRecord(tx, state_of(stage, tx)._replace(**changes)))  # type: ignore[arg-type]
    of.apply(decision)


@pytest.mark.parametrize("version", [END_V1, END_V2])
def test_a_transaction_that_takes_too_long_is_aborted(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        slow, quick = await stage.producer(timeout_ms=5_000), await stage.producer("quick", timeout_ms=60_000)
        assert await stage.produce(slow, b"slow") == 0
        assert await stage.produce(quick, b"quick", tx="quick") == 0
        await asyncio.sleep(3)
        assert (await stage.describe()).transaction_state == "Ongoing"
        await stage.until_state("CompleteAbort", seconds=10)
        response = await stage.end(slow, commit=True, version=version)
        fenced = ErrorCode.INVALID_TXN_STATE if version == END_V2 else ErrorCode.PRODUCER_FENCED
        assert response.error_code == fenced
        assert await stage.produce(slow, b"late", sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        await stage.finish(quick, commit=True, tx="quick")
        assert await stage.values() == [b"quick"]
        again = await stage.init(expected=slow)
        assert (again.error_code, again.producer_epoch) == (0, 1), "its producer may continue"

    run(scenario)


def test_ids_that_nobody_uses_are_forgotten() -> None:
    async def scenario(stage: Stage) -> None:
        idle = await stage.producer("idle")
        producer = await stage.producer("busy")
        assert await stage.produce(producer, b"v", tx="busy") == 0
        await asyncio.sleep(45)
        assert (await stage.describe("idle")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await stage.describe("busy")).transaction_state == "Ongoing"
        assert await stage.add(idle, 0, tx="idle") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        await stage.kill()
        assert (await stage.init("busy")).error_code == 0, "loaded"
        assert (await stage.describe("idle")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await stage.init("idle")).producer_id > idle.producer_id

    run(
        scenario,
        transactional_id_expiration_ms=20_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=10_000,
    )


@pytest.mark.parametrize("version", [END_V1, END_V2])
def test_epochs_that_are_used_up(version: int) -> None:
    """The last epoch is reserved: with it, the coordinator can fence the producer that has the epoch before."""

    async def scenario(stage: Stage) -> None:
        first = await stage.producer()
        store(stage, "tx", producer_epoch=EPOCH_MAX - 1)
        last = first._replace(epoch=EPOCH_MAX - 1)
        assert await stage.produce(last, b"v") == 0
        following = await stage.finish(last, commit=True, version=version)
        if version == END_V2:
            assert following.epoch == 0
            assert following.producer_id > first.producer_id
            repeated = await stage.end(last, commit=True)
            assert (repeated.error_code, repeated.producer_id) == (0, following.producer_id)
        else:
            assert following == last
            response = await stage.init(expected=last)
            following = Producer(response.producer_id, response.producer_epoch)
            assert following.epoch == 0
            assert following.producer_id > first.producer_id
        assert await stage.produce(following, b"w") == 0
        await stage.finish(following, commit=True)
        assert await stage.values() == [b"v", b"w"]
        # With END_V2 the marker has the reserved epoch: the log refuses the older one before it asks the coordinator.
        is_in_log = version == END_V2
        expected = ErrorCode.INVALID_PRODUCER_EPOCH if is_in_log else ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await stage.produce(last, b"late", sequence=1) == expected

    run(scenario)


@pytest.mark.parametrize(
    "failure", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR]
)
def test_epochs_that_are_used_up_while_no_controller_allocates_producer_ids(failure: ErrorCode) -> None:
    """Clients give up after these errors. So they get one after which they repeat EndTxn and InitProducerId."""

    async def scenario(stage: Stage) -> None:
        first = await stage.producer()
        store(stage, "tx", producer_epoch=EPOCH_MAX - 1)
        last = first._replace(epoch=EPOCH_MAX - 1)
        assert await stage.produce(last, b"v") == 0
        producer_ids = stage.broker.services.producer_ids
        producer_ids._block = iter(range(0))
        controller: Any = producer_ids._controller

        async def refuse(request: object) -> object:
            raise ApiError("no", failure)

        producer_ids._controller = SimpleNamespace(allocate_producer_ids=refuse)  # type: ignore[assignment]
        response = await stage.end(last, commit=True)
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        producer_ids._controller = controller
        following = await stage.finish(last, commit=True)
        assert following.epoch == 0
        assert await stage.values() == [b"v"]

    run(scenario)


def test_a_producer_with_the_last_epoch_is_fenced() -> None:
    async def scenario(stage: Stage) -> None:
        first = await stage.producer()
        store(stage, "tx", producer_epoch=EPOCH_MAX - 1)
        last = first._replace(epoch=EPOCH_MAX - 1)
        assert await stage.produce(last, b"v") == 0
        second = await stage.producer()
        assert second.producer_id > first.producer_id
        assert second.epoch == 0
        assert (await stage.end(last, commit=True)).error_code == ErrorCode.PRODUCER_FENCED
        assert await stage.values() == []

    run(scenario)


def test_too_many_ids_and_partitions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.add(producer, 0) == 0
        with monkeypatch.context() as patch:
            patch.setattr(core_module, "TRANSACTIONAL_IDS_MAX", 1)
            assert (await stage.init("more")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with monkeypatch.context() as patch:
            patch.setattr(core_module, "BYTES_MAX", coordinator(stage).core._bytes)
            assert (await stage.init("more")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await stage.add(producer, 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert (await stage.init()).error_code == 0, "a known id continues, and its partitions are released"
        with monkeypatch.context() as patch:
            patch.setattr(transitions, "PARTITIONS_MAX", 2)
            again = await stage.producer()
            assert await stage.add(again, 0, 1) == 0
            assert await stage.add(again, 2) == ErrorCode.INVALID_REQUEST

    run(scenario, transaction_state_log_num_partitions=1)


def test_the_size_that_a_coordinator_counts_is_that_of_its_entries() -> None:
    async def scenario(stage: Stage) -> None:
        for tx in ("a", "bb"):
            producer = await stage.producer(tx)
            await stage.add(producer, 0, 1, tx=tx)
        await stage.finish(producer, commit=True, tx="bb")

        def sizes() -> tuple[int, int]:
            core = coordinator(stage).core
            return core._bytes, sum(core_module.size_of(tx, entry.state) for tx, entry in core._entries.items())

        counted, expected = sizes()
        assert counted == expected > 0
        await stage.kill()
        await stage.init("a")
        counted, expected = sizes()
        assert counted == expected > 0

    run(scenario, transaction_state_log_num_partitions=1)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_an_ongoing_transaction_survives_a_restart(how: str) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"before") == 0
        await getattr(stage, how)()
        assert await stage.values() == []
        assert await stage.end_offset(committed=True) == 0
        await stage.init("other")  # both coordinators are loaded then
        assert await stage.produce(producer, b"after", sequence=1) == 0
        assert await stage.produce(producer, b"elsewhere", index=1) == 0
        await stage.finish(producer, commit=True)
        assert await stage.values() == [b"before", b"after"]
        assert await stage.values(index=1) == [b"elsewhere"]

    run(scenario, transaction_state_log_num_partitions=1)


def refuse_markers(stage: Stage, error: Exception) -> list[object]:
    """Let each marker fail, until the broker is started again. Return the list of the requests for markers."""
    requests: list[object] = []

    async def refuse(request: object) -> Any:
        requests.append(request)
        raise error

    stage.broker._transactions._markers._write_locally = refuse  # type: ignore[union-attr]
    return requests


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("version", [END_V1, END_V2])
def test_a_decided_end_is_finished_after_a_restart(how: str, version: int, *, commit: bool) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for index in range(3):
            assert await stage.produce(producer, b"v", index=index) == 0
        requests = refuse_markers(stage, OSError("no disk"))
        assert (await stage.end(producer, commit=commit, version=version)).error_code == 0
        prepared = "PrepareCommit" if commit else "PrepareAbort"
        state = await stage.describe()
        assert (state.transaction_state, state.topics[0].partitions) == (prepared, [0, 1, 2])
        await asyncio.sleep(1)
        assert len(requests) > 5, "markers are tried again"
        assert (
            await stage.call("InitProducerId", 5, transactional_id="tx", transaction_timeout_ms=60_000)
        ).error_code == (ErrorCode.CONCURRENT_TRANSACTIONS)
        await getattr(stage, how)()
        await stage.init("other")
        await stage.until_state("CompleteCommit" if commit else "CompleteAbort")
        for index in range(3):
            assert await stage.values(index=index) == ([b"v"] if commit else [])
            assert await stage.end_offset(committed=True, index=index) == 2, "one record and one marker"

    run(scenario, transaction_state_log_num_partitions=1)


@pytest.mark.parametrize("seed", range(6))
def test_the_power_fails_while_a_transaction_ends(seed: int) -> None:
    """The transaction is committed in all partitions or in none, whatever was lost."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for index in range(3):
            assert await stage.produce(producer, b"v", index=index) == 0
        ending = await stage.post(
            "EndTxn",
            5,
            transactional_id="tx",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=True,
        )
        await asyncio.sleep(0.004 * seed)
        is_answered = ending.done() and not ending.exception() and ending.result().error_code == 0
        ending.add_done_callback(lambda done: done.exception())  # the answer may be lost
        stage.host.cut_power()
        stage._client = None
        await stage.start()
        response = await stage.init()
        assert response.error_code == 0
        read = [await stage.values(index=index) for index in range(3)]
        assert read in ([[b"v"]] * 3, [[]] * 3), read
        if is_answered:
            assert read == [[b"v"]] * 3

    run(scenario, seed=seed, durability="fsync", transaction_state_log_num_partitions=1)


def test_a_deleted_topic_does_not_delay_the_end() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        assert await stage.produce(producer, b"v", topic="u") == 0
        await stage.call("DeleteTopics", 6, topics=[DeleteTopicState("u")], timeout_ms=10_000)
        await stage.finish(producer, commit=True)
        assert await stage.values() == [b"v"]

    run(scenario, topics=("t", "u"))


@pytest.mark.parametrize("version", [END_V1, END_V2])
def test_a_partition_that_knows_a_higher_epoch_does_not_hold_the_transaction(version: int) -> None:
    """An administrator has written a marker with a higher epoch. The coordinator's own marker is refused there."""

    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        for index in (0, 1):
            assert await stage.produce(producer, b"v", index=index) == 0
        assert await stage.mark(producer._replace(epoch=9), 0) == [0]
        assert await stage.end_offset(committed=True) == 2
        await stage.finish(producer, commit=True, version=version)
        assert await stage.values() == []
        assert await stage.values(index=1) == [b"v"]

    run(scenario)


def test_a_coordinator_with_a_higher_epoch_does_not_hold_the_transaction() -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        stage.partition().log.producers.entries[producer.producer_id].coordinator_epoch = 77
        await stage.finish(producer, commit=True)

    run(scenario)


def test_a_marker_is_repeated_until_the_partition_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        producer = await stage.producer()
        assert await stage.produce(producer, b"v") == 0
        append, refusals = Partition.append_batch, []

        def refuse(partition: Partition, batch: bytearray, *epoch: int) -> Any:
            if partition.topic == "t" and len(refusals) < 3:
                refusals.append(1)
                raise NotLeaderOrFollower("not now")
            return append(partition, batch, *epoch)

        monkeypatch.setattr(Partition, "append_batch", refuse)
        await stage.finish(producer, commit=True)
        assert len(refusals) == 3
        assert await stage.values() == [b"v"]

    run(scenario)


def test_listing_and_filters() -> None:
    async def scenario(stage: Stage) -> None:
        one, two = await stage.producer("one"), await stage.producer("two")
        await stage.add(two, 0, tx="two")
        await asyncio.sleep(10)

        async def listed(version: int = 2, **filters: Any) -> list[str]:
            response = await stage.call("ListTransactions", version, **filters)
            assert response.error_code == 0
            return sorted(state.transactional_id for state in response.transaction_states)

        for version in range(3):
            assert await listed(version) == ["one", "two"]
            assert await listed(version, state_filters=["Ongoing"]) == ["two"]
            assert await listed(version, state_filters=["PrepareEpochFence"]) == []
            assert await listed(version, producer_id_filters=[one.producer_id]) == ["one"]
            assert await listed(version, producer_id_filters=[one.producer_id], state_filters=["Ongoing"]) == []
        assert await listed(duration_filter=5_000, state_filters=["Ongoing"]) == ["two"]
        assert await listed(duration_filter=50_000, state_filters=["Ongoing"]) == []
        assert await listed(transactional_id_pattern="t.*") == ["two"]
        response = await stage.call("ListTransactions", 2, transactional_id_pattern="(")
        assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        response = await stage.call("ListTransactions", 2, state_filters=["Odd", "Empty"])
        assert response.unknown_state_filters == ["Odd"]

    run(scenario)
