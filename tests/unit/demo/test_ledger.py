"""The ledger decides once, never oversells, and keeps events until they are published."""

import json
import threading
from pathlib import Path

import pytest

from tidelog.demo.ledger import ORPHAN_MS, Ledger
from tidelog.demo.orders import Order, opening_stock, read_orders

NOW = 1_000_000


def order(order_id: str, quantity: int = 1, expires_ms: int = NOW + 1) -> Order:
    return Order(order_id, "P", "a thing", quantity, 250, "c", "UK", NOW, expires_ms)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, {"P": 3}).close()
    return path


def test_stock_is_given_out_once_and_not_beyond(path: Path) -> None:
    ledger = Ledger(path)
    repeats = ledger.settle([order("a", 2), order("b", 2), order("c", 1), order("d", 1, expires_ms=NOW - 1)], "w", NOW)
    assert repeats == 0
    assert {i: outcome for i, (_, _, outcome) in ledger.outcomes().items()} == {
        "a": "accepted",
        "b": "sold out",
        "c": "accepted",
        "d": "expired",
    }
    assert ledger.stock() == {"P": (3, 0)}
    ledger.close()


def test_an_order_that_comes_again_late_keeps_its_outcome(path: Path) -> None:
    ledger = Ledger(path)
    ledger.settle([order("a")], "w", NOW)
    assert ledger.settle([order("a"), order("b")], "w", NOW + 100) == 1
    assert [outcome for _, _, outcome in ledger.outcomes().values()] == ["accepted", "expired"]
    assert ledger.unpublished_count() == 2
    ledger.close()


def test_a_failed_batch_leaves_nothing_behind(path: Path) -> None:
    ledger = Ledger(path)
    with pytest.raises(AttributeError):
        ledger.settle([order("a"), None], "w", NOW)  # type: ignore[list-item]
    assert ledger.outcomes() == {}
    assert ledger.unpublished_count() == 0
    ledger.close()


def test_events_wait_for_their_worker_and_then_for_anyone(path: Path) -> None:
    ledger = Ledger(path)
    ledger.settle([order("a")], "dead", NOW)
    assert ledger.unpublished("other", NOW) == []
    (event,) = ledger.unpublished("other", NOW + ORPHAN_MS + 1)
    assert json.loads(event.body) == {
        "order_id": "a", "product": "P", "description": "a thing", "quantity": 1, "price_pence": 250, "customer": "c",
        "country": "UK", "outcome": "accepted", "stock_left": 2, "decided_ms": NOW,
    }  # fmt: skip
    ledger.mark_published([event.event_id])
    assert ledger.unpublished("dead", NOW) == []
    ledger.close()


def test_two_workers_at_once_never_oversell(path: Path) -> None:
    def work(name: str) -> None:
        ledger = Ledger(path)
        for i in range(20):
            ledger.settle([order(f"{name}-{i}")], name, NOW)
        ledger.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger = Ledger(path)
    assert ledger.counts() == {"accepted": 3, "sold out": 37, "expired": 0}
    assert ledger.stock() == {"P": (3, 0)}
    ledger.close()


def test_the_data_set_is_what_the_demonstration_says() -> None:
    orders, left_out = read_orders()
    assert len({o.order_id for o in orders}) == len(orders) == 24_697
    assert left_out == (399, 185)
    stock = opening_stock(orders)
    assert all(units > 0 for units in stock.values())
    assert sum(stock.values()) < sum(o.quantity for o in orders)
    assert Order.from_json(orders[0].to_json()) == orders[0]
