"""A topic that one test writes and reads with an ordinary client."""

import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


class Topic:
    """A topic of a test's own, with two partitions. Its records may be old, so retention keeps them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"spark-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topic = NewTopic(self.name, 2, config={"retention.ms": "-1"})
        admin.create_topics([topic])[self.name].result(30)

    def send(self, values: range, codec: str = "none", **more: Any) -> None:
        """Value n to partition n % 2, acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec})
        for n in values:
            producer.produce(self.name, value=str(n), partition=n % 2, **more)
        assert producer.flush(30) == 0

    def received(self, count: int) -> list[Any]:
        """The first `count` messages that an ordinary client finds."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.name, n, 0) for n in range(2)])
        messages: list[Any] = []
        while len(messages) < count:
            some = consumer.consume(count - len(messages), 30)
            assert some, f"{len(messages)} of {count} messages came"
            messages += some
        consumer.close()
        return messages
