"""Administration and replay with kafka-python: a topic with settings, records, and a read from a point in time.

pip install . kafka-python              # in a clone of the repository
tidelog start                           # in a terminal of its own
python examples/kafka_python_client.py [HOST:PORT]
"""

import sys
import uuid

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

HOUR_MS = 3_600_000
FIRST_MS = 1_700_000_000_000


def main(bootstrap: str) -> None:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name, 1, 1, topic_configs={"retention.ms": "-1"})])

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for hour in range(24):
        producer.send(name, value=b"hour %d" % hour, timestamp_ms=FIRST_MS + hour * HOUR_MS)
    producer.flush()
    producer.close()

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=10_000)
    partition = TopicPartition(name, 0)
    consumer.assign([partition])
    found = consumer.offsets_for_times({partition: FIRST_MS + 21 * HOUR_MS})[partition]
    consumer.seek(partition, found.offset)
    for record in consumer:
        print(f"offset {record.offset}: {record.value.decode()}")
        if record.offset == 23:
            break
    consumer.close()
    admin.delete_topics([name])
    admin.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
