"""Messages at the terminal while `tidelog consume` waits."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from process_harness.terminal import Terminal, on_a_terminal
from tidelog.testing import Broker

CONSUME = [sys.executable, "-m", "tidelog", "consume", "orders"]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Of commands that find a broker whose new groups wait for more members; topic orders has one record."""
    with Broker(settings={"group.initial.rebalance.delay.ms": 1500}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", "first")
        assert producer.flush(20) == 0
        yield os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}


def stop(reader: Terminal) -> None:
    reader.process.send_signal(signal.SIGINT)
    assert reader.end() == (130, "")


def test_a_new_group_waits_for_members(environment: dict[str, str]) -> None:
    with on_a_terminal([*CONSUME, "--group", "billing", "-B"], environment) as reader:
        reader.expect("Joining group billing; a new group waits a few seconds for more members.\n")
        reader.expect("first\n")
        stop(reader)


def test_a_spare_member_is_told_so(environment: dict[str, str]) -> None:
    command = [*CONSUME, "--group", "full", "-B"]
    # The range assignor goes by the member ids, which begin with the client's.
    with on_a_terminal([*command, "-X", "client.id=a"], environment) as reader:
        reader.expect("first\n")
        with on_a_terminal([*command, "-X", "client.id=b"], environment) as spare:
            spare.expect("Group full has a member for every partition; waiting for one to leave.\n")
            stop(spare)


def test_new_records_are_waited_for(environment: dict[str, str]) -> None:
    with on_a_terminal(CONSUME, environment) as reader:
        reader.expect("Waiting for new records in orders; Ctrl-C stops. \\(-B also prints existing records.\\)\n")
        stop(reader)
    with on_a_terminal([*CONSUME, "-o", "7"], environment) as reader:
        reader.expect("Topic orders ends before offset 7; reading starts at the end of each partition.\n")
        stop(reader)


def test_the_end_of_a_transaction_is_waited_for() -> None:
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "shop"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("orders", "first")
        assert producer.flush(20) == 0
        with on_a_terminal([*CONSUME, "-B"], os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}) as reader:
            reader.expect("Waiting for new records in orders; Ctrl-C stops.\n")
            reader.expect(
                "Note: offset 0 and later offsets of partition 0 are not shown, because a transaction is open"
            )
            producer.commit_transaction(20)
            reader.expect("first\n")
            stop(reader)


@pytest.mark.parametrize(("commits", "first"), [(True, "second"), (False, "first")])
def test_a_member_waits_for_a_transaction_with_the_offsets_of_its_group(commits: bool, first: str) -> None:
    with Broker() as broker, open_transaction_of_a_group(broker.bootstrap) as producer:
        command = [*CONSUME, "--group", "billing", "-B", "-e"]
        with on_a_terminal(command, os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}) as reader:
            reader.expect(
                "Note: waiting for the end of a transaction that contains an offset of group billing for"
                " partition 0. tidelog transaction list --state ongoing shows open transactions; tidelog transaction"
                " abort ends one.\n"
            )
            producer.commit_transaction(20) if commits else producer.abort_transaction(20)
            reader.expect(f"^{first}\n")
            code, rest = reader.end()
            assert (code, rest) == (0, "" if commits else "second\n")


def test_a_member_that_reads_all_records_does_not_wait_for_a_transaction() -> None:
    with Broker() as broker, open_transaction_of_a_group(broker.bootstrap):
        command = [*CONSUME, "--group", "billing", "-B", "-e", "-X", "isolation.level=read_uncommitted"]
        with on_a_terminal(command, os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}) as reader:
            reader.expect("first\nsecond\n")
            assert reader.end() == (0, "")


@contextmanager
def open_transaction_of_a_group(bootstrap: str) -> Iterator[Producer]:
    """Two records in topic orders, and a transaction that has the offset of the first one for the group billing."""
    writer = Producer({"bootstrap.servers": bootstrap})
    writer.produce("orders", "first")
    writer.produce("orders", "second")
    assert writer.flush(20) == 0
    settings = {"group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe(["orders"])
    record = consumer.poll(20)
    assert record is not None
    assert record.error() is None
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "shop"})
    producer.init_transactions(20)
    producer.begin_transaction()
    offsets = [TopicPartition("orders", 0, 1)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
    consumer.close()
    yield producer


def test_a_broker_that_goes_away_is_told_of_once() -> None:
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", "first")
        assert producer.flush(20) == 0
        producer.close()
        environment = os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}
        with on_a_terminal([*CONSUME, "-B"], environment) as reader:
            reader.expect("first\n")
            broker.stop()
            reader.expect("No broker can be reached any more; still trying. Ctrl-C stops.\n")
            stop(reader)


PRODUCE = [sys.executable, "-m", "tidelog", "produce", "orders"]


def test_ctrl_c_ends_produce_while_it_waits_for_lines(environment: dict[str, str]) -> None:
    with on_a_terminal(PRODUCE, environment) as writer:
        writer.expect("Type one record per line; Ctrl-D ends.\n")
        writer.process.send_signal(signal.SIGINT)
        assert writer.end() == (130, "0 records, 0 B, to orders\n")


def test_ctrl_c_ends_produce_during_an_outage() -> None:
    with Broker() as broker:
        environment = os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}
        with on_a_terminal(PRODUCE, environment) as writer:
            writer.expect("Type one record per line; Ctrl-D ends.\n")
            broker.stop()
            os.write(writer.leader, b"late\n\x04")
            writer.expect("No broker can be reached any more; still trying. Ctrl-C stops.\n")
            writer.process.send_signal(signal.SIGINT)
            assert writer.end() == (130, "1 record not acknowledged, but possibly written.\n")


def test_the_question_before_an_internal_topic_is_deleted_names_what_is_lost(environment: dict[str, str]) -> None:
    offsets = "__consumer_offsets"
    command = [sys.executable, "-m", "tidelog", "group", "reset-offsets", "g", "--topic", "orders", "--to-earliest"]
    subprocess.run([*command, "--execute"], env=environment, check=True, timeout=60)
    command = [sys.executable, "-m", "tidelog", "topic", "delete", offsets, "--internal"]
    with on_a_terminal(command, environment) as deleting:
        deleting.expect(
            f"Delete internal topic {offsets} with \\d+ records?, the committed offsets of every consumer group\\?"
        )
        os.write(deleting.leader, b"n\n")
        deleting.expect("Nothing was deleted.\n")
        assert deleting.end() == (0, "")


def test_a_deletion_that_is_not_wanted(environment: dict[str, str]) -> None:
    with on_a_terminal([sys.executable, "-m", "tidelog", "topic", "delete", "orders"], environment) as deleting:
        deleting.expect("Delete topic orders with 1 record\\? \\[y/N\\]: ")
        os.write(deleting.leader, b"n\n")
        deleting.expect("Nothing was deleted.\n")
        assert deleting.end() == (0, "")
