"""Three consumer groups read the events, each for its own purpose. Each group detects repeated events by their ids.

    python -m tidelog.demo.readers BOOTSTRAP NAME FILE

A reader stores the ids of the events in a table, in the same transaction as the result of its work. Therefore it may
be killed at any point: an event that is delivered again does not change the result.
"""

import json
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message

from tidelog.demo.orders import EVENTS, place_of

LARGE_PENCE = 50_000
"""The reader `risk` counts accepted orders of at least this value."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (event_id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS repeats (count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

Work = Callable[[dict[str, Any]], str]
"""A function that returns a key of the table `results` for an event. The value of this key is increased by one.
An empty key means that no value is increased."""


def message_to_customer(event: dict[str, Any]) -> str:
    texts = {"accepted": "is on its way", "sold out": "is sold out", "expired": "could not be served in time"}
    return f"{event['quantity']} x {event['description']} {texts[event['outcome']]}"


def risk(event: dict[str, Any]) -> str:
    large = event["quantity"] * event["price_pence"] >= LARGE_PENCE
    return f"customer {event['customer']}" if large and event["outcome"] == "accepted" else ""


def statistics(event: dict[str, Any]) -> str:
    return f"{event['country']}: {event['outcome']}"


READERS: dict[str, Work] = {"messages": message_to_customer, "risk": risk, "statistics": statistics}


class Reader:
    def __init__(self, bootstrap: str, name: str, file: Path) -> None:
        self._work = READERS[name]
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(SCHEMA)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._stopping = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def run(self) -> None:
        self._consumer.subscribe([EVENTS])
        while not self._stopping:
            messages = self._consumer.consume(1000, 0.5)
            if messages:
                self._process(messages)
                self._commit()
        self._consumer.close()
        self._db.close()

    def _commit(self) -> None:
        """Commit offsets. If this fails, the events may be delivered again. Then `_process` recognises their ids."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            print(f"offsets not committed: {error}", file=sys.stderr)

    def _process(self, messages: list[Message]) -> None:
        self._db.execute("BEGIN")
        for message in messages:
            value = message.value()
            if message.error() is not None:
                raise RuntimeError(f"events cannot be read: {message.error()}")
            if not isinstance(value, bytes):
                raise RuntimeError(f"an event has no value: {place_of(message)}")
            if not self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (event_id(message),)).rowcount:
                self._db.execute("INSERT INTO repeats VALUES (1)")
                continue
            key = self._work(json.loads(value))
            if key:
                self._db.execute(
                    "INSERT INTO results VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET value = value + 1", (key,)
                )
        self._db.execute("COMMIT")


def event_id(message: Message) -> int:
    """Return the id of an event. Raises KeyError if the record is not an event of the demonstration."""
    headers: Any = message.headers()
    return int(dict(headers or [])["event-id"])


def read_events_seen(file: Path) -> tuple[int, int]:
    """Return the numbers of distinct events and of repeats that a reader has processed."""
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        (seen,), (repeats,) = (db.execute(f"SELECT count(*) FROM {t}").fetchone() for t in ("seen", "repeats"))  # noqa: S608
    finally:
        db.close()
    return seen, repeats


if __name__ == "__main__":
    reader = Reader(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    signal.signal(signal.SIGTERM, reader.stop)
    reader.run()
