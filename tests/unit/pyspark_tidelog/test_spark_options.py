"""Options: which are accepted, which are refused, and the messages."""

import pytest

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.exactly_once.decision import BatchIdentity
from pyspark_tidelog.offsets import ByTimestamp, Everywhere, Specific
from pyspark_tidelog.options import (
    READ,
    READ_WITHOUT_EFFECT,
    WRITE,
    WRITE_WITHOUT_EFFECT,
    ReadOptions,
    read_options,
    write_options,
)
from pyspark_tidelog.settings import GROUPS, REFUSED
from tidelog.client.operations import EARLIEST, LATEST, READ_COMMITTED
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import Codec

BASIC = {"kafka.bootstrap.servers": "a:9092,[::1]:9093", "subscribe": "orders"}
ORDERS_0 = TopicPartition("orders", 0)


def batch(**more: str) -> ReadOptions:
    return read_options(BASIC | more, streaming=False)


def stream(**more: str) -> ReadOptions:
    return read_options(BASIC | more, streaming=True)


def without(name: str, **more: str) -> dict[str, str]:
    return {key: value for key, value in (BASIC | more).items() if key != name}


def test_defaults() -> None:
    options = batch()
    assert options.subscription.topics == ("orders",)
    assert (options.starting, options.ending) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert stream().starting == Everywhere(LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.check_crcs
    assert options.min_partitions == options.max_partitions == 0
    assert options.max_offsets_per_trigger == options.min_offsets_per_trigger == 0
    assert batch(minPartitions="3", maxPartitions="3").max_partitions == 3


def test_every_option_that_is_taken() -> None:
    options = read_options(
        {
            "KAFKA.Bootstrap.Servers": "a:1",
            "subscribePattern": "or.*|x",
            "includeHeaders": "TRUE",
            "failOnDataLoss": "false",
            "minPartitions": "8",
            "maxRecordsPerPartition": "100",
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "2m",
            "startingOffsets": "earliest",
            "kafka.client.id": "etl",
            "kafka.request.timeout.ms": "11",
            "kafka.default.api.timeout.ms": "12",
            "kafka.retry.backoff.ms": "13",
            "kafka.retry.backoff.max.ms": "14",
            "kafka.socket.connection.setup.timeout.ms": "15",
            "kafka.security.protocol": "PLAINTEXT",
            "kafka.fetch.max.wait.ms": "16",
            "kafka.fetch.min.bytes": "17",
            "kafka.fetch.max.bytes": "18",
            "kafka.max.partition.fetch.bytes": "19",
            "kafka.isolation.level": "read_committed",
            "kafka.check.crcs": "false",
        },
        streaming=True,
    )
    assert options.subscription.pattern == "or.*|x"
    assert options.include_headers
    assert not options.fail_on_data_loss
    assert not options.check_crcs
    assert (options.min_partitions, options.max_records_per_partition) == (8, 100)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (10, 5)
    assert options.max_trigger_delay_ms == 120_000
    client = options.client
    assert (client.client_id, client.request_timeout_ms, client.default_api_timeout_ms) == ("etl", 11, 12)
    assert (client.backoff, client.socket_connection_setup_timeout_ms) == ((13, 14), 15)
    assert options.fetch == (16, 17, 18, 19, READ_COMMITTED)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("15m", 900_000), ("30s", 30_000), ("500ms", 500), ("2 h", 7_200_000), ("250", 250), ("2500us", 2)],
)
def test_times(text: str, milliseconds: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


def test_where_to_begin_and_end() -> None:
    options = batch(startingOffsets='{"orders":{"0":5,"1":-2}}', endingOffsets='{"orders":{"0":9,"1":-1}}')
    assert options.starting == Specific({ORDERS_0: 5, TopicPartition("orders", 1): EARLIEST})
    assert options.ending == Specific({ORDERS_0: 9, TopicPartition("orders", 1): LATEST})
    options = batch(startingTimestamp="7", endingTimestamp="8")
    assert (options.starting, options.ending) == (ByTimestamp(7, False), ByTimestamp(8, True))
    options = batch(startingOffsetsByTimestamp='{"orders":{"0":7}}', startingOffsetsByTimestampStrategy="latest")
    assert options.starting == ByTimestamp({ORDERS_0: 7}, True)
    assert batch(endingOffsetsByTimestamp='{"orders":{"0":7}}').ending == ByTimestamp({ORDERS_0: 7}, True)


def test_of_several_bounds_the_one_that_spark_prefers_counts() -> None:
    every = {"startingTimestamp": "7", "startingOffsetsByTimestamp": "nonsense", "startingOffsets": "latest"}
    assert batch(**every).starting == ByTimestamp(7, False)
    del every["startingTimestamp"]
    every["startingOffsetsByTimestamp"] = '{"orders":{"0":7}}'
    assert batch(**every).starting == ByTimestamp({ORDERS_0: 7}, False)
    assert batch(endingTimestamp="8", endingOffsets="earliest").ending == ByTimestamp(8, True)


def test_bounds_that_only_a_broker_can_compare_are_taken() -> None:
    for more in (
        {"startingOffsets": '{"orders":{"0":-2}}', "endingOffsets": '{"orders":{"0":0}}'},
        {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":-1}}'},
        {"startingTimestamp": "9", "endingTimestamp": "4"},
        {"startingTimestamp": "9", "endingOffsetsByTimestamp": '{"orders":{"0":4}}'},
        {"startingOffsets": '{"orders":{"0":9}}', "endingTimestamp": "4"},
    ):
        assert batch(**more).starting != batch().starting


def test_what_tunes_a_part_of_kafkas_client_that_is_not_here_is_taken_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = batch(**dict.fromkeys((*READ_WITHOUT_EFFECT,), "1"), maxTriggerDelay="1s")
    assert options._replace(max_trigger_delay_ms=900_000) == batch()
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == len(READ_WITHOUT_EFFECT) + 1
    assert f"option kafka.group.id has no effect in format tidelog: {GROUPS}" in warned
    assert "option maxTriggerDelay has no effect in format tidelog: a batch query has no triggers" in warned
    caplog.clear()
    write = {name: "1" for name in WRITE_WITHOUT_EFFECT if name != "includeHeaders"} | {"includeHeaders": "true"}
    given = without("subscribe")
    assert write_options(given | write) == write_options(given)
    assert len(caplog.records) == len(WRITE_WITHOUT_EFFECT)
    stream(maxTriggerDelay="1s")
    assert len(caplog.records) == len(WRITE_WITHOUT_EFFECT)


def test_the_time_to_wait_for_records_is_that_of_one_question_unless_it_is_given() -> None:
    assert batch().poll_timeout_ms == 60_000
    assert batch(**{"kafka.default.api.timeout.ms": "5"}).poll_timeout_ms == 5
    options = batch(**{"kafkaConsumer.pollTimeoutMs": "+7"})
    assert (options.poll_timeout_ms, options.client.default_api_timeout_ms) == (7, 60_000)


def test_assign() -> None:
    given = without("subscribe", assign='{"orders":[0,2],"x":[1]}')
    partitions = read_options(given, streaming=False).subscription.partitions
    assert partitions == (ORDERS_0, TopicPartition("orders", 2), TopicPartition("x", 1))


REFUSALS = [
    ({"subcribe": "x"}, r"option subcribe is not known to format tidelog; did you mean subscribe?"),
    ({"kafka.fetch.max.byte": "1"}, "option kafka.fetch.max.byte is not known .* did you mean kafka.fetch.max.bytes?"),
    ({"xyzzy": "1"}, "option xyzzy is not known to format tidelog$"),
    ({"path": "x"}, "option path is not accepted by format tidelog: topics are chosen with"),
    ({"fetchOffset.numRetries": "x"}, "option fetchOffset.numRetries is 'x': it must be a whole number"),
    (
        {"kafkaConsumer.pollTimeoutMs": "0"},
        "option kafkaConsumer.pollTimeoutMs is '0': it must be a whole number from 1",
    ),
    (
        {"kafka.session.timout.ms": "1"},
        "option kafka.session.timout.ms is not known .* did you mean kafka.session.timeout",
    ),
    ({"kafka.security.providers": "x"}, "option kafka.security.providers .* in plaintext"),
    ({"kafka.sasl.mechanism": "PLAIN"}, "option kafka.sasl.mechanism .* in plaintext, without TLS or SASL"),
    ({"kafka.ssl.truststore.location": "x"}, "option kafka.ssl.truststore.location .* in plaintext"),
    ({"kafka.security.protocol": "SASL_SSL"}, "option kafka.security.protocol .* in plaintext"),
    ({"assign": '{"orders":[0]}'}, "options subscribe and assign cannot be used together"),
    ({"subscribePattern": "o.*"}, "options subscribe and subscribePattern cannot be used together"),
    (
        {"startingOffsets": '{"orders":{"0":1,"1":5}}', "endingOffsets": '{"orders":{"0":1,"1":4}}'},
        r"\[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] orders-1: the starting offset 5 is past the ending "
        r"offset 4 \(topic orders, partition 1\)",
    ),
    (
        {"startingOffsetsByTimestamp": '{"orders":{"0":5}}', "endingOffsetsByTimestamp": '{"orders":{"0":4}}'},
        r"\[UNRESOLVED_START_.*\] orders-0: the starting timestamp 5 is past the ending timestamp 4",
    ),
    (
        {"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"1":4}}'},
        r"\[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_.*\] .* name different partitions: .* orders-0, orders-1",
    ),
    ({"startingOffsets": "soonest"}, "option startingOffsets is 'soonest': it must be earliest, latest or JSON"),
    ({"startingOffsets": "latest"}, "option startingOffsets cannot be latest"),
    ({"startingOffsets": '{"orders":{"0":-1}}'}, "option startingOffsets cannot be latest"),
    ({"endingOffsets": "earliest"}, "option endingOffsets cannot be earliest"),
    ({"endingOffsets": '{"orders":{"0":-2}}'}, "option endingOffsets cannot be earliest"),
    ({"startingOffsets": '{"orders":{"0":'}, "option startingOffsets is not JSON"),
    ({"startingOffsets": "{}"}, "option startingOffsets names no partition"),
    ({"startingOffsets": '{"orders":[0]}'}, "topic 'orders' needs an object of partitions"),
    ({"startingOffsets": '{"orders":{"a":1}}'}, "'a' of topic 'orders' is not a partition's number"),
    ({"startingOffsets": '{"orders":{"0":true}}'}, "orders-0 is True: it must be a whole number from -2 to 9"),
    ({"startingOffsets": '{"orders":{"0":-3}}'}, "orders-0 is -3: it must be"),
    ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "orders-0 is -1: it must be a whole number from 0 to 9"),
    ({"startingOffsetsByTimestampStrategy": "guess"}, "it must be error or latest"),
    ({"startingTimestamp": "soon"}, "option startingTimestamp is 'soon': it must be a whole number"),
    ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0': it must be a whole number from 1"),
    ({"maxPartitions": "2", "minPartitions": "3"}, "minPartitions is 3, which is more than maxPartitions, 2"),
    ({"maxPartitions": "2", "maxRecordsPerPartition": "9"}, "maxPartitions and maxRecordsPerPartition cannot be"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, r"minOffsetsPerTrigger \(5\) is above"),
    ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon': it must be a time like 15m"),
    ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe': it must be true or false"),
    ({"kafka.isolation.level": "dirty"}, "it must be read_uncommitted or read_committed"),
    ({"kafka.bootstrap.servers": "here"}, "option kafka.bootstrap.servers: bootstrap server 'here' is not HOST:PORT"),
    ({"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers is required"),
    ({"subscribe": " , "}, "option subscribe names no topic"),
]


@pytest.mark.parametrize(("more", "message"), REFUSALS)
def test_refusals(more: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(BASIC | more, streaming=False)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_client_settings_without_a_meaning_are_refused_with_the_reason(name: str) -> None:
    for parse in (lambda given: read_options(given, streaming=True), lambda g: write_options(g | {"topic": "t"})):
        given = without("subscribe", **{f"kafka.{name}": "x"})
        with pytest.raises(
            OptionError, match=rf"option kafka.{name} is not accepted by format tidelog: {REFUSED[name]}"
        ):
            parse(given)


def test_more_refusals() -> None:
    with pytest.raises(OptionError, match=r"no topic is chosen: give option subscribe, subscribePattern or assign"):
        read_options(without("subscribe"), streaming=False)
    with pytest.raises(OptionError, match=r"option subscribePattern is required, but it is empty"):
        read_options(without("subscribe", subscribePattern=" "), streaming=False)
    for text, message in [('{"a":1}', "needs a list"), ("[]", "not a JSON object"), ('{"a":[]}', "names no partition")]:
        with pytest.raises(OptionError, match=message):
            read_options(without("subscribe", assign=text), streaming=False)
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(OptionError, match=rf"option {name} has no meaning in a streaming query"):
            stream(**{name: "latest"})


def test_write_options() -> None:
    given = without("subscribe")
    options = write_options(given)
    assert (options.topic, options.acks, options.codec) == (None, -1, Codec.NONE)
    more = {"kafka.acks": "1", "kafka.compression.type": "zstd", "kafka.batch.size": "7", "topic": "t"}
    options = write_options(given | more | {"checkpointLocation": "/x", "kafka.delivery.timeout.ms": "9"})
    assert (options.topic, options.acks, options.codec, options.batch_bytes) == ("t", 1, Codec.ZSTD, 7)
    assert (options.client.delivery_timeout_ms, options.client.default_api_timeout_ms) == (9, 60_000)
    options = write_options(given | {"kafka.default.api.timeout.ms": "3000"})
    assert (options.client.delivery_timeout_ms, options.client.default_api_timeout_ms) == (120_000, 3000)
    with pytest.raises(OptionError, match=r"option kafka.acks is '2': it must be all or -1 or 1 or 0"):
        write_options(given | {"kafka.acks": "2"})
    with pytest.raises(OptionError, match=r"option subscribe is not known"):
        write_options(BASIC)
    with pytest.raises(OptionError, match=r"option topic is required, but it is empty"):
        write_options(given | {"topic": " "})
    assert write_options(given | {"kafka.batch.size": "0"}).batch_bytes == 1


def test_a_write_without_acknowledgements_waits_for_them(caplog: pytest.LogCaptureFixture) -> None:
    assert write_options(without("subscribe") | {"kafka.acks": "0"}).acks == 1
    assert [record.getMessage() for record in caplog.records] == [
        "option kafka.acks has no effect in format tidelog: the sink waits for acknowledgements, as with acks=1"
    ]
    with pytest.raises(OptionError, match=r"kafka\.acks must be all with exactlyOnce"):
        write_options(without("subscribe", exactlyOnce="true") | {"kafka.acks": "0"})


def test_options_of_an_exactly_once_write(caplog: pytest.LogCaptureFixture) -> None:
    given = without("subscribe", exactlyOnce="true")
    options = write_options(given)
    assert (options.exactly_once, options.identity, options.transaction_timeout_ms) == (True, None, 900_000)
    more = {"kafka.transaction.timeout.ms": "7000", "kafka.enable.idempotence": "true", "kafka.acks": "-1"}
    named = {"exactlyOnceId": "totals of/ä", "exactlyonceBATCH": "3"}
    options = write_options(given | more | named)
    assert (options.transaction_timeout_ms, options.identity) == (7000, BatchIdentity("totals of/ä", 3))
    assert not caplog.records
    assert not write_options(without("subscribe", exactlyOnce="false")).exactly_once
    write_options(without("subscribe", **{"kafka.transaction.timeout.ms": "7000"}))
    assert "only a write with exactlyOnce=true opens transactions" in caplog.text
    for wrong, message in [
        ({"kafka.acks": "1"}, "kafka.acks must be all with exactlyOnce"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence cannot be false with exactlyOnce"),
        ({"kafka.transactional.id": "x"}, "set option exactlyOnce, which chooses the transactional ids"),
        ({"kafka.transaction.timeout.ms": "0"}, "kafka.transaction.timeout.ms is '0'"),
        ({"exactlyOnce": "yes"}, "exactlyOnce is 'yes': it must be true or false"),
        ({"exactlyOnceId": "x"}, "option exactlyOnceBatch is required"),
        ({"exactlyOnceBatch": "1"}, "option exactlyOnceId is required"),
        (named | {"exactlyonceBATCH": "-1"}, "exactlyOnceBatch is '-1'"),
        (named | {"exactlyOnceId": "a\x00b"}, "exactlyOnceId must have at most 200 printable characters"),
        (named | {"exactlyOnceId": "a" * 201}, "exactlyOnceId must have at most 200 printable characters"),
        (named | {"exactlyOnce": "false"}, "exactlyOnceId has no meaning without exactlyOnce=true"),
    ]:
        with pytest.raises(OptionError, match=message):
            write_options(given | wrong)


@pytest.mark.parametrize(
    ("acks", "given", "idempotent"),
    [("all", None, True), ("1", None, False), ("0", None, False), ("all", "false", False), ("all", "true", True)],
)
def test_a_write_is_idempotent_as_a_write_of_kafkas_producer(acks: str, given: str | None, idempotent: bool) -> None:
    more = {"kafka.acks": acks} | ({} if given is None else {"kafka.enable.idempotence": given})
    assert write_options(without("subscribe", **more)).idempotent == idempotent


def test_an_idempotent_write_needs_all_acknowledgements() -> None:
    with pytest.raises(OptionError, match=r"option kafka.enable.idempotence needs kafka.acks=all"):
        write_options(without("subscribe", **{"kafka.acks": "1", "kafka.enable.idempotence": "true"}))


def test_no_option_is_listed_twice() -> None:
    for names in (READ, WRITE):
        assert len({name.lower() for name in names}) == len(names)
