"""An application with an embedded broker: events survive a restart, and there is no middleware to operate.

    python examples/embedded.py DIRECTORY        run it twice: it continues to count

The events are in DIRECTORY, in Kafka's files; another program can read them while this one runs.
"""

import sys
import time
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.testing import Broker

SETTINGS = {"durability": "fsync", "offsets.topic.num.partitions": 50}
"""With durability=fsync an acknowledged event is on the disk. The second setting is the default of `tidelog start`, so
that `tidelog start` can serve DIRECTORY too."""


class EventLog:
    """The application's interface to one topic."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def close(self) -> None:
        """Close the producer. Call this before the broker stops: otherwise the producer reconnects and logs errors."""
        self._producer.close()

    def record(self, event: str) -> None:
        """Write an event, and return when it is on the disk."""
        self._producer.produce("events", value=event, partition=0)
        if self._producer.flush(10):
            raise TimeoutError("the event was not acknowledged")

    def replay(self) -> list[str]:
        """Return all events, in order."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "replay", "enable.auto.commit": False})
        partition = TopicPartition("events", 0, 0)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition, timeout=10)
        events = []
        while len(events) < end:
            message = consumer.poll(10)
            if message is None or message.error():
                raise TimeoutError(f"{len(events)} of {end} events arrived")
            events.append((message.value() or b"").decode())
        consumer.close()
        return events


def main(directory: Path) -> None:
    with Broker(data=directory, settings=SETTINGS) as broker, closing(EventLog(broker.bootstrap)) as log:
        log.record(f"started on {time.strftime('%Y-%m-%d at %H:%M:%S')}")
        *before, now = log.replay()
        print(
            f"this is start number {len(before) + 1}; it {now}, the one before {before[-1] if before else 'was none'}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "events"))
