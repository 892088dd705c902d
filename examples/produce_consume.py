"""Writes ten orders and reads them back as a consumer group, with confluent-kafka.

tidelog start                           # in a terminal of its own
python examples/produce_consume.py [HOST:PORT]
"""

import sys
import uuid

from confluent_kafka import Consumer, KafkaError, Message, Producer

ORDERS = 10


def delivered(error: KafkaError | None, message: Message) -> None:
    """Called once for each record, when the broker has stored it or has failed to."""
    if error is not None:
        raise SystemExit(f"not delivered: {error}")
    print(f"order {message.key()!r} is record {message.offset()} of partition {message.partition()}")


def main(bootstrap: str) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(ORDERS):
        producer.produce(topic, key=str(number), value=f"order {number}", on_delivery=delivered)
    producer.flush()

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    read = 0
    while read < ORDERS:
        message = consumer.poll(10)
        if message is None or message.error():
            raise SystemExit(f"{read} of {ORDERS} orders arrived: {message and message.error()}")
        read += 1
        consumer.commit(message, asynchronous=False)  # commit after the work: at least once
    consumer.close()
    print(f"read and committed {read} orders")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
