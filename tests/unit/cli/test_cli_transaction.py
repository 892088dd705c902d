"""`tidelog transaction` with a broker, and with a cluster of which parts do not answer."""

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from cli_harness import Answer, AnsweringBroker, answering, tidelog
from process_harness.terminal import on_a_terminal
from tidelog.cli import transactions
from tidelog.cli.transactions import parse_states
from tidelog.client.transactions import Transaction
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tidelog.wire.messages.describe_transactions import DescribeTransactionsResponse, TopicData
from tidelog.wire.messages.describe_transactions import TransactionState as Described
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidelog.wire.messages.list_transactions import ListTransactionsResponse
from tidelog.wire.messages.list_transactions import TransactionState as Listed
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from transaction_harness.raw_producer import RawProducer, hang

Rows = list[list[str]]


def rows(text: str) -> Rows:
    """The cells of a table in a pipe, without its head."""
    return [line.split() for line in text.splitlines()[1:]]


class Stage:
    """A broker with transactions in different states:

    - done: committed, in orders 0 and payments 0;
    - open: open, in orders 0 from offset 2 on (offset 1 is the marker of `done`);
    - idle: initialized, without a transaction;
    - lost: open in orders 1 from offset 0 on, and not known to its coordinator.
    """

    def __init__(self, stack: ExitStack) -> None:
        broker = stack.enter_context(Broker(settings={"transaction.partition.verification.enable": "false"}))
        self.where = ("--bootstrap", broker.bootstrap)
        for topic, partitions in (("orders", "2"), ("payments", "1")):
            self("topic", "create", topic, "--partitions", partitions)
        self.producers = {}
        for name in ("done", "open", "idle"):
            producer = self.producers[name] = stack.enter_context(RawProducer(broker.bootstrap, name))
            producer.initialize()
        self.producers["done"].transaction([("orders", 0, b"a"), ("payments", 0, b"b")])
        assert self.producers["open"].add("orders", 0) == ErrorCode.NONE
        assert self.producers["open"].write("orders", 0, b"c") == ErrorCode.NONE
        self.producers["lost"] = stack.enter_context(hang(broker.bootstrap, "lost", "orders", 1, b"d"))

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        return tidelog(*arguments, *self.where, code=code)

    def id_of(self, name: str) -> str:
        return str(self.producers[name].producer_id)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


@pytest.fixture(scope="module")
def unchanged() -> Iterator[Stage]:
    """A stage for tests that change nothing."""
    with ExitStack() as stack:
        yield Stage(stack)


def test_transactional_ids_are_listed_with_filters(unchanged: Stage) -> None:
    tx = unchanged
    listed = rows(tx("transaction", "list").text)
    assert [row[0] for row in listed] == ["done", "idle", "lost", "open"]
    assert [" ".join(row[1:-2]) for row in listed] == ["complete commit", "empty", "empty", "ongoing"]
    assert [row[-2] for row in listed] == [tx.id_of(row[0]) for row in listed]

    def names(*filters: str) -> list[str]:
        printed: str = tx("transaction", "list", "--names", *filters).text
        return printed.split()

    assert names("--state", "Ongoing") == ["open"]
    assert names("--state", "ongoing", "--state", "complete-commit") == ["done", "open"]
    assert names("--producer-id", tx.id_of("idle"), "--producer-id", tx.id_of("lost")) == ["idle", "lost"]
    assert names("--pattern", "[a-l].*") == ["done", "idle", "lost"]
    assert names("--pattern", "[a-l].*", "--state", "empty") == ["idle", "lost"]
    assert names("--longer-than", "1h") == []
    deadline = time.monotonic() + 30
    while names("--longer-than", "10ms") != ["open"]:
        assert time.monotonic() < deadline
    assert "idle" in names("--longer-than", "10ms", "--state", "empty")
    nothing = tx("transaction", "list", "--longer-than", "1h")
    assert (nothing.text, nothing.errors) == ("", "No transactional id matches the filters.\n")
    [document] = tx("transaction", "list", "--state", "ongoing", "--json").json()
    assert document == {
        "transactional_id": "open",
        "state": "ongoing",
        "producer_id": int(tx.id_of("open")),
        "coordinator": 1,
    }


def test_wrong_filters(unchanged: Stage) -> None:
    for filters, message in (
        (
            ["--state", "running"],
            "--state takes one of empty, ongoing, prepare-commit, prepare-abort, complete-commit,",
        ),
        (["--longer-than", "5"], "--longer-than: '5' is not a duration; examples: 90s, 1h30m, 2 days"),
    ):
        assert message in unchanged("transaction", "list", *filters, code=2).errors
    refused = unchanged("transaction", "list", "--pattern", "(", code=1).errors
    assert refused == "Error: the broker cannot read the regular expression '(' of --pattern\n"


def test_states_in_any_spelling() -> None:
    assert parse_states(["PrepareCommit", "prepare-abort", "PREPARE ABORT", "dead"]) == [
        "PrepareCommit",
        "PrepareAbort",
        "Dead",
    ]


def test_a_list_without_transactional_ids() -> None:
    with Broker() as broker:
        ran = tidelog("transaction", "list", "--bootstrap", broker.bootstrap)
        assert (ran.text, ran.errors.startswith("No transactional ids yet.")) == ("", True)
        assert tidelog("transaction", "list", "--json", "--bootstrap", broker.bootstrap).json() == []


def test_a_transactional_id_is_described(unchanged: Stage) -> None:
    tx = unchanged
    ran = tx("transaction", "describe", "open", "idle")
    opened, _, second = ran.text.partition("\n\n")
    heading, _, table = opened.partition("\n")
    assert heading.startswith(
        f"open  state ongoing  producer id {tx.id_of('open')}  epoch 0  coordinator 1  timeout 1 min"
    )
    assert "open for " in heading
    assert rows(table) == [["orders", "0"]]
    assert second.endswith("timeout 1 min\nNo partitions.\n")
    [document] = tx("transaction", "describe", "open", "--json").json()
    assert 0 <= document.pop("open_for_ms") < 60_000
    assert time.time() * 1000 - 60_000 < document.pop("started_ms") <= time.time() * 1000
    assert document == {
        "transactional_id": "open",
        "state": "ongoing",
        "producer_id": int(tx.id_of("open")),
        "producer_epoch": 0,
        "coordinator": 1,
        "timeout_ms": 60_000,
        "partitions": [{"topic": "orders", "partition": 0}],
    }
    for name in ("idle", "done"):  # for the ended one, the broker still reports its start
        [other] = tx("transaction", "describe", name, "--json").json()
        assert (other["started_ms"], other["open_for_ms"], other["partitions"]) == (None, None, [])
    assert "open for" not in tx("transaction", "describe", "done").text


def test_an_unknown_transactional_id_does_not_hide_the_others(unchanged: Stage) -> None:
    ran = unchanged("transaction", "describe", "opem", "done", "zzz", code=1)
    assert ran.text.startswith("done  state complete commit  ")
    assert "no such transactional id: opem; did you mean open?" in ran.errors
    assert "no such transactional id: zzz; tidelog transaction list shows all" in ran.errors


def test_the_producers_of_a_partition(unchanged: Stage) -> None:
    tx = unchanged
    described = rows(tx("transaction", "describe-producers", "--topic", "orders").text)
    assert [[row[0], row[1], row[2], *row[-2:]] for row in described] == [
        ["orders", "0", tx.id_of("done"), "-", "done"],
        ["orders", "0", tx.id_of("open"), "2", "open"],
        ["orders", "1", tx.id_of("lost"), "0", "lost"],
    ]
    [document] = tx("transaction", "describe-producers", "--topic", "orders:0", "--open", "--json").json()
    assert time.time() * 1000 - 60_000 < document.pop("last_timestamp_ms") <= time.time() * 1000
    assert document == {
        "topic": "orders",
        "partition": 0,
        "producer_id": int(tx.id_of("open")),
        "producer_epoch": 0,
        "last_sequence": 0,
        "coordinator_epoch": -1,
        "start_offset": 2,
        "transactional_id": "open",
    }
    of_broker = tx("transaction", "describe-producers", "--topic", "orders:1", "--broker-id", "1", "--json").json()
    assert [each["producer_id"] for each in of_broker] == [int(tx.id_of("lost"))]
    nothing = tx("transaction", "describe-producers", "--topic", "payments", "--open")
    assert (nothing.text, nothing.errors) == ("", "No transaction is open in payments.\n")


def test_producers_of_what_does_not_exist(unchanged: Stage) -> None:
    producers = ("transaction", "describe-producers")
    assert "Missing option '--topic'" in unchanged(*producers, code=2).errors
    assert "did you mean orders?" in unchanged(*producers, "--topic", "order", code=1).errors
    one = unchanged(*producers, "--topic", "payments:1", code=1).errors
    assert one == "Error: topic payments has 1 partition: there is no partition 1\n"
    ran = unchanged(*producers, "--topic", "orders:0,7,9", "--topic", "order", "--json", code=1)
    assert "there is no partition 7,9" in ran.errors
    assert "did you mean orders?" in ran.errors
    shown = unchanged(*producers, "--topic", "orders:0", "--json").json()
    assert ran.json() == shown != [], "a name that is wrong does not hide the others"
    ran = unchanged("transaction", "find-hanging", "--topic", "orders", "--topic", "order", code=1)
    assert "did you mean orders?" in ran.errors


def test_a_broker_that_does_not_exist_or_has_no_replica(unchanged: Stage) -> None:
    """An empty result would say that nothing is wrong there."""
    for command in (["find-hanging"], ["describe-producers", "--topic", "orders"]):
        missing = unchanged("transaction", *command, "--broker-id", "7", code=1).errors
        assert missing == "Error: there is no broker 7; the cluster has the broker 1\n"
    with half_a_cluster() as where:
        arguments = ("transaction", "describe-producers", "--topic", "near:1", "--broker-id", "1")
        without_replica = tidelog(*arguments, *where, code=1).errors
        assert "broker 1 has no replica of the requested partitions of near" in without_replica


def test_a_hanging_transaction_is_found_and_aborted(stage: Stage) -> None:
    find = ("transaction", "find-hanging", "--max-transaction-timeout", "1ms")
    found = stage(*find)
    [row] = rows(found.text)
    assert [row[0], row[1], row[2], row[3], row[-1]] == ["orders", "1", "0", stage.id_of("lost"), "lost"]
    abort = "tidelog transaction abort --topic orders --partition 1 --start-offset 0"
    assert found.errors == f"To end one: {abort}\n"
    assert [each["transactional_id"] for each in stage(*find, "--json").json()] == ["lost"]
    assert [each["partition"] for each in stage(*find, "--broker-id", "1", "--json").json()] == [1]
    assert stage(*find, "--topic", "orders:0", "--json").json() == []
    not_examined = "2 open transactions with a write in the last 15m were not examined; a shorter"
    assert stage("transaction", "find-hanging").errors == (
        f"No transaction hangs. {not_examined} --max-transaction-timeout examines them, too."
        " tidelog transaction list --state ongoing shows open transactions.\n"
    )
    ended_later = stage("transaction", "find-hanging", "--topic", "orders:0", "--max-transaction-timeout", "1ms").errors
    assert ended_later == (
        "No transaction hangs. 1 open transaction had no write in the last 1ms, but its coordinator will end it."
        " tidelog transaction list --state ongoing shows open transactions.\n"
    )
    assert stage("transaction", "find-hanging", "--topic", "payments").errors == "No transaction hangs.\n"

    assert read_committed(stage, "orders", 1) == []
    refused = stage(*abort.split()[1:], code=2)
    assert "the abort cannot be confirmed, because stdin is not a terminal: add --yes to abort" in refused.errors
    aborted = stage(*abort.split()[1:], "--yes")
    lost_id = stage.id_of("lost")
    assert aborted.text == f"Aborted the transaction in orders-1 that producer {lost_id} began at offset 0.\n"
    assert "No coordinator knows it.\nAn abort marker will be written to this partition only" in aborted.errors
    assert stage(*find, "--json").json() == []
    again = stage(*abort.split()[1:], "--yes", code=1).errors
    assert "no open transaction of orders-1 begins at offset 0: the partition has no open transaction" in again
    stage.producers["done"].transaction([("orders", 1, b"after")])
    assert read_committed(stage, "orders", 1) == ["after"]


def read_committed(stage: Stage, topic: str, partition: int) -> list[str]:
    """The records that a read_committed consumer gets."""
    text: str = stage("consume", topic, "--partition", str(partition), "--from-beginning", "--until-end").text
    return text.split()


def test_an_abort_at_a_terminal(unchanged: Stage) -> None:
    command = [sys.executable, "-m", "tidelog", "transaction", "abort", "open", *unchanged.where]
    with on_a_terminal(command, os.environ, columns=80) as aborting:
        explanation = aborting.expect("The transaction of open(.|\n)*started again.\n")
        assert max(map(len, explanation.splitlines())) <= 80
        aborting.expect("Abort the transaction of open\\? \\[y/N\\]: ")
        os.write(aborting.leader, b"n\n")
        aborting.expect("Nothing was changed.\n")
        assert aborting.end() == (0, "")
    assert unchanged("transaction", "describe", "open", "--json").json()[0]["state"] == "ongoing"


def test_a_description_fits_a_terminal(unchanged: Stage) -> None:
    describe = [sys.executable, "-m", "tidelog", "transaction", "describe", "open", *unchanged.where]
    with on_a_terminal(describe, os.environ, columns=80) as shown:
        heading = shown.expect("open  state ongoing(.|\n)*\n").partition("Topic")[0]
    first, second = heading.splitlines()
    assert first.endswith("  coordinator 1  timeout 1 min")
    assert re.fullmatch(r"  open for \S+ s", second)
    producers = ("transaction", "describe-producers", "--topic", "orders", *unchanged.where)
    with on_a_terminal([sys.executable, "-m", "tidelog", *producers], os.environ, columns=80) as shown:
        code, text = shown.end()
    assert code == 0
    assert [line.split()[-1] for line in text.splitlines() if "ago" in line] == ["done", "open", "lost"]


def test_an_open_transaction_is_aborted_by_its_coordinator(stage: Stage) -> None:
    aborted = stage("transaction", "abort", "open", "--yes")
    assert aborted.text == "Aborted the transaction of open, and fenced its producer.\n"
    for part in ("has records or offsets in: orders 0.", "read_committed consumers skip", "The producer is fenced"):
        assert part in aborted.errors
    assert stage.producers["open"].write("orders", 0, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert stage.producers["open"].end(commit=True) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert read_committed(stage, "orders", 0) == ["a"]
    again = stage("transaction", "abort", "open", "--yes", code=1).errors
    assert again == "Error: transactional id open has no open transaction (state empty)\n"
    assert "no such transactional id: opem" in stage("transaction", "abort", "opem", "--yes", code=1).errors


def test_a_transaction_that_its_coordinator_has_is_not_torn(stage: Stage) -> None:
    place = ("transaction", "abort", "--topic", "orders", "--partition", "0", "--start-offset", "2", "--yes")
    refused = stage(*place, code=1).errors
    assert f"the transaction of producer {stage.id_of('open')} in orders-0 does not hang" in refused
    assert f"tidelog transaction list --producer-id {stage.id_of('open')}" in refused
    elsewhere = stage(*place[:-2], "1", "--yes", code=1).errors
    assert "no open transaction of orders-0 begins at offset 1: open transactions begin at 2" in elsewhere
    assert "A coordinator may still know it" in stage(*place, "--force").errors
    assert stage("transaction", "describe-producers", "--topic", "orders:0", "--open", "--json").json() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a transactional id, or --topic, --partition and --start-offset together, must be given"),
        (["--topic", "orders", "--partition", "0"], "--start-offset together, must be given"),
        (["open", "--topic", "orders"], "cannot be used together"),
        (["open", "--force"], "--force is used only with --topic"),
    ],
)
def test_an_abort_needs_one_transaction(unchanged: Stage, arguments: list[str], message: str) -> None:
    assert message in unchanged("transaction", "abort", *arguments, "--yes", code=2).errors


# A cluster of which parts do not answer

OLD_MS = 1_000
IDS = {"sound": 10, "odd\udcff": 11, "prepared": 12}
"""Transactional ids of the first broker, with their producer ids. One name is not UTF-8."""


def metadata(broker: AnsweringBroker, unreachable: int) -> Answer:
    def answer(request: Any) -> Message:
        names = ["near"] if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            MetadataResponseTopic(
                0 if name == "near" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                name,
                partitions=[
                    MetadataResponsePartition(0, 0, 1, 0, [1, 2], [1, 2]),
                    MetadataResponsePartition(0, 1, 2, 0, [2], [2]),
                ]
                * (name == "near"),
            )
            for name in names
        ]
        brokers = [
            MetadataResponseBroker(1, broker.host, broker.port),
            MetadataResponseBroker(2, broker.host, unreachable),
        ]
        return MetadataResponse(brokers=brokers, topics=topics, controller_id=1)

    return answer


def list_transactions(request: Any) -> Message:
    wanted = set(request.producer_id_filters)
    return ListTransactionsResponse(
        transaction_states=[
            Listed(name, producer, "PrepareCommit" if name == "prepared" else "Ongoing")
            for name, producer in IDS.items()
            if not wanted or producer in wanted
        ]
    )


def describe_transactions(request: Any) -> Message:
    def state(name: str) -> Described:
        if name == "refused":
            return Described(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, name)
        if name not in IDS:
            return Described(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
        return Described(
            0,
            name,
            "PrepareCommit" if name == "prepared" else "Ongoing",
            60_000,
            OLD_MS,
            IDS[name],
            3,
            [TopicData("near", [1])],
        )

    return DescribeTransactionsResponse(transaction_states=[state(name) for name in request.transactional_ids])


def describe_producers(request: Any) -> Message:
    """Transactions are open in near-0: of `sound`, which has other partitions, and of a producer that nobody knows."""
    producers = [ProducerState(10, 3, 0, OLD_MS, -1, 5), ProducerState(77, 0, 0, OLD_MS, -1, 7)]
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                topic.name, [PartitionResponse(index, 0, None, producers) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


@contextmanager
def half_a_cluster(**changes: Callable[[Any], Message]) -> Iterator[tuple[str, str]]:
    """Two brokers of which one cannot be reached. `changes` has other answers by the API's name."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unreachable = taken.getsockname()[1]
    answers: dict[str, Answer] = {
        "Metadata": lambda request: metadata(broker, unreachable)(request),
        "FindCoordinator": lambda request: FindCoordinatorResponse(
            coordinators=[Coordinator(key, 1, broker.host, broker.port) for key in request.coordinator_keys]
        ),
        "ListTransactions": list_transactions,
        "DescribeTransactions": describe_transactions,
        "DescribeProducers": describe_producers,
        **changes,
    }
    with answering(answers) as broker:
        yield "--bootstrap", broker.bootstrap


def test_one_broker_does_not_answer() -> None:
    with half_a_cluster() as where:
        ran = tidelog("transaction", "list", *where)
        assert [row[0] for row in rows(ran.text)] == [r"odd\xff", "prepared", "sound"]
        assert ran.errors.startswith("Note: broker 2 (127.0.0.1:")
        assert "did not list its transactions, so they are not shown: " in ran.errors
        document = tidelog("transaction", "list", "--json", *where).json()
        assert [each.get("transactional_id_base64") for each in document] == ["b2Rk/w==", None, None]
        ran = tidelog("transaction", "describe", r"odd\xff", "refused", "--escaped", *where, code=1)
        assert ran.text.startswith(r"odd\xff  state ongoing  producer id 11  epoch 3")
        assert "transactional id refused: TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in ran.errors
        ran = tidelog("transaction", "describe-producers", "--topic", "near", *where, code=1)
        assert [row[:3] for row in rows(ran.text)] == [["near", "0", "10"], ["near", "0", "77"]]
        assert [row[-1] for row in rows(ran.text)] == ["sound", "-"]
        assert "did not list its transactional ids: " in ran.errors
        assert "near-1: no answer from the cluster" in ran.errors


def test_it_is_not_decided_whether_a_transaction_hangs_if_its_coordinator_may_not_answer() -> None:
    with half_a_cluster() as where:
        ran = tidelog("transaction", "find-hanging", *where)
        [row] = rows(ran.text)
        assert row[:4] + row[-1:] == ["near", "0", "5", "10", "sound"]
        assert "near-0: it is not known whether the transaction that producer 77 began at offset 7 hangs" in ran.errors
        assert "Note: broker 2 (127.0.0.1:" in ran.errors
        assert "Note: near-1: no answer from the cluster" in ran.errors
        assert "near-1" in tidelog("transaction", "find-hanging", "--topic", "near:1", *where, code=1).errors
        place = ("transaction", "abort", "--topic", "near", "--partition", "0", "--start-offset", "7", "--yes")
        assert "it is not known whether the transaction hangs (--force" in tidelog(*place, *where, code=1).errors


def test_a_transaction_that_ended_meanwhile_does_not_hang() -> None:
    calls = 0

    def ended_at_the_second_call(request: Any) -> Message:
        nonlocal calls
        calls += 1
        return (
            describe_producers(request)
            if calls == 1
            else DescribeProducersResponse(topics=[TopicResponse("near", [PartitionResponse(0)])])
        )

    with half_a_cluster(DescribeProducers=ended_at_the_second_call) as where:
        assert tidelog("transaction", "find-hanging", "--topic", "near:0", "--json", *where).json() == []
    assert calls == 2


def test_a_transaction_of_which_it_is_not_known_whether_it_ended_fails_the_search() -> None:
    calls = 0

    def refused_at_the_second_call(request: Any) -> Message:
        nonlocal calls
        calls += 1
        refused = PartitionResponse(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return (
            describe_producers(request)
            if calls == 1
            else DescribeProducersResponse(topics=[TopicResponse("near", [refused])])
        )

    with half_a_cluster(DescribeProducers=refused_at_the_second_call) as where:
        ran = tidelog("transaction", "find-hanging", "--topic", "near:0", *where, code=1)
    assert "Error: near-0: TOPIC_AUTHORIZATION_FAILED" in ran.errors
    assert "No transaction hangs" not in ran.errors


def test_an_end_that_is_decided_cannot_be_aborted() -> None:
    with half_a_cluster() as where:
        refused = tidelog("transaction", "abort", "prepared", "--yes", *where, code=1).errors
    start = "Error: the end of the transaction of prepared is decided already (state prepare commit): "
    assert refused.startswith(f"{start}its markers are still missing in near 1")

    def without_partitions(request: Any) -> Message:
        return DescribeTransactionsResponse(
            transaction_states=[Described(0, name, "PrepareCommit", 60_000, OLD_MS, 12) for name in IDS]
        )

    with half_a_cluster(DescribeTransactions=without_partitions) as where:
        refused = tidelog("transaction", "abort", "prepared", "--yes", *where, code=1).errors
    assert refused.startswith(f"{start}all its markers are written, and the coordinator will record the end")


def test_a_state_that_a_broker_does_not_know_is_named() -> None:
    def without_dead(request: Any) -> Message:
        assert request.state_filters == ["Ongoing", "Dead"]
        return ListTransactionsResponse(unknown_state_filters=["Dead"])

    with half_a_cluster(ListTransactions=without_dead) as where:
        ran = tidelog("transaction", "list", "--state", "ongoing", "--state", "dead", *where)
    assert (
        "Note: the state dead is not known to 1 broker, so transactional ids in this state may be missing" in ran.errors
    )
    assert "No transactional id matches" not in ran.errors


def test_transactional_ids_are_described_in_the_order_of_the_command_line() -> None:
    """Their coordinators answer in another order."""
    described: dict[str, Any] = {
        "b": Transaction("b", 1, 2, 0, "Ongoing", 60_000, None, []),
        "a": Transaction("a", 2, 1, 0, "Ongoing", 60_000, None, []),
    }

    class Client:
        def describe_transactions(self, names: list[str]) -> dict[str, Any]:
            assert names == ["a", "b"]
            return described

    client: Any = Client()
    assert list(transactions.describe_transactions(client, ["a", "b", "a"]).transactions) == ["a", "b"]


def test_a_broker_that_does_not_know_the_filter() -> None:
    """Kafka before 4.1 cannot filter by a pattern: it is not ignored."""
    with answering(
        {
            "Metadata": lambda _: MetadataResponse(brokers=[MetadataResponseBroker(1, broker.host, broker.port)]),
            "ListTransactions": list_transactions,
        },
        {"ListTransactions": 1},
    ) as broker:
        refused = tidelog("transaction", "list", "--pattern", "a", "--bootstrap", broker.bootstrap, code=1).errors
    assert "transactions cannot be listed: ListTransactions v1 cannot carry this request" in refused
