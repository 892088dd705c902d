"""The ledger of stock and orders: one SQLite file that all workers share.

The outcome of an order, its change of the stock and its event are written in one transaction. Therefore a worker may
be killed at any point, and its orders may be delivered again: an order that has an outcome is not decided again. An
event is stored in a table of the same file (the outbox), and is marked there after a worker has published it. So no
event is lost.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelog.demo.orders import Order

ACCEPTED, SOLD_OUT, EXPIRED = "accepted", "sold out", "expired"
OUTCOMES = (ACCEPTED, SOLD_OUT, EXPIRED)
ORPHAN_MS = 2000
"""If an unpublished event is older than this (in milliseconds), any worker may publish it. A younger event may be
published only by the worker that decided the order."""

SCHEMA = """
CREATE TABLE stock (product TEXT PRIMARY KEY, opening INTEGER NOT NULL, units INTEGER NOT NULL CHECK (units >= 0));
CREATE TABLE outcomes (
    order_id TEXT PRIMARY KEY, product TEXT NOT NULL, quantity INTEGER NOT NULL, outcome TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE outbox (
    event_id INTEGER PRIMARY KEY, worker TEXT NOT NULL, decided_ms INTEGER NOT NULL, product TEXT NOT NULL,
    body TEXT NOT NULL, published INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX unpublished ON outbox (published, event_id) WHERE published = 0;
"""


class Event(NamedTuple):
    """A row of the outbox. `body` is JSON without the event's id."""

    event_id: int
    product: str
    body: str


class Ledger:
    """The connection of one process to the ledger."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")

    @classmethod
    def create(cls, path: Path, stock: dict[str, int]) -> "Ledger":
        ledger = cls(path)
        ledger._db.executescript(SCHEMA)
        ledger._db.execute("BEGIN")
        ledger._db.executemany("INSERT INTO stock VALUES (?, ?, ?)", [(p, n, n) for p, n in stock.items()])
        ledger._db.execute("COMMIT")
        return ledger

    def settle(self, orders: Iterable[Order], worker: str, now_ms: int) -> int:
        """Decide every order that has no outcome yet, in one transaction. Return the number of orders that already
        had an outcome.
        """
        repeats = 0
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for order in orders:
                # Look up the id first. An order may be accepted in time and delivered again late; such an order has
                # not expired.
                if self._db.execute("SELECT 1 FROM outcomes WHERE order_id = ?", (order.order_id,)).fetchone():
                    repeats += 1
                    continue
                self._decide(order, worker, now_ms)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return repeats

    def _decide(self, order: Order, worker: str, now_ms: int) -> None:
        # An order that has not expired is sold out, unless the stock has enough units for it.
        outcome = EXPIRED if now_ms > order.expires_ms else SOLD_OUT
        if outcome is SOLD_OUT:
            update = self._db.execute(
                "UPDATE stock SET units = units - ?1 WHERE product = ?2 AND units >= ?1",
                (order.quantity, order.product),
            )
            if update.rowcount:
                outcome = ACCEPTED
        (stock_left,) = self._db.execute("SELECT units FROM stock WHERE product = ?", (order.product,)).fetchone()
        self._db.execute(
            "INSERT INTO outcomes VALUES (?, ?, ?, ?)", (order.order_id, order.product, order.quantity, outcome)
        )
        self._db.execute(
            "INSERT INTO outbox (worker, decided_ms, product, body) VALUES (?1, ?2, ?3, json_object('order_id', ?4, "
            "'product', ?3, 'description', ?5, 'quantity', ?6, 'price_pence', ?7, 'customer', ?8, 'country', ?9, "
            "'outcome', ?10, 'stock_left', ?11, 'decided_ms', ?2))",
            (
                worker, now_ms, order.product, order.order_id, order.description, order.quantity, order.price_pence,
                order.customer, order.country, outcome, stock_left,
            ),
        )  # fmt: skip

    def unpublished(self, worker: str, now_ms: int, limit: int = 1000) -> list[Event]:
        """Return at most `limit` unpublished events, the oldest first: all events of this worker, and events of other
        workers that are older than ORPHAN_MS.
        """
        rows = self._db.execute(
            "SELECT event_id, product, body FROM outbox WHERE published = 0 AND (worker = ? OR decided_ms < ?) "
            "ORDER BY event_id LIMIT ?",
            (worker, now_ms - ORPHAN_MS, limit),
        )
        return [Event(*row) for row in rows]

    def mark_published(self, event_ids: Sequence[int]) -> None:
        """Mark events as published. This is called only after the broker has acknowledged these events."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("UPDATE outbox SET published = 1 WHERE event_id = ?", [(i,) for i in event_ids])
        self._db.execute("COMMIT")

    # For the view and the checker

    def counts(self) -> dict[str, int]:
        counts = dict(self._db.execute("SELECT outcome, count(*) FROM outcomes GROUP BY outcome").fetchall())
        return {outcome: counts.get(outcome, 0) for outcome in OUTCOMES}

    def unpublished_count(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM outbox WHERE published = 0").fetchone()[0])

    def outcomes(self) -> dict[str, tuple[str, int, str]]:
        """Return order id -> (product, quantity, outcome)."""
        rows = self._db.execute("SELECT order_id, product, quantity, outcome FROM outcomes")
        return {order_id: (product, quantity, outcome) for order_id, product, quantity, outcome in rows}

    def stock(self) -> dict[str, tuple[int, int]]:
        """Return product -> (units at the start, units now)."""
        return {p: (opening, units) for p, opening, units in self._db.execute("SELECT * FROM stock")}

    def close(self) -> None:
        self._db.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
