"""Messages of commands about partitions whose log cannot be opened: which, where to look, and never that they are
empty.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from process_harness.terminal import on_a_terminal
from tidelog.cli.offline import partitions_text
from tidelog.coordinator.group.hashing import partition_of
from tidelog.testing import Broker

LIMIT_S = 60
SETTINGS = {"num.partitions": 3, "offsets.topic.num.partitions": 2}
LOST_GROUP, OTHER_GROUP = sorted("ab", key=lambda group: partition_of(group, 2), reverse=True)
"""The first is kept in __consumer_offsets-1, the second in __consumer_offsets-0."""
REMEDY = (
    "If a broker is down (tidelog cluster status shows all brokers), start it. Otherwise a broker cannot use its\n"
    'files of a partition, and its log lines with "offline" say why: stop this broker, and find the damage with\n'
    "tidelog log verify DIRECTORY. After a repair, the next start of the broker opens the partition again.\n"
)
OF_ORDERS = "Offline: partition 1 of orders. "
OF_GROUPS = "Offline: partition 1 of __consumer_offsets. Groups that are stored there are not shown.\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def fill(broker: Broker) -> None:
    """Ten records in each partition of orders, inbox and lost, two groups that have read orders."""
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        for number in range(30):
            producer.produce("orders", f"{number}", partition=number % 3)
            producer.produce("inbox", f"{number}", partition=number % 3)
            producer.produce("lost", f"{number}", partition=number % 3)
        producer.flush()
    for group in (LOST_GROUP, OTHER_GROUP):
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe(["orders"])
        read = 0
        while read < 30:
            read += len(consumer.consume(30, 1))
        consumer.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Its orders-1, inbox-1, all of lost, and __consumer_offsets-1 are offline: their files have gone."""
    data = tmp_path_factory.mktemp("offline") / "data"
    with Broker(data=data, settings=SETTINGS) as before:
        fill(before)
    for name in ("orders-1", "inbox-1", "lost-0", "lost-1", "lost-2", "__consumer_offsets-1"):
        shutil.rmtree(data / name)
    with Broker(data=data, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def tidelog(broker: Broker) -> Run:
    environment = os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap, "COLUMNS": "120"}

    def run(*arguments: object, input: str = "", code: int = 0) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
        ran = subprocess.run(
            command, input=input, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    return run


def test_topic_list_tells_of_trouble(tidelog: Run) -> None:
    lines = {line.split()[0]: line for line in tidelog("topic", "list").stdout.splitlines()}
    assert "1 without a leader" in lines["orders"]
    assert lines["orders"].split()[3] == "20+"
    assert "3 without a leader" in lines["lost"]


def test_topic_describe_marks_the_partition(tidelog: Run) -> None:
    ran = tidelog("topic", "describe", "orders")
    assert re.search(r"^ +1 +none .* \? +\? +\? +1 +offline$", ran.stdout, re.MULTILINE)
    assert ran.stderr == f"{OF_ORDERS}No records can be read or written there.\n{REMEDY}"
    [described] = json.loads(tidelog("topic", "describe", "orders", "--json").stdout)
    assert [part["offline"] for part in described["partitions"]] == [False, True, False]
    assert "first_offset" not in described["partitions"][1]


def test_consume_reads_the_others_and_does_not_call_it_the_end(tidelog: Run) -> None:
    ran = tidelog("consume", "orders", "-B", "-e", code=1)
    assert len(ran.stdout.splitlines()) == 20
    assert ran.stderr == (
        f"{OF_ORDERS}They are not read; all other partitions are read.\n{REMEDY}"
        "Error: partition 1 of orders could not be read to the end\n"
    )
    assert tidelog("consume", "orders", "-B", "-n", 20).stderr.startswith(OF_ORDERS)
    named_one = tidelog("consume", "orders", "-B", "-p", 1, code=1).stderr
    assert named_one == f"Error: offline: partition 1 of orders. No records can be read there.\n{REMEDY}"
    assert tidelog("consume", "orders", "-B", "-e", "-p", 0).stderr == ""
    assert (
        "partitions 0-2 of lost. No records can be read there." in tidelog("consume", "lost", "-B", "-e", code=1).stderr
    )


def test_a_group_reads_the_others_or_learns_that_it_is_kept_nowhere(tidelog: Run) -> None:
    refused = tidelog("consume", "orders", "-g", LOST_GROUP, code=1).stderr
    reason = f"Group {LOST_GROUP} is stored there and therefore has no coordinator."
    line = f"offline: partition 1 of __consumer_offsets. {reason}"
    assert refused == f"Error: {line}\n{REMEDY}"
    ran = tidelog("consume", "orders", "-g", OTHER_GROUP, "-B", "-e", code=1)
    assert ran.stderr.startswith(OF_ORDERS)
    assert ran.stderr.endswith("Error: partition 1 of orders could not be read to the end\n")


def test_produce_writes_what_can_be_written(tidelog: Run) -> None:
    named_one = tidelog("produce", "inbox", "-p", 1, input="x\n", code=1).stderr
    assert named_one == f"Error: offline: partition 1 of inbox. No records can be written there.\n{REMEDY}"
    assert (
        "partitions 0-2 of lost. No records can be written there."
        in tidelog("produce", "lost", input="x", code=1).stderr
    )
    ran = tidelog("produce", "inbox", input="x\n" * 10)
    assert ran.stderr.startswith(
        "Offline: partition 1 of inbox."
        " Records whose key or line selects an offline partition cannot be written; all other records can.\n"
    )
    assert ran.stderr.endswith("10 records, 10 B, to inbox\n")

    keyed = "".join(f"key {number}:x\n" for number in range(20))
    ran = tidelog("produce", "inbox", "-K", ":", "-X", "message.timeout.ms=3000", input=keyed, code=1)
    assert re.search(r"^Error: \d+ not written: partition 1 of inbox is offline$", ran.stderr, re.MULTILINE)


def test_bench_refuses_to_measure_it(tidelog: Run) -> None:
    for command in ("produce", "consume", "latency"):
        assert tidelog("bench", command, "--topic", "orders", code=1).stderr.startswith(
            "Error: offline: partition 1 of orders. Measuring the other partitions would not measure the topic.\n"
        )


def test_groups_are_shown_as_far_as_they_can_be(tidelog: Run) -> None:
    ran = tidelog("group", "list")
    assert [line.split() for line in ran.stdout.splitlines()[1:]] == [[OTHER_GROUP, "empty", "0", lag_of(ran.stdout)]]
    assert lag_of(ran.stdout).endswith("+")
    unknown = f"{OF_ORDERS}The lag of groups in these partitions is unknown.\n{REMEDY}"
    assert ran.stderr == f"{OF_GROUPS}{REMEDY}{unknown}"
    assert tidelog("group", "list", "--names").stderr == f"{OF_GROUPS}{REMEDY}"

    ran = tidelog("group", "lag")
    assert ran.stderr == f"{OF_GROUPS}{REMEDY}{unknown}"
    ends = [line.split()[4] for line in ran.stdout.splitlines()[1:]]
    assert [end == "-" for end in ends] == [False, True, False]
    assert tidelog("group", "lag", OTHER_GROUP).stderr == unknown
    for command in ("describe", "lag"):
        refused = tidelog("group", command, LOST_GROUP, code=1).stderr
        assert refused.startswith("Error: offline: partition 1 of __consumer_offsets. Group ")


def lag_of(table: str) -> str:
    return table.splitlines()[1].split()[-1]


def test_watched_lag_says_it_above_the_table(broker: Broker) -> None:
    command = [sys.executable, "-m", "tidelog", "group", "lag", "--watch"]
    environment = os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}
    with on_a_terminal(command, environment, columns=100, lines=24) as watching:
        watching.expect("Offline: partition 1 of __consumer_offsets. Groups that are stored there are not shown.")
        watching.expect("Offline: partition 1 of orders. ")
        watching.expect("Partition")
        watching.process.send_signal(signal.SIGINT)
        assert watching.end()[0] == 130


def test_no_group_that_can_be_seen_is_not_no_group(tmp_path: Path) -> None:
    settings = SETTINGS | {"offsets.topic.num.partitions": 1}
    with Broker(data=tmp_path, settings=settings) as broker:
        fill(broker)
    shutil.rmtree(tmp_path / "__consumer_offsets-0")
    with Broker(data=tmp_path, settings=settings) as broker:
        for command in ("list", "lag"):
            ran = subprocess.run(
                [sys.executable, "-m", "tidelog", "group", command, "-b", broker.bootstrap],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=True,
            )
            assert ran.stdout == ""
            assert ran.stderr == OF_GROUPS.replace("partition 1", "partition 0") + REMEDY


def test_the_start_counts_all_partitions_and_those_that_are_offline(tmp_path: Path) -> None:
    with Broker(data=tmp_path, settings=SETTINGS) as broker:
        fill(broker)
    shutil.rmtree(tmp_path / "orders-1")
    with Broker(data=tmp_path, settings=SETTINGS, process=True) as broker:
        assert " partitions=11 offline=1 " in broker.log()


def test_many_partitions_are_said_in_short() -> None:
    offline = {f"t{number}": [0, 1, 2, 5] for number in range(7)}
    assert partitions_text(offline).startswith("partitions 0-2,5 of t0, partitions 0-2,5 of t1, ")
    assert partitions_text(offline).endswith("of t4 and 2 more topics")
