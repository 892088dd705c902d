"""The exactly-once sink: tasks, speculative tasks and drivers that die at every request, with a broker."""

import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

pytest.importorskip("pyspark")

from exactly_once_harness.query import Killed, MortalClient, Query
from pyspark_tidelog.errors import WriteError
from pyspark_tidelog.exactly_once import driver
from pyspark_tidelog.exactly_once.decision import Decision, encode, group_of
from pyspark_tidelog.exactly_once.task import TransactionalIds
from tidelog.client import transactional_writes
from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.errors import GaveUp
from tidelog.client.transactional_writes import ProducerFenced, TransactionalProducer
from tidelog.client.transactions import TransactionFilter
from tidelog.testing import Broker
from tidelog.wire.errors import ApiError, ErrorCode, OffsetMetadataTooLarge

ONE, TWO = [["a", "b"], [], ["c"]], [["d"], ["e"], ["f"]]
"""The rows of the tasks of two micro-batches."""
REQUESTS_MAX = 40
"""Upper bound on the requests of a driver or a task for one micro-batch, so that a test cannot run for ever."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    settings = {"num.partitions": 2, "offset.metadata.max.bytes": 100, "offsets.topic.num.partitions": 12}
    with Broker(settings=settings) as broker:
        yield broker.bootstrap


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The transaction version that producers use."""
    if request.param == 1:

        def old(*_: object) -> Iterator[None]:
            yield from ()
            return 1

        monkeypatch.setattr(transactional_writes, "transaction_version", old)
    return int(request.param)


@pytest.fixture
def query(bootstrap: str, version: int, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch)


def values(*batches: list[list[str]]) -> list[str]:
    return sorted(value for batch in batches for task in batch for value in task)


def test_batches_are_written_once(query: Query, version: int) -> None:
    query.write(0, ONE)
    assert query.committed() == values(ONE)
    query.write(0, ONE)
    query.write(1, TWO)
    query.write(2, [[], []])
    query.write(1, TWO)
    query.write(0, ONE)
    assert query.committed() == values(ONE, TWO)
    with Client(query.bootstrap) as client:
        decision = driver.read_decision(client, query.name)
        assert (decision.batch, decision.tasks) == (1, 3)
        assert [(each.task, each.records, each.producer.version) for each in decision.transactions] == [
            (n, 1, version) for n in range(3)
        ]


def test_nothing_is_visible_before_the_decision(query: Query) -> None:
    results = query.run_tasks(0, ONE)
    with pytest.raises(AssertionError, match="a transaction is open"):
        query.committed(0)
    query.abort(0, results)
    assert query.committed() == []


@pytest.mark.parametrize("after_sending", [False, True])
def test_a_driver_is_killed_at_every_request(query: Query, after_sending: bool) -> None:
    """A new driver runs the micro-batch again, in new workers and with another number of tasks."""
    expected = []
    for dies_at in range(REQUESTS_MAX):
        rows = [[f"{dies_at}-{value}" for value in task] for task in ONE]
        expected += values(rows)
        query.new_worker()
        results = query.run_tasks(dies_at, rows)
        client = MortalClient(query.bootstrap, dies_at, after_sending=after_sending)
        try:
            query.commit(dies_at, results, client)
        except Killed:
            client.close()
        else:
            assert dies_at > 5
            break
        query.new_worker()
        query.write(dies_at, [[value] for value in values(rows)] + [[]])
        assert query.committed() == sorted(expected)
    else:
        pytest.fail("the driver never came to its end")
    assert query.committed() == sorted(expected)


def test_a_task_does_not_wait_for_the_open_decision_of_a_killed_driver(query: Query) -> None:
    query.write(0, ONE)
    with Client(query.bootstrap) as client:
        killed = client.init_producer(group_of(query.name), 60_000)
        offsets = encode(query.name, Decision(1, 3), 100)
        client.commit_in_transaction(killed, group_of(query.name), offsets)
    config = ClientConfig(default_api_timeout_ms=1_000)
    with Client(query.bootstrap, config) as client, pytest.raises(GaveUp, match="UNSTABLE_OFFSET_COMMIT"):
        client.offsets_with_metadata(group_of(query.name), require_stable=True)
    with Client(query.bootstrap, config) as client:
        query.run_task(1, 0, ["x"], client)
    query.write(1, TWO)
    assert query.committed() == values(ONE, TWO)


def test_a_task_is_killed_at_every_request(query: Query) -> None:
    expected = []
    for dies_at in range(REQUESTS_MAX):
        rows = [[f"{dies_at}-a", f"{dies_at}-b"], [f"{dies_at}-c"]]
        expected += values(rows)
        query.new_worker()
        client = MortalClient(query.bootstrap, dies_at, after_sending=True)
        try:
            query.run_task(dies_at, 0, rows[0], client)
        except Killed:
            client.close()
            is_killed = True
        else:
            is_killed = False
        query.new_worker()
        query.write(dies_at, rows)
        assert query.committed() == sorted(expected)
        if not is_killed:
            assert dies_at > 3
            return
    pytest.fail("the task never came to its end")


def test_a_speculative_task_and_a_late_one_change_nothing(query: Query) -> None:
    results = query.run_tasks(0, ONE)
    query.new_worker()
    query.run_task(0, 0, ONE[0])  # speculative; Spark lets only one attempt report its result
    query.commit(0, results)
    assert query.committed() == values(ONE)
    late = query.run_task(0, 0, ONE[0])
    assert (late.is_skipped, late.transaction) == (True, None)
    assert query.committed() == values(ONE)


def test_a_failed_task_leaves_no_transaction_open(query: Query) -> None:
    def rows() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        query.run_task(0, 0, rows())
    assert query.committed() == []


def test_an_old_driver_wakes_up_before_and_after_the_decision(query: Query) -> None:
    old = query.run_tasks(0, ONE)
    query.new_worker()
    query.write(0, ONE)  # the new driver
    query.commit(0, old)
    assert query.committed() == values(ONE)
    old = query.run_tasks(1, TWO)
    query.new_worker()
    new = query.run_tasks(1, TWO)
    query.commit(1, old)
    query.commit(1, new)
    query.abort(1, new)
    query.abort(1, old)
    assert query.committed() == values(ONE, TWO)


def test_of_two_drivers_that_decide_at_the_same_time_one_is_fenced(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = query.run_tasks(0, ONE)
    query.new_worker()
    second = query.run_tasks(0, ONE)
    check_open = driver._check_open

    def second_decides_meanwhile(*arguments: object) -> list[TransactionalProducer]:
        unlisted = check_open(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(driver, "_check_open", check_open)
        query.commit(0, second)
        return unlisted

    monkeypatch.setattr(driver, "_check_open", second_decides_meanwhile)
    with pytest.raises(ProducerFenced, match=f"a newer producer uses transactional id '{group_of(query.name)}'"):
        query.commit(0, first)
    query.abort(0, first)
    query.commit(0, first)
    assert query.committed() == values(ONE)


def timed_out(query: Query, producers: list[TransactionalProducer]) -> None:
    """Abort the transactions as their coordinator does after their timeouts."""
    with Client(query.bootstrap) as client:
        for producer in producers:
            client.fence(producer.transactional_id, 60_000)


def test_a_transaction_times_out_before_the_decision(query: Query) -> None:
    results = query.run_tasks(0, ONE)
    transaction = results[0].transaction
    assert transaction
    timed_out(query, [transaction.producer])
    with pytest.raises(WriteError, match=r"1 of its 2 transactions were aborted .* kafka.transaction.timeout.ms"):
        query.commit(0, results)
    query.abort(0, results)
    assert query.committed() == []
    query.write(0, ONE)
    assert query.committed() == values(ONE)


@pytest.mark.parametrize("lost_tasks", [[0], [2], [0, 2]])
def test_transactions_time_out_after_the_decision(
    query: Query, lost_tasks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks whose rows are lost write them again. The others do not."""
    results = query.run_tasks(0, ONE)
    commit_decision = driver._commit_decision

    def transactions_time_out(*arguments: object) -> None:
        commit_decision(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(driver, "_commit_decision", commit_decision)
        transactions = [results[number].transaction for number in lost_tasks]
        timed_out(query, [each.producer for each in transactions if each])

    monkeypatch.setattr(driver, "_commit_decision", transactions_time_out)
    with pytest.raises(WriteError, match=f"{len(lost_tasks)} of the 2 transactions .* run the query again"):
        query.commit(0, results)
    query.abort(0, results)
    query.new_worker()
    if len(lost_tasks) < 2:
        assert query.committed() == values([ONE[2 - lost_tasks[0]]])
        with pytest.raises(WriteError, match="by 3 tasks, and now it has 4"):
            query.write(0, [*ONE, []])
        written = 2 - lost_tasks[0]
        with pytest.raises(WriteError, match=f"task {written} of .* has 0 rows now, but {len(ONE[written])}"):
            query.run_task(0, written, [])
    query.new_worker()
    query.write(0, ONE)
    query.write(1, TWO)
    assert query.committed() == values(ONE, TWO)


def test_a_decision_whose_transactions_the_brokers_have_forgotten_is_not_guessed(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator forgets an ended transaction after transactional.id.expiration.ms, whether it was committed or
    not.
    """
    query.write(0, ONE)

    def forgotten(
        client: Client, producers: Sequence[TransactionalProducer], *, commit: bool
    ) -> dict[TransactionalProducer, ApiError]:
        assert commit
        return dict.fromkeys(producers, ApiError("unknown id", ErrorCode.INVALID_PRODUCER_ID_MAPPING))

    with monkeypatch.context() as patched:
        patched.setattr(Client, "end_transactions", forgotten)
        with pytest.raises(WriteError, match=r"transactional.id.expiration.ms has passed.* compare the topic"):
            query.write(0, ONE)
    query.write(0, ONE)
    assert query.committed() == values(ONE)


def test_a_decision_may_need_many_small_chunks(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker of this test accepts metadata of 100 bytes."""
    rows = [[str(number)] for number in range(20)]
    query.write(0, rows)
    assert query.committed() == values(rows)
    with Client(query.bootstrap) as client:
        offsets = client.offsets_with_metadata(group_of(query.name), require_stable=True)
        assert len(offsets) > 5
        assert {each.offset for each in offsets.values()} == {1}
        assert len(driver.read_decision(client, query.name).transactions) == 20
    query.write(1, [["x"]])
    monkeypatch.setattr(driver, "CHUNK_BYTES_MIN", 128)
    results = query.run_tasks(2, rows)
    with pytest.raises(OffsetMetadataTooLarge, match=r"raise the broker's offset.metadata.max.bytes"):
        query.commit(2, results)
    query.abort(2, results)
    monkeypatch.undo()
    results = query.run_tasks(2, rows * 2)
    with pytest.raises(WriteError, match="partitions of __consumer_offsets, and there are fewer: write with fewer"):
        query.commit(2, results)
    query.abort(2, results)
    assert query.committed() == [*values(rows, [["x"]])]


def test_the_number_of_transactional_ids_stays_small(query: Query) -> None:
    for batch in range(6):
        query.write(batch, [[f"{batch}-a"], [f"{batch}-b"]])
    with Client(query.bootstrap) as client:
        names = [t.transactional_id for t in client.list_transactions(TransactionFilter()).transactions]
    assert len([name for name in names if name.startswith(group_of(query.name))]) == 3
    assert len(query.committed()) == 12


def test_ids_are_reused_only_for_later_batches_and_never_by_another_process(
    monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    ids = TransactionalIds()
    acquire: Callable[[int], str] = lambda batch: ids.acquire("cluster", query.identity(batch))  # noqa: E731
    first, second = acquire(3), acquire(3)
    assert first != second
    assert ids.acquire("other cluster", query.identity(4)) not in (first, second)[1:]
    assert [acquire(4), acquire(4)] == [first, second]
    assert acquire(4) not in (first, second)
    monkeypatch.setattr("os.getpid", lambda: -7)
    assert acquire(5) not in (first, second)


def test_a_group_that_something_else_uses_is_refused(query: Query) -> None:
    from tidelog.model.ids import TopicPartition

    with Client(query.bootstrap) as client:
        client.topics(["elsewhere"], create=True)
        client.commit(group_of(query.name), {TopicPartition("__consumer_offsets", 0): 7})
    with pytest.raises(WriteError, match="does not hold a decision of the exactly-once sink"):
        query.run_task(0, 0, ["a"])


def test_a_timeout_that_the_broker_refuses_names_the_option(
    bootstrap: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch, kafka__transaction__timeout__ms=900_001)
    with pytest.raises(ApiError, match=r"below 900001: lower option kafka.transaction.timeout.ms"):
        query.run_task(0, 0, ["a"])


def test_a_coordinator_aborts_an_open_transaction_after_the_option(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch, kafka__transaction__timeout__ms=1)
    results = query.run_tasks(0, [["a"]])
    query.committed(limit_s=60)  # no transaction is open any more
    with pytest.raises(WriteError, match="1 of its 1 transactions were aborted before the driver could decide"):
        query.commit(0, results)
