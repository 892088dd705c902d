"""How a service's own code is tested against a real broker: the fixture `tidelog_broker` comes with Tidelog.

pip install . pytest                    # in a clone of the repository
pytest examples/test_with_fixture.py
"""

import json
from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, Producer

from tidelog.testing import Broker


class Mailbox:
    """The code under test: it files each message under its customer, and a repeated one only once."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "mailbox", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe(["mail"])
        self._seen: set[str] = set()
        self.letters: dict[str, list[str]] = {}

    def take(self, count: int) -> None:
        for _ in range(count):
            message = self._consumer.poll(10)
            assert message is not None, "nothing came"
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


def test_a_letter_that_is_sent_twice_is_filed_once(tidelog_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": tidelog_broker.bootstrap})
    for text, number in (("hello", 1), ("hello", 1), ("bye", 2)):
        producer.produce("mail", key="ada", value=json.dumps({"id": f"m{number}", "to": "ada", "text": text}))
    assert producer.flush(10) == 0
    mailbox = Mailbox(tidelog_broker.bootstrap)
    mailbox.take(3)
    mailbox.close()
    assert mailbox.letters == {"ada": ["hello", "bye"]}


def test_every_test_has_a_broker_of_its_own(tidelog_broker: Broker) -> None:
    admin = Producer({"bootstrap.servers": tidelog_broker.bootstrap})
    assert "mail" not in admin.list_topics(timeout=10).topics
