"""The checker itself reads the topics, the ledger, the files of the readers and the Parquet files, and compares them.
It does not use the numbers that the other parts of the demo print.

python -m tidelog.demo.checker BOOTSTRAP DIRECTORY

The result is JSON on stdout. The exit code is 1 if the sources do not agree.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from tidelog.demo.ledger import ACCEPTED, OUTCOMES, Ledger
from tidelog.demo.orders import EVENTS, ORDERS, Order
from tidelog.demo.readers import READERS, event_id, read_events_seen

BATCH_S = 0.2
"""Longest time, in seconds, for which one batch of records is collected."""
SILENCE_S = 10
"""If no record of a topic arrives for this time, in seconds, the topic is considered unreadable."""


class Evidence(NamedTuple):
    """The data of each source."""

    orders: list[Order]
    outcomes: dict[str, tuple[str, int, str]]
    """(product, quantity, outcome) by order id, from the ledger."""
    stock: dict[str, tuple[int, int]]
    """(units at the start, units now) by product, from the ledger."""
    events: list[tuple[int, dict[str, Any]]]
    """(event id, event) pairs. An event that was published again occurs again in the list."""
    sold: dict[str, int] | None
    """Units by product, from Parquet. None if no pipeline ran."""
    readers: dict[str, int]
    """Number of distinct events that each reader group has processed."""


class Verdict(NamedTuple):
    """The result. `sent` is the number of distinct orders in the topic. `problems` is empty if all sources agree."""

    sent: int
    counts: dict[str, int]
    events_published_again: int
    oversold: int
    problems: list[str]


def judge(evidence: Evidence) -> Verdict:
    """Compare the sources. No I/O."""
    problems: list[str] = []
    sent = Counter(order.order_id for order in evidence.orders)
    counts = Counter(outcome for _, _, outcome in evidence.outcomes.values())
    _report(problems, "orders in the topic more than once", [i for i, n in sent.items() if n > 1])
    _report(problems, "orders without an outcome", [i for i in sent if i not in evidence.outcomes])
    _report(problems, "outcomes of orders that were not sent", [i for i in evidence.outcomes if i not in sent])
    distinct = dict(evidence.events)
    event_counts = Counter(event["order_id"] for event in distinct.values())
    _report(problems, "orders with more than one event", [i for i, n in event_counts.items() if n > 1])
    _report(problems, "outcomes without an event", [i for i in evidence.outcomes if i not in event_counts])
    _report(
        problems,
        "events that contradict the ledger",
        [
            event["order_id"]
            for event in distinct.values()
            if evidence.outcomes.get(event["order_id"]) != (event["product"], event["quantity"], event["outcome"])
        ],
    )
    oversold = _check_sums(problems, evidence, distinct)
    for name, seen in evidence.readers.items():
        if seen != len(distinct):
            problems.append(f"group {name} has seen {seen} events of {len(distinct)}")
    return Verdict(
        sent=len(sent),
        counts={outcome: counts.get(outcome, 0) for outcome in OUTCOMES},
        events_published_again=len(evidence.events) - len(distinct),
        oversold=oversold,
        problems=problems,
    )


def _check_sums(problems: list[str], evidence: Evidence, distinct: dict[int, dict[str, Any]]) -> int:
    """Check that the accepted units of each product agree in all sources. Return the units sold beyond the stock."""
    accepted: Counter[str] = Counter()
    for product, quantity, outcome in evidence.outcomes.values():
        if outcome == ACCEPTED:
            accepted[product] += quantity
    units_in_events: Counter[str] = Counter()
    for event in distinct.values():
        if event["outcome"] == ACCEPTED:
            units_in_events[event["product"]] += event["quantity"]
    taken_units = {product: opening - units for product, (opening, units) in evidence.stock.items() if opening != units}
    _compare_sums(problems, "the events", units_in_events, accepted)
    _compare_sums(problems, "the stock", taken_units, accepted)
    if evidence.sold is not None:
        _compare_sums(problems, "Parquet", evidence.sold, accepted)
    oversold = sum(max(0, units - evidence.stock.get(p, (0, 0))[0]) for p, units in accepted.items())
    if oversold:
        problems.append(f"{oversold} units were sold beyond the stock")
    return oversold


def _compare_sums(problems: list[str], source: str, sums: dict[str, int], accepted: dict[str, int]) -> None:
    differing = [p for p in {**sums, **accepted} if sums.get(p, 0) != accepted.get(p, 0)]
    _report(problems, f"products for which {source} and the ledger have different sums", differing)


def _report(problems: list[str], description: str, ids: list[str]) -> None:
    if ids:
        problems.append(f"{len(ids)} {description}, for example {', '.join(sorted(ids)[:3])}")


# Gathering


def gather(bootstrap: str, directory: Path) -> Evidence:
    ledger = Ledger(directory / "ledger.sqlite")
    try:
        outcomes, stock = ledger.outcomes(), ledger.stock()
    finally:
        ledger.close()
    return Evidence(
        orders=[Order.from_json(_bytes(m)) for m in read_topic(bootstrap, ORDERS)],
        outcomes=outcomes,
        stock=stock,
        events=[(event_id(m), json.loads(_bytes(m))) for m in read_topic(bootstrap, EVENTS)],
        sold=_units_in_parquet(directory / "sales"),
        readers={name: read_events_seen(directory / f"{name}.sqlite")[0] for name in READERS},
    )


def _units_in_parquet(sales: Path) -> dict[str, int] | None:
    if not sales.exists():
        return None
    import pyarrow.dataset as dataset

    table = dataset.dataset(sales, partitioning="hive").to_table(columns=["product", "units"])
    sold: Counter[str] = Counter()
    for product, units in zip(*(table.column(c).to_pylist() for c in ("product", "units")), strict=True):
        sold[product] += units
    return dict(sold)


def read_topic(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yield every record that is in the topic now. Raises RuntimeError if the topic cannot be read."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10) for p in partitions}
        remaining = {p: high for p, (low, high) in ends.items() if high > low}
        consumer.assign([TopicPartition(topic, p, ends[p][0]) for p in remaining])
        last_arrival = time.monotonic()
        while remaining:
            messages = consumer.consume(10_000, BATCH_S)
            if messages:
                last_arrival = time.monotonic()
            elif time.monotonic() - last_arrival > SILENCE_S:
                raise RuntimeError(f"{topic} cannot be read: no record arrived in {SILENCE_S} s")
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(f"{topic} cannot be read: {message.error()}")
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset + 1 >= remaining.get(partition, 0):
                    remaining.pop(partition, None)
                yield message
    finally:
        consumer.close()


def _bytes(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def main(bootstrap: str, directory: Path) -> int:
    verdict = judge(gather(bootstrap, directory))
    print(json.dumps(verdict._asdict()))
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
