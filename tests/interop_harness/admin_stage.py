"""A topic with records, a group with a commit, and the check of a call's result against the table of methods."""

import re
import uuid
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop_harness.admin_calls import REFUSED, Method, missing

RECORDS = 5


class Stage(NamedTuple):
    bootstrap: str
    topic: str
    """A topic of two partitions; the first has RECORDS records of one idempotent producer."""
    group: str
    """A group without members that has committed offset 2 of the first partition."""
    is_tidelog: bool

    @staticmethod
    def name(word: str) -> str:
        return f"{word}-{uuid.uuid4().hex[:10]}"


def set_up(bootstrap: str, *, is_tidelog: bool) -> Stage:
    stage = Stage(bootstrap, Stage.name("admin"), Stage.name("group"), is_tidelog)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(stage.topic, 2, 1)])[stage.topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(stage.topic, str(number), partition=0)
    assert producer.flush(30) == 0
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": stage.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([stage.topic])
    messages = consumer.consume(2, 30)
    assert [message.value() for message in messages] == [b"0", b"1"]
    consumer.commit(message=messages[-1], asynchronous=False)
    consumer.close()
    return stage


def check(method: Method, stage: Stage, call: Callable[[], None]) -> None:
    """Call the method, and check that its result agrees with its row in the table of methods."""
    if stage.is_tidelog and missing(method) and method.why_not_called:
        return
    expected = method.kafka
    if stage.is_tidelog:
        expected = REFUSED if missing(method) else ""
    if not expected:
        call()
        return
    try:
        call()
    except Exception as error:
        error_text = f"{type(error).__name__} {error}"
        assert re.search(expected, error_text), error_text
    else:
        raise AssertionError(f"the call works, but {expected!r} was expected: the table of methods is wrong")
