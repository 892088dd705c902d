"""Reads one topic and writes another one, each record exactly once, with kafka-python.

pip install . kafka-python              # in a clone of the repository
tidelog start                           # in a terminal of its own
python examples/exactly_once_kafka_python.py        # writes 30 payments, books each of them once, and ends
python examples/exactly_once_kafka_python.py HOST:PORT SOURCE TARGET WORKER     # works until it is stopped

Start as many workers as SOURCE has partitions, each with a name of its own, and each in its own process. A worker may
be killed at any time: its open transaction is aborted, and another worker does the work again.

After any error the process ends. Start it again: it continues at the committed offsets.
"""

import os
import signal
import sys
import threading
import time
import uuid

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

PAYMENTS = 30
RECORDS_MAX = 500
"""Upper bound on the records of one transaction."""
POLL_MS = 1000
"""kafka-python can lose a join of the group that is answered just after a shorter poll has ended."""
STUCK_S = 45.0
"""Time limit of one transaction; the broker aborts it earlier, after the transaction timeout. The process then ends."""


class Worker:
    """Consumes records, and writes the results and the offsets of the consumed records in one transaction."""

    def __init__(self, bootstrap: str, source: str, target: str, name: str) -> None:
        group = f"{source}-to-{target}"
        self.target = target
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            # One id for each worker that runs. If a worker is started again with its id, its old process is fenced.
            transactional_id=f"{group}-{name}",
            transaction_timeout_ms=20_000,
        )
        self.producer.init_transactions()
        self.consumer = KafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,  # the transaction commits the offsets
            auto_offset_reset="earliest",
            isolation_level="read_committed",  # skip the records of aborted transactions
            session_timeout_ms=10_000,
        )

    def work(self) -> int:
        """Process some records, in one transaction. Return their number; 0 if there are none at present."""
        polled = self.consumer.poll(POLL_MS, max_records=RECORDS_MAX)
        if not polled:
            return 0
        stuck = threading.Timer(STUCK_S, os._exit, [1])
        stuck.daemon = True
        stuck.start()
        self.producer.begin_transaction()
        for records in polled.values():
            for record in records:
                self.producer.send(self.target, key=record.key, value=book(record.value))
        self.producer.send_offsets_to_transaction(
            {source: OffsetAndMetadata(records[-1].offset + 1, "", -1) for source, records in polled.items()},
            self.consumer.group_metadata(),  # refused if another worker has the partitions now (KIP-447)
        )
        self.producer.commit_transaction()
        stuck.cancel()
        return sum(map(len, polled.values()))

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


def book(payment: bytes | None) -> bytes:
    """Return the result for one record."""
    return b"booked " + (payment or b"")


def run(bootstrap: str, source: str, target: str, name: str) -> None:
    """Work until SIGTERM or Ctrl-C."""
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopping.append(received))
    worker = Worker(bootstrap, source, target, name)
    while not stopping:
        worker.work()
    worker.close()


def demonstrate(bootstrap: str) -> None:
    suffix = uuid.uuid4().hex[:8]
    source, target = f"payments-{suffix}", f"bookings-{suffix}"
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"shop-{suffix}")
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(PAYMENTS):
        producer.send(source, f"payment {number}".encode())
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(source, b"a payment that is taken back")
    producer.flush()
    producer.abort_transaction()
    producer.close()

    worker = Worker(bootstrap, source, target, "1")
    deadline = time.monotonic() + 60
    booked = 0
    while booked < PAYMENTS and time.monotonic() < deadline:
        booked += worker.work()
    worker.close()

    reader = KafkaConsumer(
        target,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=30_000,
    )
    values = [record.value for _, record in zip(range(PAYMENTS), reader, strict=False)]
    reader.close()
    print(f"{len(values)} bookings of {len(set(values))} payments, the first: {values[0].decode()}")


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run(*sys.argv[1:])
    else:
        demonstrate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
