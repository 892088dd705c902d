"""Commands on transactions show transactional ids with any names, and answers with any bytes and numbers."""

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_harness import ENCODINGS, answering, tidelog
from cli_harness.names import check_table, escaped, named
from tidelog.client.blocking import Client
from tidelog.testing import Broker
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

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "12"))
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    ["a\0b", "\x1b[2J", "a\nb\r", "\ufeffbom", "é漢😀", '"', "\\", "\\x1b", "x" * 3000, "--help", "-x"]
)
any_bytes = st.binary(max_size=12) | st.sampled_from([b"\xff", b"a\0b", b"\xed\xa0\x80", b"\x1b[2J", b""])
any_text = any_bytes.map(lambda data: data.decode("utf-8", "surrogateescape"))
states = st.sampled_from(["Ongoing", "Empty", "PrepareCommit", "CompleteAbort"]) | any_text
int64 = st.integers(-1, 3) | st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-1, 3) | st.integers(-(1 << 31), (1 << 31) - 1)
int16 = st.integers(-1, 3) | st.integers(-(1 << 15), (1 << 15) - 1)


@given(st.lists(texts, min_size=1, max_size=4, unique=True), st.sampled_from(ENCODINGS))
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_transactional_ids_are_listed_and_described(broker: Broker, names: list[str], encoding: str) -> None:
    where = ("-b", broker.bootstrap)
    with Client(broker.bootstrap) as client:
        for name in names:
            client.fence(name, 60_000)
    typed = [escaped(name) for name in names]
    listed = tidelog("transaction", "list", "--json", *where, encoding=encoding).json()
    assert set(names) <= {named(each, "transactional_id") for each in listed}
    for command in (["list"], ["list", "--names"]):
        check_table(tidelog("transaction", *command, *where, encoding=encoding))
    described = tidelog("transaction", "describe", "--json", "--escaped", *where, "--", *typed, encoding=encoding)
    assert [named(each, "transactional_id") for each in described.json()] == names
    check_table(tidelog("transaction", "describe", "--escaped", *where, "--", *typed, encoding=encoding))
    ran = tidelog("transaction", "abort", "--yes", "--escaped", *where, "--", typed[0], encoding=encoding, code=1)
    check_table(ran)
    assert "has no open transaction" in ran.errors


described_transactions = st.builds(
    Described,
    error_code=st.sampled_from([0, 0, 0, 105, 9999]),
    transactional_id=any_text,
    transaction_state=states,
    transaction_timeout_ms=int32,
    transaction_start_time_ms=int64,
    producer_id=int64,
    producer_epoch=int16,
    topics=st.lists(st.builds(TopicData, topic=any_text, partitions=st.lists(int32, max_size=3)), max_size=2),
)
producers = st.builds(
    ProducerState,
    producer_id=int64,
    producer_epoch=int32,
    last_sequence=int32,
    last_timestamp=int64,
    coordinator_epoch=int32,
    current_txn_start_offset=int64,
)
partitions = st.builds(
    PartitionResponse,
    partition_index=st.just(0),
    error_code=st.sampled_from([0, 0, 0, 9999]),
    error_message=any_text | st.none(),
    active_producers=st.lists(producers, max_size=3),
)


@given(
    st.lists(described_transactions, max_size=4, unique_by=lambda each: each.transactional_id),
    st.lists(partitions, min_size=2, max_size=2),
    st.sampled_from(ENCODINGS),
)
@settings(max_examples=4 * EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_answers_of_any_bytes(transactions: list[Described], replicas: list[PartitionResponse], encoding: str) -> None:
    by_name = {each.transactional_id: each for each in transactions}
    by_topic = dict(zip(("t", "u"), replicas, strict=True))

    def metadata(request: Any) -> Message:
        asked = [topic.name for topic in request.topics] if request.topics is not None else list(by_topic)
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, broker.host, broker.port)],
            topics=[
                MetadataResponseTopic(0, name, partitions=[MetadataResponsePartition(0, 0, 1, 0, [1], [1])])
                if name in by_topic
                else MetadataResponseTopic(3, name)
                for name in asked
            ],
        )

    answers = {
        "Metadata": metadata,
        "ListTransactions": lambda _: ListTransactionsResponse(
            transaction_states=[
                Listed(name, each.producer_id, each.transaction_state) for name, each in by_name.items()
            ]
        ),
        "FindCoordinator": lambda request: FindCoordinatorResponse(
            coordinators=[Coordinator(key, 1, broker.host, broker.port) for key in request.coordinator_keys]
        ),
        "DescribeTransactions": lambda request: DescribeTransactionsResponse(
            transaction_states=[by_name[name] for name in request.transactional_ids]
        ),
        "DescribeProducers": lambda request: DescribeProducersResponse(
            topics=[TopicResponse(topic.name, [by_topic[topic.name]]) for topic in request.topics]
        ),
    }
    with answering(answers) as broker:
        where = ("-b", broker.bootstrap)
        listed = tidelog("transaction", "list", "--json", *where, encoding=encoding).json()
        assert sorted(named(each, "transactional_id") for each in listed) == sorted(by_name)
        for command in (["list"], ["list", "--names"]):
            check_table(tidelog("transaction", *command, *where, encoding=encoding))
        sound = {topic for topic, replica in by_topic.items() if not replica.error_code}
        asked = ("transaction", "describe-producers", "--topic", "t", "--topic", "u")
        ran = tidelog(*asked, "--json", *where, encoding=encoding, code=int(len(sound) < 2))
        assert len(ran.json()) == sum(len(by_topic[topic].active_producers) for topic in sound)
        check_table(tidelog(*asked, *where, encoding=encoding, code=int(len(sound) < 2)))
        check_table(tidelog("transaction", "find-hanging", *where, encoding=encoding))
        tidelog("transaction", "find-hanging", "--json", *where, encoding=encoding).json()
        names = list(by_name)
        typed = [escaped(name) for name in names]
        if not typed:
            return
        described = [name for name in names if not by_name[name].error_code]
        ran = tidelog(
            "transaction", "describe", "--json", "--escaped", *where, "--", *typed, encoding=encoding, code=None
        )
        assert ran.code == int(len(described) < len(names))
        assert [named(each, "transactional_id") for each in ran.json()] == described
        check_table(tidelog("transaction", "describe", "--escaped", *where, "--", *typed, encoding=encoding, code=None))
