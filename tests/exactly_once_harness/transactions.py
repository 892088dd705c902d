"""Wait for the ends of transactions."""

import time

from tidelog.client.blocking import Client
from tidelog.client.operations import LATEST, READ_COMMITTED
from tidelog.model.ids import TopicPartition


def stable_ends(bootstrap: str, topic: str, limit_s: float = 30.0) -> dict[TopicPartition, int]:
    """Return the end of each partition as soon as no transaction is open in it. A coordinator answers the request to
    end a transaction before it writes the markers.

    Raises AssertionError if a transaction is still open after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    with Client(bootstrap) as client:
        partitions = [TopicPartition(topic, number) for number in client.topics([topic])[topic].leaders]
        while True:
            stable = client.list_offsets(dict.fromkeys(partitions, LATEST), READ_COMMITTED)
            ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
            is_open = [tp for tp in partitions if stable[tp].offset != ends[tp].offset]
            if not is_open:
                return {tp: ends[tp].offset for tp in partitions}
            assert time.monotonic() < deadline, f"{is_open[0]}: a transaction is open"
            time.sleep(0.02)
