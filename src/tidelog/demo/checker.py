"""The checker: believes nobody. Reads topics, ledger and Parquet itself and compares them.

python -m tidelog.demo.checker BOOTSTRAP DIRECTORY    JSON on stdout; exit code 1 if an account does not balance
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from tidelog.demo.ledger import ACCEPTED, OUTCOMES, Ledger
from tidelog.demo.orders import EVENTS, ORDERS, Order
from tidelog.demo.readers import READERS, event_id, read_events_seen


class Evidence(NamedTuple):
    """What each witness says."""

    orders: list[Order]
    outcomes: dict[str, tuple[str, int, str]]
    """From the ledger: order id -> (product, quantity, outcome)."""
    stock: dict[str, tuple[int, int]]
    """From the ledger: product -> (units at the start, units now)."""
    events: list[tuple[int, dict[str, Any]]]
    """(event id, event), repeats among them."""
    sold: dict[str, int] | None
    """From Parquet: product -> units. None: no pipeline ran."""
    readers: dict[str, int]
    """Distinct events that each group has seen."""


class Verdict(NamedTuple):
    """`problems` is empty when every account balances."""

    sent: int
    counts: dict[str, int]
    events_published_again: int
    oversold: int
    problems: list[str]


def judge(evidence: Evidence) -> Verdict:
    """Compare the witnesses. Pure."""
    problems: list[str] = []
    sent = Counter(order.order_id for order in evidence.orders)
    counts = Counter(outcome for _, _, outcome in evidence.outcomes.values())
    _differ(problems, "orders in the topic more than once", [i for i, n in sent.items() if n > 1])
    _differ(problems, "orders without an outcome", [i for i in sent if i not in evidence.outcomes])
    _differ(problems, "outcomes of orders that nobody sent", [i for i in evidence.outcomes if i not in sent])
    distinct = dict(evidence.events)
    told = Counter(event["order_id"] for event in distinct.values())
    _differ(problems, "orders that two events tell of", [i for i, n in told.items() if n > 1])
    _differ(problems, "outcomes that no event tells of", [i for i in evidence.outcomes if i not in told])
    _differ(
        problems,
        "events that say something else than the ledger",
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
    """Units accepted by product must be the same for everyone; returns the units sold beyond the stock."""
    accepted: Counter[str] = Counter()
    for product, quantity, outcome in evidence.outcomes.values():
        if outcome == ACCEPTED:
            accepted[product] += quantity
    told: Counter[str] = Counter()
    for event in distinct.values():
        if event["outcome"] == ACCEPTED:
            told[event["product"]] += event["quantity"]
    gone = {product: opening - units for product, (opening, units) in evidence.stock.items() if opening != units}
    _same_sums(problems, "the events", told, accepted)
    _same_sums(problems, "the stock", gone, accepted)
    if evidence.sold is not None:
        _same_sums(problems, "Parquet", evidence.sold, accepted)
    oversold = sum(max(0, units - evidence.stock.get(p, (0, 0))[0]) for p, units in accepted.items())
    if oversold:
        problems.append(f"{oversold} units were sold that were not there")
    return oversold


def _same_sums(problems: list[str], who: str, said: dict[str, int], accepted: dict[str, int]) -> None:
    wrong = [p for p in {**said, **accepted} if said.get(p, 0) != accepted.get(p, 0)]
    _differ(problems, f"products of which {who} and the ledger give different sums", wrong)


def _differ(problems: list[str], what: str, ids: list[str]) -> None:
    if ids:
        problems.append(f"{len(ids)} {what}, for example {', '.join(sorted(ids)[:3])}")


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
        sold=_sold(directory / "sales"),
        readers={name: read_events_seen(directory / f"{name}.sqlite")[0] for name in READERS},
    )


def _sold(sales: Path) -> dict[str, int] | None:
    if not sales.exists():
        return None
    import pyarrow.dataset as dataset

    table = dataset.dataset(sales, partitioning="hive").to_table(columns=["product", "units"])
    sold: Counter[str] = Counter()
    for product, units in zip(*(table.column(c).to_pylist() for c in ("product", "units")), strict=True):
        sold[product] += units
    return dict(sold)


def read_topic(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every record of the topic, as it stands now. Raises RuntimeError when one cannot be read."""
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
        left = {p: high for p, (low, high) in ends.items() if high > low}
        consumer.assign([TopicPartition(topic, p, ends[p][0]) for p in left])
        while left:
            messages: list[Message | None] = list(consumer.consume(10_000, 10.0)) or [None]
            for message in messages:
                if message is None or message.error() is not None:
                    raise RuntimeError(
                        f"{topic} cannot be read: {message.error() if message else 'nothing came in 10 s'}"
                    )
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset + 1 >= left.get(partition, 0):
                    left.pop(partition, None)
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
