"""An order worker. It reads orders at a limited pace, settles them in the ledger, and publishes the events of the
outbox.

    python -m tidelog.demo.worker BOOTSTRAP LEDGER NAME ORDERS_PER_S

Offsets are committed after the ledger's transaction. An order may therefore be delivered twice, but it is decided
once. At its end, a worker prints the longest time that an event waited for its acknowledgement.
"""

import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tidelog.demo.ledger import Event, Ledger, now_ms
from tidelog.demo.orders import EVENTS, ORDERS, Order, place_of

GROUP = "order-workers"
BATCH = 100
"""Upper bound on the orders that are settled in one transaction."""
IDLE_S = 0.2
"""Longest wait for orders, in seconds, before the outbox is checked again."""
SESSION_MS = 2500
"""Session timeout, in milliseconds. After this time the partitions of a killed worker move to other workers. The
broker's setting group.min.session.timeout.ms must not exceed this value."""


class Worker:
    """One member of the group."""

    def __init__(self, bootstrap: str, ledger: Path, name: str, orders_per_s: float) -> None:
        self._name = name
        self._pace_s = 1 / orders_per_s
        self._ledger = Ledger(ledger)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 8,
                "fetch.wait.max.ms": 100,
            }
        )
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
        self._stopping = False
        self.longest_wait_s = 0.0

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def run(self) -> None:
        """Process orders until `stop`, then leave the group."""
        self._consumer.subscribe([ORDERS])
        while not self._stopping:
            began = time.monotonic()
            messages = self._consumer.consume(BATCH, IDLE_S)
            orders = [Order.from_json(_value(m)) for m in messages]
            if orders:
                self._ledger.settle(orders, self._name, now_ms())
            self._publish()
            if messages:
                self._commit()
                # The ledger is faster than this pace. The worker is slowed down on purpose, so that orders queue up.
                time.sleep(max(0.0, began + len(messages) * self._pace_s - time.monotonic()))
        self._publish()
        self._consumer.close()
        self._ledger.close()

    def _commit(self) -> None:
        """Commit offsets. If a rebalance has revoked partitions, this fails for their offsets, and the new owners
        read the orders again.
        """
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            print(f"offsets not committed: {error}", file=sys.stderr)

    def _publish(self) -> None:
        """Publish the events of the outbox, and mark the events that the broker has acknowledged."""
        events = self._ledger.unpublished(self._name, now_ms())
        if not events:
            return
        acknowledged: list[int] = []
        for event in events:
            self._send(event, acknowledged)
        self._producer.flush()
        self._ledger.mark_published(acknowledged)

    def _send(self, event: Event, acknowledged: list[int]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged.append(event.event_id)
                self.longest_wait_s = max(self.longest_wait_s, message.latency() or 0.0)

        headers: list[tuple[str, str | bytes | None]] = [("event-id", str(event.event_id).encode())]
        self._producer.produce(EVENTS, event.body.encode(), event.product, headers=headers, on_delivery=delivered)
        self._producer.poll(0)


def _value(message: Message) -> bytes:
    """Return the value of a record. Raises RuntimeError if the message is an error, or has no value."""
    error, value = message.error(), message.value()
    if error is not None:
        raise RuntimeError(f"orders cannot be read: {error}")
    if not isinstance(value, bytes):
        raise RuntimeError(f"an order has no value: {place_of(message)}")
    return value


if __name__ == "__main__":
    worker = Worker(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    signal.signal(signal.SIGTERM, worker.stop)
    worker.run()
    print(json.dumps({"event": worker.longest_wait_s}))
