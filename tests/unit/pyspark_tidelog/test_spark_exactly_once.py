"""The exactly-once sink: tasks, speculative tasks and drivers that die at every request, with a broker.

The environment variable SPARK_EXACTLY_ONCE_BOOTSTRAP (HOST:PORT) names another broker, for example of Apache Kafka.
Some cases need its settings to be those of the fixture `bootstrap`.
"""

import os
import re
import uuid
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("pyspark")

from exactly_once_harness.query import Killed, LoadingClient, MortalClient, Query
from exactly_once_harness.transactions import time_out
from pyspark_tidelog.errors import WriteError
from pyspark_tidelog.exactly_once import driver
from pyspark_tidelog.exactly_once.decision import EARLIER_RANGES_MAX, Decision, State, decode, encode, group_of
from pyspark_tidelog.exactly_once.task import TransactionalIds
from tidelog.client import transactional_writes
from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.errors import BrokenProtocol, GaveUp
from tidelog.client.transactional_writes import CommittedOffset, ProducerFenced, TransactionalProducer
from tidelog.client.transactions import Transaction, TransactionFilter
from tidelog.model.ids import TopicPartition
from tidelog.testing import Broker
from tidelog.wire.errors import ApiError, ErrorCode, OffsetMetadataTooLarge

ONE, TWO = [["a", "b"], [], ["c"]], [["d"], ["e"], ["f"]]
"""The rows of the tasks of two micro-batches."""
REQUESTS_MAX = 40
"""Upper bound on the requests of a driver or a task for one micro-batch, so that a test cannot run for ever."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if other := os.environ.get("SPARK_EXACTLY_ONCE_BOOTSTRAP"):
        yield other
        return
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
    decision = query.decision()
    assert (decision.batch, decision.tasks, decision.state) == (1, 3, State.FINISHED)
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


@pytest.mark.parametrize("is_same_worker", [False, True])
@pytest.mark.parametrize("after_sending", [False, True])
def test_a_driver_is_killed_at_every_request_and_the_next_number_is_written(
    query: Query, after_sending: bool, is_same_worker: bool
) -> None:
    """The interrupted micro-batch is written as a whole or not at all. To repeat it later writes nothing, and is an
    error if it was not written.
    """
    expected = []
    written = []
    for dies_at in range(REQUESTS_MAX):
        rows, next_rows = ([[f"{dies_at}-{value}" for value in task] for task in each] for each in (ONE, TWO))
        query.new_worker()
        results = query.run_tasks(2 * dies_at, rows)
        client = MortalClient(query.bootstrap, dies_at, after_sending=after_sending)
        try:
            query.commit(2 * dies_at, results, client)
        except Killed:
            client.close()
            is_killed = True
        else:
            is_killed = False
        if not is_same_worker:
            query.new_worker()
        query.write(2 * dies_at + 1, next_rows)
        visible = query.committed()
        written.append(set(values(rows)) <= set(visible))
        expected += values(next_rows, rows if written[-1] else [])
        assert visible == sorted(expected)
        query.new_worker()
        if written[-1]:
            query.write(2 * dies_at, rows)
        else:
            with pytest.raises(WriteError, match=f"its 3 rows are not in the topic: batch {2 * dies_at + 1} was writ"):
                query.write(2 * dies_at, rows)
            query.write(2 * dies_at, [[], []])
        assert query.committed() == sorted(expected)
        if not is_killed:
            break
    else:
        pytest.fail("the driver never came to its end")
    assert written == sorted(written)  # as soon as the decision is stored, nothing is lost
    assert {False, True} == set(written)


def test_a_complete_batch_is_repeated_while_tasks_of_the_next_one_write(query: Query) -> None:
    """The next tasks run in the same worker, so they use the transactional ids of the complete batch."""
    query.write(0, ONE)
    results = query.run_tasks(1, TWO)
    query.write(0, ONE)
    query.abort(0, query.run_tasks(0, ONE))
    query.commit(1, results)
    assert query.committed() == values(ONE, TWO)
    query.write(0, ONE)
    assert query.committed() == values(ONE, TWO)


def test_a_number_that_was_left_out_is_refused_when_it_comes_late(query: Query) -> None:
    query.write(3, ONE)
    late = query.run_tasks(4, [["late"], []])
    query.new_worker()
    query.write(5, TWO)
    message = r"batch 4 of query \S+ is not written, and its 1 rows are not in the topic.* with a batch number above 5"
    with pytest.raises(WriteError, match=message):
        query.commit(4, late)
    query.abort(4, late)
    for number in (0, 4):
        with pytest.raises(WriteError, match=f"batch {number} .* is not written"):
            query.write(number, [["late"]])
    query.write(3, ONE)
    query.write(4, [[], []])
    assert query.committed() == values(ONE, TWO)


def test_only_the_last_ranges_of_numbers_are_remembered() -> None:
    decision = Decision(0)
    for number in range(1, 7):
        decision = decision.next(number, 1, ())
    assert (decision.earlier, decision.forgotten_below) == ((range(6),), 0)
    for number in range(8, 8 + 2 * EARLIER_RANGES_MAX, 2):
        decision = decision.next(number, 1, ())
    assert len(decision.earlier) == EARLIER_RANGES_MAX
    assert decision.forgotten_below == 0
    assert [number for number in range(12) if decision.was_skipped(number)] == [7, 9, 11]
    decision = decision.next(100, 1, ()).next(101, 1, ())
    assert decision.earlier[-1] == range(100, 101)
    assert decision.forgotten_below == 9
    assert [number for number in range(14) if decision.was_skipped(number)] == [9, 11, 13]
    assert decode("q", encode("q", decision, 64)) == decision
    revoked = decision._replace(state=State.PARTIAL)
    assert revoked.next(102, 1, ()).was_skipped(101)
    assert decode("q", encode("q", revoked, 4096)) == revoked


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_decision_is_revoked_only_if_its_transactions_are_proved_to_be_aborted(
    query: Query, is_committed: bool
) -> None:
    """Another program calls InitProducerId for the transactional id, before or after the transaction is committed. Then
    the coordinator's state is the same in both cases.
    """
    producer, *_ = decide_and_die(query, 0, ONE)
    with Client(query.bootstrap) as client:
        if is_committed:
            assert isinstance(client.end_transactions([producer], commit=True)[producer], TransactionalProducer)
        client.fence(producer.transactional_id, 60_000)
    query.new_worker()
    for number, rows in ((0, ONE), (1, TWO)):
        results = query.run_tasks(number, rows)
        message = "it is unknown whether 1 of the 2 transactions of batch 0 .* PRODUCER_FENCED.* Compare the topic"
        with pytest.raises(WriteError, match=message):
            query.commit(number, results)
    with pytest.raises(WriteError, match=message):
        query.abort(1, results)
    assert query.decision().state is State.DECIDED
    assert query.committed() == (values(ONE) if is_committed else ["c"])


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch", "code", "is_proof"),
    [
        ("CompleteAbort", 7, 3, ErrorCode.PRODUCER_FENCED, True),
        ("PrepareAbort", 7, 4, ErrorCode.PRODUCER_FENCED, True),
        ("CompleteAbort", 7, 5, ErrorCode.PRODUCER_FENCED, False),
        ("CompleteAbort", 8, 4, ErrorCode.PRODUCER_FENCED, False),
        ("CompleteAbort", 8, 0, ErrorCode.INVALID_TXN_STATE, True),
        ("CompleteCommit", 7, 4, ErrorCode.INVALID_TXN_STATE, False),
        ("Ongoing", 7, 3, ErrorCode.INVALID_TXN_STATE, False),
        ("Empty", 7, 4, ErrorCode.PRODUCER_FENCED, False),
    ],
)
def test_what_proves_an_abort(state: str, producer_id: int, epoch: int, code: ErrorCode, is_proof: bool) -> None:
    described = Transaction("a", 1, producer_id, epoch, state, 60_000, None, [])
    assert driver._is_aborted(described, TransactionalProducer("a", 7, 3, 2), ApiError("", code)) == is_proof
    unknown = ApiError("", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert not driver._is_aborted(unknown, TransactionalProducer("a", 7, 3, 2), ApiError("", code))


def test_a_check_that_is_refused_does_not_count_as_an_abort(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    results = query.run_tasks(0, ONE)
    for code in (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
        is_gone = code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

        def refused(client: Client, names: list[str], **_: object) -> dict[str, ApiError]:
            return dict.fromkeys(names, ApiError("refused", code))  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(Client, "describe_transactions", refused)
            with pytest.raises(WriteError if is_gone else ApiError, match="2 of its 2" if is_gone else "^refused$"):
                query.commit(0, results)
    query.commit(0, results)
    assert query.committed() == values(ONE)


def test_an_error_that_proves_nothing_revokes_nothing(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    decide_and_die(query, 0, ONE)
    errors = [GaveUp("no time left"), BrokenProtocol("nonsense"), ApiError("what", ErrorCode.UNKNOWN_SERVER_ERROR)]
    for error in errors:

        def failing(client: Client, producers: Sequence[TransactionalProducer], **_: object) -> object:
            if isinstance(error, GaveUp):  # noqa: B023
                raise error  # noqa: B023
            return dict.fromkeys(producers, error)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(Client, "end_transactions", failing)
            with pytest.raises((WriteError, BrokenProtocol, ApiError), match=str(error)):
                query.commit(0, query.run_tasks(0, ONE))
        assert query.decision().state is State.DECIDED
    query.write(1, TWO)
    assert query.committed() == values(ONE, TWO)


def test_a_leftover_task_that_still_runs_is_fenced(query: Query, version: int) -> None:
    """Nobody would end a transaction that it began after the abort."""
    leftover = query.run_task(0, 0, ["x"]).transaction
    assert leftover
    query.new_worker()
    query.write(0, ONE)
    with Client(query.bootstrap) as client, pytest.raises(ProducerFenced):
        if version == 1:
            client.add_partitions(leftover.producer, [TopicPartition(query.topic, 1)])
        else:
            offsets = {TopicPartition("__consumer_offsets", 1): CommittedOffset(1, "")}
            client.commit_in_transaction(leftover.producer, "another-group", offsets)
    assert query.committed() == values(ONE)


def test_to_abort_a_leftover_does_not_fence_a_newer_run(query: Query) -> None:
    old = query.run_task(0, 0, ["x"]).transaction
    assert old
    with Client(query.bootstrap) as client:
        client.end_transactions([old.producer], commit=False)
    query.write(0, [["a"]])
    new = query.run_task(1, 0, ["b"])
    assert new.transaction
    assert new.transaction.producer.transactional_id == old.producer.transactional_id
    with Client(query.bootstrap) as client:
        [failure] = client.abort_leftovers([old.producer]).values()
    assert isinstance(failure, ProducerFenced)
    query.commit(1, [new])
    assert query.committed() == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "logged"),
    [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1),
        (ErrorCode.PRODUCER_FENCED, 0),
        (ErrorCode.INVALID_TXN_STATE, 0),
    ],
)
def test_an_abort_that_fails_is_logged(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: ErrorCode, logged: int
) -> None:
    """Unless the transaction has already ended."""
    leftover = query.run_task(0, 0, ["x"]).transaction
    assert leftover
    query.new_worker()
    failed = {leftover.producer: ApiError("refused", code)}
    monkeypatch.setattr(Client, "abort_leftovers", lambda *_: failed)
    query.write(0, ONE)
    name = leftover.producer.transactional_id
    assert caplog.messages == [f"transaction {name!r} remains open until its timeout: refused"] * logged


def test_the_driver_waits_for_a_coordinator_that_restarts(query: Query) -> None:
    results = query.run_tasks(0, ONE)
    client = LoadingClient(query.bootstrap, failures=12, default_api_timeout_ms=30_000)
    query.commit(0, results, client)
    assert client.described > 12
    assert query.committed() == values(ONE)
    results = query.run_tasks(1, TWO)
    client = LoadingClient(query.bootstrap, failures=10_000, default_api_timeout_ms=500)
    message = "batch 1 .* it is not known whether its 3 transactions are still open: no success within 500 ms.* raise"
    with pytest.raises(WriteError, match=message):
        query.commit(1, results, client)
    query.commit(1, results)
    assert query.committed() == values(ONE, TWO)


def test_revocation_waits_for_the_state_of_a_coordinator_that_restarts(query: Query) -> None:
    producer, *_ = decide_and_die(query, 0, ONE)
    time_out(query.bootstrap, [producer])
    query.new_worker()
    results = query.run_tasks(0, ONE)
    with pytest.raises(WriteError, match=r"the states of the transactions of batch 0 .* cannot be read"):
        query.commit(0, results, LoadingClient(query.bootstrap, failures=10_000, default_api_timeout_ms=500))
    with pytest.raises(WriteError, match=r"1 of the 2 transactions .* were aborted after the decision"):
        query.commit(0, results, LoadingClient(query.bootstrap, failures=12, default_api_timeout_ms=30_000))
    query.abort(0, results)
    query.write(0, ONE)
    assert query.committed() == values(ONE)


@pytest.mark.parametrize(("option", "timeout_ms"), [(None, 60_000), (61_000, 60_000), (5_000, 5_000)])
def test_the_decision_has_the_shorter_timeout(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, option: int | None, timeout_ms: int
) -> None:
    """A broker may accept no longer one than the user's, which the tasks' transactions have."""
    options = {"kafka__transaction__timeout__ms": option} if option else {}
    query = Query(bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch, **options)
    query.write(0, ONE)
    with Client(query.bootstrap) as client:
        state = client.describe_transactions([group_of(query.name)])[group_of(query.name)]
    assert isinstance(state, Transaction)
    assert state.timeout_ms == timeout_ms


@pytest.mark.parametrize(
    ("call", "number", "problem"),
    [
        ("init_producer", 1, "older drivers with transactional id '{group}' cannot be fenced"),
        ("offsets_with_metadata", 1, "the last decision cannot be read from group '{group}'"),
        ("describe_transactions", 1, "it is not known whether its 2 transactions are still open"),
        ("commit_in_transaction", 1, "no broker confirms the decision about batch 1 in group '{group}'"),
        (
            "end_transactions",
            1,
            "batch 0 of query {query} is decided, but its 2 transactions cannot be committed",
        ),
        ("end_transactions", 2, "no broker confirms the decision about batch 1 in group '{group}'"),
        (
            "end_transactions",
            3,
            "batch 1 of query {query} is decided, but its 2 transactions cannot be committed",
        ),
    ],
)
def test_an_error_names_what_the_driver_waited_for(
    query: Query, monkeypatch: pytest.MonkeyPatch, call: str, number: int, problem: str
) -> None:
    decide_and_die(query, 0, ONE)
    results = query.run_tasks(1, ONE)
    method = getattr(Client, call)
    calls = 0

    def giving_up(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            raise GaveUp("no success within 7 ms")
        return method(*arguments, **options)

    problem = problem.format(query=query.name, group=group_of(query.name))
    message = f"^batch 1 of query {query.name}: {re.escape(problem)}: no success within 7 ms; .*raise option kafka.def"
    with monkeypatch.context() as patched:
        patched.setattr(Client, call, giving_up)
        with pytest.raises(WriteError, match=message):
            query.commit(1, results)
    query.commit(1, results)
    assert query.committed() == values(ONE, ONE)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("offsets_with_metadata", "the last decision cannot be read from group"),
        ("init_producer", "transactional id 'tidelog-spark-.*' is not ready for a transaction"),
    ],
)
def test_an_error_names_what_a_task_waited_for(
    query: Query, monkeypatch: pytest.MonkeyPatch, call: str, problem: str
) -> None:
    def giving_up(*arguments: object, **options: object) -> object:
        raise GaveUp("no success within 7 ms")

    monkeypatch.setattr(Client, call, giving_up)
    with pytest.raises(WriteError, match=f"batch 0 .*: {problem}.*: no success within 7 ms; .*raise option kafka.def"):
        query.run_task(0, 0, ["a"])


def test_a_batch_that_cannot_be_marked_as_finished_is_written(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.new_worker()
    leftover = query.run_task(0, 0, ["x"]).transaction
    assert leftover
    results = query.run_tasks(0, ONE)
    store = driver._Decider.store

    def fenced_by_a_newer_driver(self: driver._Decider, decision: Decision) -> None:
        if decision.state is State.FINISHED:
            with Client(query.bootstrap) as client:
                client.init_producer(group_of(query.name), 60_000)
        store(self, decision)

    with monkeypatch.context() as patched:
        patched.setattr(driver._Decider, "store", fenced_by_a_newer_driver)
        query.commit(0, results)
    decision = query.decision()
    assert decision.state is State.DECIDED
    with Client(query.bootstrap) as client:  # it has aborted nothing, because the newer driver may decide otherwise
        state = client.describe_transactions([leftover.producer.transactional_id])
        assert [each.state for each in state.values() if isinstance(each, Transaction)] == ["Ongoing"]
    later = query.run_tasks(1, TWO)
    used = {each.producer.transactional_id for each in decision.transactions}
    assert not used & {each.transaction.producer.transactional_id for each in later if each.transaction}
    query.commit(1, later)
    assert query.decision().state is State.FINISHED
    assert query.committed() == values(ONE, TWO)


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


def test_a_transaction_times_out_before_the_decision(query: Query) -> None:
    results = query.run_tasks(0, ONE)
    transaction = results[0].transaction
    assert transaction
    time_out(query.bootstrap, [transaction.producer])
    with pytest.raises(WriteError, match=r"1 of its 2 transactions were aborted .* kafka.transaction.timeout.ms"):
        query.commit(0, results)
    query.abort(0, results)
    assert query.committed() == []
    query.write(0, ONE)
    assert query.committed() == values(ONE)


def decide_and_die(query: Query, batch: int, rows: list[list[str]]) -> list[TransactionalProducer]:
    """A driver decides about the micro-batch, and dies before it commits a transaction. Return the transactions."""
    results = query.run_tasks(batch, rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver._Decider, "finish", Killing(after_calls=1))
        with pytest.raises(Killed):
            query.commit(batch, results)
    assert query.decision().state is State.DECIDED
    return [each.transaction.producer for each in results if each.transaction]


class Killing:
    """A method that does nothing for some calls, and then kills the process."""

    def __init__(self, after_calls: int) -> None:
        self._remaining = after_calls

    def __call__(self) -> None:
        if self._remaining == 0:
            raise Killed
        self._remaining -= 1


def lose_after_decision(query: Query, lost_tasks: list[int]) -> None:
    """Micro-batch 0 with the rows ONE is decided. Then the transactions of these tasks time out."""
    transactions = dict(zip((0, 2), decide_and_die(query, 0, ONE), strict=True))
    time_out(query.bootstrap, [transactions[task] for task in lost_tasks])
    results = query.run_tasks(0, ONE)
    with pytest.raises(WriteError, match=f"{len(lost_tasks)} of the 2 transactions .* repeat batch 0 with the same"):
        query.commit(0, results)
    query.abort(0, results)


@pytest.mark.parametrize("lost_tasks", [[0], [2], [0, 2]])
def test_transactions_time_out_after_the_decision(query: Query, lost_tasks: list[int]) -> None:
    """The tasks whose rows are lost write them again. The others do not."""
    lose_after_decision(query, lost_tasks)
    query.new_worker()
    if len(lost_tasks) < 2:
        query.new_worker()
        with pytest.raises(WriteError, match=r"batch 1 .* is not written, because batch 0 .* was written in part"):
            query.write(1, TWO)
        assert query.committed() == values([ONE[2 - lost_tasks[0]]])
        with pytest.raises(WriteError, match="had 3 tasks when it was written in part, and now it has 4"):
            query.write(0, [*ONE, []])
        written = 2 - lost_tasks[0]
        with pytest.raises(WriteError, match=f"task {written} of .* has 0 rows now, but had {len(ONE[written])}"):
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
    decide_and_die(query, 0, ONE)

    def forgotten(
        client: Client, producers: Sequence[TransactionalProducer], *, commit: bool
    ) -> dict[TransactionalProducer, ApiError]:
        assert commit or not producers
        return dict.fromkeys(producers, ApiError("unknown id", ErrorCode.INVALID_PRODUCER_ID_MAPPING))

    with monkeypatch.context() as patched:
        patched.setattr(Client, "end_transactions", forgotten)
        with pytest.raises(WriteError, match=r"2 of the 2 .*transactional.id.expiration.ms has passed.* Compare"):
            query.write(0, ONE)
    query.write(0, ONE)
    assert query.committed() == values(ONE)
    with monkeypatch.context() as patched:  # the states of a finished decision are not needed any more
        patched.setattr(Client, "end_transactions", forgotten)
        query.write(0, ONE)


def test_a_decision_may_need_many_small_chunks(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker of this test accepts metadata of 100 bytes."""
    rows = [[str(number)] for number in range(20)]
    query.write(0, rows)
    assert query.committed() == values(rows)
    with Client(query.bootstrap) as client:
        offsets = client.offsets_with_metadata(group_of(query.name), require_stable=True)
        assert len(offsets) > 5
        assert {each.offset for each in offsets.values()} == {1}
        assert len(query.decision().transactions) == 20
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

    def acquire(batch: int, decided: int, state: State = State.FINISHED) -> str:
        return ids.acquire("cluster", query.identity(batch), Decision(decided, state=state))

    first, second = acquire(3, -1), acquire(3, -1)
    assert first != second
    assert ids.acquire("other cluster", query.identity(4), Decision(3, state=State.FINISHED)) != second
    unfinished = [acquire(4, 3, State.DECIDED), acquire(4, 2), acquire(4, 3, State.PARTIAL)]
    assert len({first, second, *unfinished}) == 5
    assert [acquire(4, 3), acquire(4, 3)] == [first, second]
    assert acquire(4, 3) not in (first, second, *unfinished)
    monkeypatch.setattr("os.getpid", lambda: -7)
    assert acquire(6, 5) not in (first, second)


def test_a_group_that_something_else_uses_is_refused(query: Query) -> None:
    with Client(query.bootstrap) as client:
        client.topics(["elsewhere"], create=True)
        client.commit(group_of(query.name), {TopicPartition("__consumer_offsets", 0): 7})
    with pytest.raises(WriteError, match="does not hold a decision of the exactly-once sink"):
        query.run_task(0, 0, ["a"])


def test_a_timeout_that_the_broker_refuses_names_the_option(
    bootstrap: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch, kafka__transaction__timeout__ms=900_001)
    with pytest.raises(ApiError, match=r"below 900001: lower the option kafka.transaction.timeout.ms"):
        query.run_task(0, 0, ["a"])


def test_a_coordinator_aborts_an_open_transaction_after_the_option(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch, kafka__transaction__timeout__ms=1)
    results = query.run_tasks(0, [["a"]])
    query.committed(limit_s=60)  # no transaction is open any more
    with pytest.raises(WriteError, match="1 of its 1 transactions were aborted before the driver could decide"):
        query.commit(0, results)
