"""The gateway replays the invoice lines as orders, in bursts that are much faster than the workers.

python -m tidelog.demo.gateway BOOTSTRAP EXPIRY_MS BURSTS PAUSE_S
"""

import sys
import time

from confluent_kafka import KafkaError, Message, Producer

from tidelog.demo.ledger import now_ms
from tidelog.demo.orders import ORDERS, read_orders


def replay(bootstrap: str, *, expiry_ms: int, bursts: int, pause_s: float) -> int:
    """Send every order. Return the number of acknowledged orders. Raises RuntimeError if the broker rejects one."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"}
    )
    acknowledged = 0
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            errors.append(error)

    orders, _ = read_orders()
    size = -(-len(orders) // bursts)
    for start in range(0, len(orders), size):
        for order in orders[start : start + size]:
            sent_ms = now_ms()
            order = order._replace(sent_ms=sent_ms, expires_ms=sent_ms + expiry_ms)
            producer.produce(ORDERS, order.to_json(), order.product, on_delivery=delivered)
            producer.poll(0)
        producer.flush()
        if start + size < len(orders):
            time.sleep(pause_s)
    if errors:
        raise RuntimeError(f"{len(errors)} orders were rejected: {errors[0]}")
    return acknowledged


if __name__ == "__main__":
    print(replay(sys.argv[1], expiry_ms=int(sys.argv[2]), bursts=int(sys.argv[3]), pause_s=float(sys.argv[4])))
