"""The gateway replays the invoice lines as orders, in bursts that are much faster than the workers.

python -m tidelog.demo.gateway BOOTSTRAP EXPIRY_MS BURSTS PAUSE_S
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from tidelog.cli.tables import counted
from tidelog.demo.ledger import now_ms
from tidelog.demo.orders import ORDERS, read_orders


def replay(bootstrap: str, *, expiry_ms: int, bursts: int, pause_s: float) -> float:
    """Send every order. Return the longest time, in seconds, for which an order waited for its acknowledgement.

    Raises RuntimeError if an order is not acknowledged.
    """
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"}
    )
    longest_wait_s = 0.0
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal longest_wait_s
        if error is None:
            longest_wait_s = max(longest_wait_s, message.latency() or 0.0)
        else:
            errors.append(error)

    orders, _ = read_orders()
    burst_size = -(-len(orders) // bursts)  # rounded up
    for start in range(0, len(orders), burst_size):
        for order in orders[start : start + burst_size]:
            sent_ms = now_ms()
            order = order._replace(sent_ms=sent_ms, expires_ms=sent_ms + expiry_ms)
            producer.produce(ORDERS, order.to_json(), order.product, on_delivery=delivered)
            producer.poll(0)
        producer.flush()
        if start + burst_size < len(orders):
            time.sleep(pause_s)
    if errors:
        raise RuntimeError(not_acknowledged(errors))
    return longest_wait_s


def not_acknowledged(errors: Sequence[object]) -> str:
    """Return the message for orders that were not acknowledged. It names each error once, with the number of
    orders that failed with it.
    """
    kinds = Counter(map(str, errors))
    reasons = "; ".join(f"{counted(number, 'order')}: {text}" for text, number in kinds.items())
    return f"orders were not acknowledged: {reasons}"


if __name__ == "__main__":
    longest = replay(sys.argv[1], expiry_ms=int(sys.argv[2]), bursts=int(sys.argv[3]), pause_s=float(sys.argv[4]))
    print(json.dumps({"order": longest}))
