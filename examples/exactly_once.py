"""Reads one topic and writes another one, each record exactly once, with confluent-kafka.

tidelog start                           # in a terminal of its own
python examples/exactly_once.py         # writes 30 payments, books each of them once, and ends
python examples/exactly_once.py HOST:PORT SOURCE TARGET WORKER      # works until it is stopped

Start as many workers as SOURCE has partitions, each with a name of its own. A worker may be killed at any time: its
open transaction is aborted, and another worker does the work again.
"""

import os
import signal
import sys
import threading
import time
import uuid

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

PAYMENTS = 30
RECORDS_MAX = 500
"""Upper bound on the records of one transaction."""
ANSWER_S = 30.0
STUCK_S = 45.0
"""Time limit of one transaction; the broker aborts it earlier, after transaction.timeout.ms. The process then ends, and
must be started again: librdkafka's `send_offsets_to_transaction` can wait for ever (its issue 5456)."""


class Worker:
    """Consumes records, and writes the results and the offsets of the consumed records in one transaction."""

    def __init__(self, bootstrap: str, source: str, target: str, name: str) -> None:
        group = f"{source}-to-{target}"
        self.target = target
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,  # the transaction commits the offsets
                "isolation.level": "read_committed",  # skip the records of aborted transactions
                "session.timeout.ms": 10_000,
            }
        )
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                # One id for each worker that runs. If a worker is started again with its id, its old process is fenced.
                "transactional.id": f"{group}-{name}",
                "transaction.timeout.ms": 20_000,
            }
        )
        self.producer.init_transactions(ANSWER_S)
        self.consumer.subscribe([source])

    def work(self) -> int:
        """Process some records, in one transaction. Return their number; 0 if there are none at present."""
        consumed = self.consumer.consume(RECORDS_MAX, timeout=0.5)
        records = [record for record in consumed if record.error() is None]
        if not records:
            return 0
        offsets = {(record.topic(), record.partition()): record.offset() + 1 for record in records}
        stuck = threading.Timer(STUCK_S, os._exit, [1])
        stuck.start()
        self.producer.begin_transaction()
        try:
            for record in records:
                self.producer.produce(self.target, key=record.key(), value=book(record))
            self.producer.send_offsets_to_transaction(
                [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()],
                self.consumer.consumer_group_metadata(),  # refused if another worker has the partitions now (KIP-447)
                ANSWER_S,
            )
            commit(self.producer)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise  # fenced by a newer process with the same transactional id, or another fatal error
            self.producer.abort_transaction(ANSWER_S)
            self.rewind()
            return 0
        finally:
            stuck.cancel()
        return len(records)

    def rewind(self) -> None:
        """Continue at the committed offsets: the records of the aborted transaction are consumed again."""
        for partition in self.consumer.committed(self.consumer.assignment(), ANSWER_S):
            if partition.offset < 0:  # nothing is committed yet
                partition.offset, _ = self.consumer.get_watermark_offsets(partition, ANSWER_S)
            self.consumer.seek(partition)

    def close(self) -> None:
        self.consumer.close()


def book(payment: Message) -> bytes:
    """Return the result for one record."""
    return b"booked " + (payment.value() or b"")


def commit(producer: Producer) -> None:
    """Commit the transaction. A commit whose answer is late or lost is repeated: it has the same result."""
    while True:
        try:
            producer.commit_transaction(ANSWER_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


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
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"shop-{suffix}"})
    producer.init_transactions(ANSWER_S)
    producer.begin_transaction()
    for number in range(PAYMENTS):
        producer.produce(source, key=str(number % 3), value=f"payment {number}")
    commit(producer)
    producer.begin_transaction()
    producer.produce(source, value="a payment that is taken back")
    producer.abort_transaction(ANSWER_S)

    worker = Worker(bootstrap, source, target, "1")
    deadline = time.monotonic() + 60
    booked = 0
    while booked < PAYMENTS and time.monotonic() < deadline:
        booked += worker.work()
    worker.close()

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": target, "isolation.level": "read_committed"})
    partitions = reader.list_topics(target, ANSWER_S).topics[target].partitions
    reader.assign([TopicPartition(target, number, 0) for number in partitions])
    values = [record.value() for record in reader.consume(PAYMENTS, ANSWER_S)]
    reader.close()
    print(f"{len(values)} bookings of {len(set(values))} payments, the first: {values[0].decode()}")


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run(*sys.argv[1:])
    else:
        demonstrate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
