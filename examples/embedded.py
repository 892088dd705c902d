"""An application that carries its own broker: events survive a restart, and there is no middleware to operate.

    python examples/embedded.py DIRECTORY        run it twice: it goes on counting

The events are in DIRECTORY, in Kafka's files; another program can read them while this one runs.
"""

import sys
import time
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.testing import Broker

SETTINGS = {"durability": "fsync", "offsets.topic.num.partitions": 50}
"""An acknowledged event is on the disk. The second is the default of `tidelog start`, which may serve DIRECTORY too."""


class EventLog:
    """The application's own, small view of one topic."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def close(self) -> None:
        """Before the broker stops: a producer that outlives it tries to connect again and complains."""
        self._producer.close()

    def record(self, event: str) -> None:
        """Returns once the event is on the disk."""
        self._producer.produce("events", value=event, partition=0)
        if self._producer.flush(10):
            raise TimeoutError("the event was not acknowledged")

    def replay(self) -> list[str]:
        """Every event there ever was, in order."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "replay", "enable.auto.commit": False})
        partition = TopicPartition("events", 0, 0)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition, timeout=10)
        events = []
        while len(events) < end:
            message = consumer.poll(10)
            if message is None or message.error():
                raise TimeoutError(f"{len(events)} of {end} events came")
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
