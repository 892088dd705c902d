"""Each transcript, played on virtual time, gives the replies that it says. Kafka gave the same: `against_kafka.py`.

With TIDELOG_ACCEPT=1 in the environment the replies are written into the files, to be reviewed as text.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversation import API, TOPICS, Conversation, Fields, settings_of
from message_fields import request_of

from group_harness.invariants import check_core
from group_harness.memory import EPOCH_MS
from group_harness.virtual_broker import VirtualBroker, topic_id
from tidelog.wire.records import batches_in, decode_records

HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*.txt"))


class OnVirtualTime:
    """Tidelog's handlers and coordinators, in a loop whose time is virtual."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._broker = VirtualBroker(settings, topics=TOPICS)
        self._broker.start_coordinators()
        self._broker.loop.call_soon(self._broker.groups.start)
        self._broker.settle()
        self._began = self._broker.loop.time()

    def topic_id(self, name: str) -> bytes:
        return topic_id(name)

    def send(self, client: str, api: str, version: int, fields: Fields, reply: Callable[[Any], None]) -> None:
        sent = self._broker.send(api, version, request_of(api, fields), client)
        if sent.answered:
            reply(sent.response)
        else:
            sent.on_answer = reply

    def settle(self, complete: Callable[[], bool]) -> None:
        self._broker.settle()

    def advance_to(self, time_ms: int) -> None:
        self._broker.advance(self._began + time_ms / 1000 - self._broker.loop.time())

    def elapsed_ms(self) -> int:
        return round((self._broker.loop.time() - self._began) * 1000)

    def began_wall_ms(self) -> int:
        return EPOCH_MS + round(self._began * 1000)

    def records(self, group_id: str) -> list[tuple[bytes, bytes | None]]:
        found = []
        for batch in batches_in(bytes(self._broker.offsets_log(group_id).log.file.data)):
            found += [(record.key or b"", record.value) for record in decode_records(batch.buffer, batch.position)]
        return found

    def check(self) -> None:
        for coordinator in self._broker.groups.host.coordinators():
            check_core(coordinator.core)
        self._broker.groups.close()
        self._broker.settle()


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_replies_are_those_of_the_transcript(path: Path) -> None:
    expected = path.read_text()
    broker = OnVirtualTime(settings_of(expected))
    happened = Conversation(broker).run(expected)
    broker.check()
    if os.environ.get("TIDELOG_ACCEPT"):
        path.write_text(happened)
    assert happened == expected


def test_there_are_transcripts_for_every_group_api() -> None:
    said = "\n".join(path.read_text() for path in TRANSCRIPTS)
    assert all(f" {verb} " in said for verb in API)


def test_a_wrong_reply_is_noticed() -> None:
    broker = OnVirtualTime({})
    happened = Conversation(broker).run("at 0\nA heartbeat g generation=1 member=-\n    0 A heartbeat NONE\n")
    assert "A heartbeat UNKNOWN_MEMBER_ID" in happened
    assert "A heartbeat NONE" not in happened
