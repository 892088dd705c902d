"""Tests a service's own code with a real broker: the pytest fixture `tidelog_broker` is part of Tidelog.

pip install . pytest                    # in a clone of the repository
pytest examples/test_with_fixture.py
"""

import json
from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, Producer

from tidelog.testing import Broker


class Mailbox:
    """The code under test: it stores each message by customer, and a repeated message only once."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "mailbox", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe(["mail"])
        self._seen: set[str] = set()
        self.letters: dict[str, list[str]] = {}

    def receive(self, count: int) -> None:
        for _ in range(count):
            message = self._consumer.poll(10)
            assert message is not None, "no message arrived"
            assert message.error() is None, message.error()
            letter = json.loads(message.value() or b"")
            if letter["id"] not in self._seen:
                self._seen.add(letter["id"])
                self.letters.setdefault(letter["to"], []).append(letter["text"])

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="session")
def tidelog_settings() -> Mapping[str, object]:
    return {"num.partitions": 2}


def test_a_letter_that_is_sent_twice_is_stored_once(tidelog_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": tidelog_broker.bootstrap})
    for text, number in (("hello", 1), ("hello", 1), ("bye", 2)):
        producer.produce("mail", key="ada", value=json.dumps({"id": f"m{number}", "to": "ada", "text": text}))
    assert producer.flush(10) == 0
    mailbox = Mailbox(tidelog_broker.bootstrap)
    mailbox.receive(3)
    mailbox.close()
    assert mailbox.letters == {"ada": ["hello", "bye"]}


def test_every_test_has_a_broker_of_its_own(tidelog_broker: Broker) -> None:
    admin = Producer({"bootstrap.servers": tidelog_broker.bootstrap})
    assert "mail" not in admin.list_topics(timeout=10).topics
