"""Write the events of data/ to the topics that cdc.py reads: `python load_events.py [HOST:PORT]`."""

import sys
from pathlib import Path

from confluent_kafka import Producer

DATA = Path(__file__).resolve().parents[1] / "data"
FILES = {
    "cdc-debezium": ["cdc_debezium.jsonl", "cdc_debezium_later.jsonl"],
    "cdc-canal-products": ["cdc_canal_products.jsonl"],
    "cdc-canal-t1": ["cdc_canal_t1.jsonl"],
    "cdc-maxwell": ["cdc_maxwell.jsonl"],
}

if __name__ == "__main__":
    bootstrap = (sys.argv[1:] or ["127.0.0.1:9092"])[0]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for topic, names in FILES.items():
        for name in names:
            for line in (DATA / name).read_bytes().splitlines():
                producer.produce(topic, None if line == b"null" else line)  # null: a tombstone, without a value
    if producer.flush(60) != 0:
        raise SystemExit(f"{bootstrap}: records were not acknowledged within 60 s; is the broker running?")
